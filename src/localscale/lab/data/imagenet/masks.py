"""Masks of objects, ``(H, W)`` booleans: clean them, check them, and grow them into the hole to fill."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localscale.extras import require
from localscale.lab.data.boxes import bounding_box
from localscale.lab.data.generation.job import Skip

__all__ = ["Sides", "attach_to_frame", "check_area", "check_inside", "clean_mask", "hole_around", "near_frame"]

NEAR = 0.01  # of the image's shorter side: the distance from the frame at which an object is taken to be cut by it


class Sides(NamedTuple):
    """The sides of the frame that an object touches."""

    left: bool = False
    top: bool = False
    right: bool = False
    bottom: bool = False

    @classmethod
    def of(cls, mask: np.ndarray) -> Sides:
        """Return the sides at which the mask reaches the image's last pixels.

        >>> mask = np.zeros((4, 6), bool)
        >>> mask[2:, 3:] = True
        >>> Sides.of(mask).names
        ['right', 'bottom']
        """
        return cls(*(bool(edge.any()) for edge in (mask[:, 0], mask[0], mask[:, -1], mask[-1])))

    @property
    def names(self) -> list[str]:
        return [name for name, touched in self._asdict().items() if touched]


def near_frame(width: int, height: int) -> int:
    """Return the number of pixels from the frame within which an object counts as cut by it, at least 2."""
    return max(2, round(NEAR * min(width, height)))


def attach_to_frame(mask: np.ndarray) -> np.ndarray:
    """Return the mask extended to every side of the frame that it nearly reaches.

    Segmenters often stop a few pixels before the frame at which the photograph cuts the object. The rest of the cut
    object would stay behind there when the object shrinks.

    >>> mask = np.zeros((8, 300), bool)
    >>> mask[3:5, 1:9] = True
    >>> attach_to_frame(mask)[:, 0].nonzero()[0].tolist()
    [3, 4]
    """
    near, result = near_frame(*mask.shape[::-1]), mask.copy()
    for view in (result, result[::-1], result.T, result.T[::-1]):  # from the top, bottom, left and right
        band = view[:near]
        band[:] = np.logical_or.accumulate(band[::-1], axis=0)[::-1]
    return result


def check_area(mask: np.ndarray, least: float, most: float) -> Skip | None:
    """Return a skip unless the object covers at least ``least`` and at most ``most`` of the image."""
    share = float(mask.mean())
    if share == 0:
        return Skip("the mask is empty")
    if share < least:
        return Skip(f"the object covers less than {100 * least:g}% of the image", {"mask_area": round(share, 6)})
    if share > most:
        return Skip(f"the object covers more than {100 * most:g}% of the image", {"mask_area": round(share, 6)})
    return None


def check_inside(mask: np.ndarray, scales: tuple[float, ...]) -> Skip | None:
    """Return the reason why an object does not stay whole inside the frame at all ``scales``, or None if it does."""
    height, width = mask.shape
    box = bounding_box(mask)
    largest = max(scales)
    grown = box.scaled(max(largest, 1.0))
    outside = grown.left < 0 or grown.top < 0 or grown.right > width or grown.bottom > height
    if largest > 1 and outside:
        return Skip(f"the object would leave the frame at scale {largest:g}", {"mask_box": list(box.edges)})
    if min(scales) < 1 and any(Sides.of(mask)):
        return Skip("the object touches the frame and may be cut by it", {"mask_box": list(box.edges)})
    return None


def hole_around(mask: np.ndarray, margin: float) -> np.ndarray:
    """Return the mask grown by ``margin``, a fraction of the image's shorter side, and by at least 3 pixels.

    The margin covers the traces that an object leaves around itself, such as its shadow or blurred edge.
    """
    cv2 = require("cv2", "imagenet")
    radius = max(3, round(margin * min(mask.shape)))
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    return cv2.dilate(mask.astype(np.uint8), kernel, borderValue=0).astype(bool)


def clean_mask(mask: np.ndarray, *, keep: float = 0.2, gap: float = 1.0) -> np.ndarray:
    """Return a mask without specks, small gaps and ragged edges.

    A median filter smooths away details of one or two pixels, unless nothing would remain. Parts smaller than ``keep``
    times the largest part are dropped. Enclosed gaps smaller than ``gap`` times the mask are filled.

    >>> mask = np.zeros((20, 30), bool)
    >>> mask[2:18, 2:20], mask[8:12, 8:12], mask[4:8, 24:28] = True, False, True
    >>> clean_mask(mask)[10, 10], clean_mask(mask)[6, 26]
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
    """Return the areas of a mask's connected parts, and the number of each pixel's part, counted from 1."""
    cv2 = require("cv2", "imagenet")
    _, parts, statistics, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=4)
    return statistics[1:, cv2.CC_STAT_AREA], parts
