"""Data that an adapted model shares with its sites during one forward pass.

A backbone's ``forward`` does not pass the image or its size to its modules, nor a report back, so a channel does.
Each thread has its own channel. Each call has its own ``Pass``, which is dropped when the call ends.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from torch import Tensor

from localscale.canonicalizer import SiteReport

__all__ = ["Channel", "Pass"]


@dataclass
class Pass:
    """The image of one call of an adapted model, and the reports of its sites.

    ``image_size`` is the (height, width) in pixels of what the base model takes: a large image's canonical form.
    """

    image: Tensor
    image_size: tuple[int, int]
    report: dict[str, SiteReport] = field(default_factory=dict)


class Channel(threading.local):
    """The state that the sites of one adapted model share in one thread.

    While ``recorded`` is a dictionary, sites put their features ``(B, C, H, W)`` there and change nothing.
    """

    def __init__(self) -> None:
        self.current: Pass | None = None
        self.recorded: dict[str, Tensor] | None = None
        self.disabled = False

    def __reduce__(self) -> tuple[type[Channel], tuple[()]]:
        """Give a copied or unpickled model a new channel."""
        return Channel, ()
