"""Masks of objects, ``(H, W)`` booleans: clean them, check them, and grow them into the hole to fill."""

from __future__ import annotations

import numpy as np

from localscale.extras import require
from localscale.lab.data.boxes import bounding_box
from localscale.lab.data.generation.job import Skip

__all__ = ["check_mask", "clean_mask", "hole_around"]

LEAST, MOST = 0.02, 0.70  # fractions of the image's area that an object may cover


def check_mask(mask: np.ndarray, scales: tuple[float, ...]) -> Skip | None:
    """Return the reason why an object cannot be rescaled to all ``scales``, or None if it can."""
    share = float(mask.mean())
    if share == 0:
        return Skip("the mask is empty")
    if share < LEAST:
        return Skip(f"the object covers less than {LEAST:.0%} of the image", {"mask_area": round(share, 6)})
    if share > MOST:
        return Skip(f"the object covers more than {MOST:.0%} of the image", {"mask_area": round(share, 6)})
    height, width = mask.shape
    box = bounding_box(mask)
    largest = max(scales)
    grown = box.scaled(max(largest, 1.0))
    outside = grown.left < 0 or grown.top < 0 or grown.right > width or grown.bottom > height
    if largest > 1 and outside:
        return Skip(f"the object would leave the frame at scale {largest:g}", {"mask_box": list(box.edges)})
    if min(scales) < 1 and (box.left <= 0 or box.top <= 0 or box.right >= width or box.bottom >= height):
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
