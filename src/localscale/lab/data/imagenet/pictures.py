"""What travels from stage to stage: a picture, a box in it, and masks the size of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from localscale.errors import DataError
from localscale.extras import require

__all__ = ["Box", "Picture", "bounding_box", "tidy"]


@dataclass(frozen=True)
class Box:
    """A rectangle by its edges, in pixels: the first pixel's left edge is 0, the last one's right edge the width."""

    left: float
    top: float
    right: float
    bottom: float
    score: float = 1.0

    def __post_init__(self) -> None:
        edges = (self.left, self.top, self.right, self.bottom)
        if not all(math.isfinite(value) for value in (*edges, self.score)):
            raise DataError(f"box {edges} with score {self.score}; expected finite numbers")
        if self.left >= self.right or self.top >= self.bottom:
            raise DataError(f"box {edges} is empty; expected left < right and top < bottom, in pixels")

    @property
    def edges(self) -> tuple[float, float, float, float]:
        return self.left, self.top, self.right, self.bottom

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.bottom - self.top)

    @property
    def centre(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def overlap(self, other: Box) -> float:
        """Intersection over union.

        >>> Box(0, 0, 2, 2).overlap(Box(1, 0, 3, 2))
        0.3333333333333333
        """
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        shared = max(width, 0.0) * max(height, 0.0)
        return shared / (self.area + other.area - shared)

    def scaled(self, factor: float) -> Box:
        """Grown or shrunk about its own centre.

        >>> Box(10, 10, 20, 30).scaled(1.5).edges
        (7.5, 5.0, 22.5, 35.0)
        """
        (x, y), width, height = self.centre, self.right - self.left, self.bottom - self.top
        half_width, half_height = factor * width / 2, factor * height / 2
        return Box(x - half_width, y - half_height, x + half_width, y + half_height, self.score)

    def resized(self, width_factor: float, height_factor: float) -> Box:
        """The same box in a picture that was resized."""
        return Box(
            self.left * width_factor,
            self.top * height_factor,
            self.right * width_factor,
            self.bottom * height_factor,
            self.score,
        )

    def inside(self, width: int, height: int) -> Box:
        """The part within the frame.

        >>> Box(-3, 2, 9, 99).inside(8, 8).edges
        (0, 2, 8, 8)
        """
        if self.left >= width or self.top >= height or self.right <= 0 or self.bottom <= 0:
            raise DataError(f"box {self.edges} lies outside the image of {width}×{height} pixels")
        return Box(max(self.left, 0), max(self.top, 0), min(self.right, width), min(self.bottom, height), self.score)


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


def bounding_box(mask: np.ndarray, score: float = 1.0) -> Box:
    """The smallest box around a mask's true pixels.

    >>> mask = np.zeros((5, 6), bool)
    >>> mask[1:3, 2:6] = True
    >>> bounding_box(mask).edges
    (2, 1, 6, 3)
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        raise DataError("an empty mask has no box")
    return Box(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1, score)


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
