"""Stop between two training steps when the user presses Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["StopRequest"]


class StopRequest:
    """A context in which the first Ctrl-C only sets ``requested``; a second one interrupts at once, as usual.

    >>> with StopRequest() as stop:
    ...     for step in range(3):
    ...         stop.check()  # between two steps: raise KeyboardInterrupt if Ctrl-C was pressed

    An interrupt in the middle of a step would leave weights that are half updated. Only the main thread of a program
    can catch the signal; elsewhere, and if ``enabled`` is False, Ctrl-C keeps its usual effect.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled and threading.current_thread() is threading.main_thread()
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> StopRequest:
        if self.enabled:
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self.enabled:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if the user has pressed Ctrl-C; call it where the program may stop."""
        if self.requested:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, self._before)
