"""Notice what a trial does outside of what it may do."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Watch", "quiet"]

STARTS_A_PROGRAM = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "pty.spawn",
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Show no warnings of localscale inside the block: refusals are what a campaign counts."""
    log = logging.getLogger("localscale")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


class Watch:
    """Sees programs that are started and files of one folder that are opened.

    Python cannot remove an audit hook, so it stays and does nothing outside the blocks.
    """

    def __init__(self, secret: Path) -> None:
        self.secret = str(secret)
        self.seen: list[str] | None = None
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def looking(self) -> Iterator[list[str]]:
        """Yield the list of what happens in the block."""
        seen = self.seen = list[str]()
        try:
            yield seen
        finally:
            self.seen = None

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.seen is None:
            return
        if event in STARTS_A_PROGRAM:
            self.seen.append(f"a program was started: {event} {str(arguments)[:100]}")
        elif event in ("open", "os.remove", "os.listdir", "os.scandir") and arguments and isinstance(arguments[0], str):
            at = os.path.realpath(arguments[0]) if "\0" not in arguments[0] else ""
            if at.startswith(self.secret):
                self.seen.append(f"{event} outside: {arguments[0]}")
