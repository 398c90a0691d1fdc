"""Axis-aligned boxes in an image.

Convention: x runs to the right and y down. The unit is the caller's: pixels, where the first pixel's left edge is 0 and
the last pixel's right edge is the width, or fractions of the image's sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from localscale.errors import DataError

__all__ = ["Box", "bounding_box"]


@dataclass(frozen=True)
class Box:
    """A rectangle that is not empty, by its edges; ``score`` is a detector's confidence in it, 1 for a given box."""

    left: float
    top: float
    right: float
    bottom: float
    score: float = field(default=1.0, repr=False)

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (*self.edges, self.score)):
            raise DataError(f"box {self.edges} with score {self.score}; expected finite numbers")
        if self.left >= self.right or self.top >= self.bottom:
            raise DataError(f"box {self.edges} is empty; expected left < right and top < bottom")

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
        """Return the intersection over union of two boxes.

        >>> Box(0, 0, 2, 2).overlap(Box(1, 0, 3, 2))
        0.3333333333333333
        """
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        shared = max(width, 0.0) * max(height, 0.0)
        return shared / (self.area + other.area - shared)

    def scaled(self, factor: float) -> Box:
        """Return the box grown or shrunk about its own centre.

        >>> Box(10, 10, 20, 30).scaled(1.5)
        Box(left=7.5, top=5.0, right=22.5, bottom=35.0)
        """
        (x, y), width, height = self.centre, self.right - self.left, self.bottom - self.top
        half_width, half_height = factor * width / 2, factor * height / 2
        return Box(x - half_width, y - half_height, x + half_width, y + half_height, self.score)

    def resized(self, width_factor: float, height_factor: float) -> Box:
        """Return the same box in an image that was resized by these factors."""
        left, top, right, bottom = self.edges
        return Box(left * width_factor, top * height_factor, right * width_factor, bottom * height_factor, self.score)

    def clipped(self, width: int, height: int) -> Box:
        """Return the part of the box that lies inside an image; a box that lies outside raises ``DataError``.

        >>> Box(-3, 2, 9, 99).clipped(8, 8)
        Box(left=0, top=2, right=8, bottom=8)
        """
        if self.left >= width or self.top >= height or self.right <= 0 or self.bottom <= 0:
            raise DataError(f"box {self.edges} lies outside the image of {width}×{height} pixels")
        return Box(max(self.left, 0), max(self.top, 0), min(self.right, width), min(self.bottom, height), self.score)


def bounding_box(mask: np.ndarray, score: float = 1.0) -> Box:
    """Return the smallest box around a mask's true pixels.

    >>> mask = np.zeros((5, 6), bool)
    >>> mask[1:3, 2:6] = True
    >>> bounding_box(mask)
    Box(left=2, top=1, right=6, bottom=3)
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        raise DataError("an empty mask has no box")
    return Box(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1, score)
