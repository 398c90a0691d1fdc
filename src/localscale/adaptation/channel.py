"""How an adapted model talks to the sites inside its backbone during one forward pass.

A backbone's own ``forward`` has no room for the image's size, the image itself or a report, so they travel beside it.
Each thread has its own channel and each call its own pass, dropped when the call ends: nothing is left on a module.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from torch import Tensor

from localscale.canonicalizer import SiteReport

__all__ = ["Channel", "Pass"]


@dataclass
class Pass:
    """One call of an adapted model: its image, and the reports of the sites it met."""

    image: Tensor
    report: dict[str, SiteReport] = field(default_factory=dict)

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) in pixels."""
        height, width = self.image.shape[-2:]
        return height, width


class Channel(threading.local):
    """What the sites of one adapted model share in one thread."""

    def __init__(self) -> None:
        self.current: Pass | None = None
        self.disabled = False

    def __reduce__(self) -> tuple[type[Channel], tuple[()]]:
        """A copied or unpickled model starts with a channel of its own."""
        return Channel, ()
