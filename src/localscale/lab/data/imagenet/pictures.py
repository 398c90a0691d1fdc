"""What travels from stage to stage: a picture, a box in it, and masks the size of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localscale.extras import require

__all__ = ["Picture", "tidy"]


@dataclass(frozen=True)
class Picture:
    """A labelled image as the stages see it.

    ``name`` is its path below the images folder, with ``/``; ``pixels`` are ``(H, W, 3)`` 8-bit; ``source_size`` is the
    upright original's (width, height) before any resizing; ``class_index`` is None where the class is not known.
    """

    name: str
    pixels: np.ndarray
    source_size: tuple[int, int]
    class_name: str
    class_index: int | None = None

    @property
    def width(self) -> int:
        return self.pixels.shape[1]

    @property
    def height(self) -> int:
        return self.pixels.shape[0]


def tidy(mask: np.ndarray, *, keep: float = 0.2, gap: float = 1.0) -> np.ndarray:
    """A mask without specks, gaps and teeth: parts smaller than ``keep`` of the largest part go, enclosed gaps smaller
    than ``gap`` of the mask are filled, and what is one or two pixels wide is smoothed away if anything else is left.

    >>> mask = np.zeros((20, 30), bool)
    >>> mask[2:18, 2:20], mask[8:12, 8:12], mask[4:8, 24:28] = True, False, True
    >>> tidy(mask)[10, 10], tidy(mask)[6, 26]
    (np.True_, np.False_)
    """
    smooth = require("cv2", "imagenet").medianBlur(mask.astype(np.uint8), 5).astype(bool)
    mask = smooth if smooth.any() else mask
    areas, parts = _parts(mask)
    if not len(areas):
        return mask
    mask = np.isin(parts, 1 + np.flatnonzero(areas >= keep * areas.max()))
    areas, parts = _parts(np.pad(~mask, 1, constant_values=True))
    enclosed = 1 + np.flatnonzero(areas <= gap * mask.sum())
    return mask | np.isin(parts, enclosed[enclosed != parts[0, 0]])[1:-1, 1:-1]


def _parts(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The areas of a mask's connected parts, and each pixel's part, counted from 1."""
    cv2 = require("cv2", "imagenet")
    _, parts, statistics, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=4)
    return statistics[1:, cv2.CC_STAT_AREA], parts
