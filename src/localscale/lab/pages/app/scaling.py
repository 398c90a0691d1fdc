"""Maps that scale one box of an image and leave its borders in place.

Along each axis the map has slope s inside the box [a, b] and slope t = (1 − s·w) / (1 − w) outside, with w = b − a. The
ends of the axis stay, the map increases, and its inverse is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.maps import MonotoneMap, SeparableMap

__all__ = ["LARGEST", "SMALLEST", "box_around", "box_between", "box_maps", "factors_to_try", "fit_factor"]

SMALLEST, LARGEST = 0.4, 2.5  # ends of the slider
LEAST_SIDE = 0.02  # of a box, as a fraction of the image's side
LEAST_SLOPE, LARGEST_SLOPE = 0.1, 10.0  # outside the box


def box_between(a: Sequence[float], b: Sequence[float]) -> Box:
    """Return the box between two opposite corners (x, y), given in any order and clamped to the image.

    >>> box_between((0.8, 0.1), (0.2, 0.6))
    Box(left=0.2, top=0.1, right=0.8, bottom=0.6)
    """
    if not all(math.isfinite(value) for value in (*a, *b)):
        raise DataError("a corner of the box is not a finite number; mark the box again")
    (left, right), (top, bottom) = (sorted(min(max(v, 0.0), 1.0) for v in pair) for pair in zip(a, b, strict=True))
    if min(right - left, bottom - top) < LEAST_SIDE:
        raise DataError("the box is too small; click two corners that are further apart")
    return Box(left, top, right, bottom)


def box_around(points: Sequence[Sequence[float]], radius: float) -> Box:
    """Return the box around the stroke of a brush of ``radius`` that passed through ``points`` (x, y).

    >>> box_around([(0.5, 0.5), (0.75, 0.5)], radius=0.125)
    Box(left=0.375, top=0.375, right=0.875, bottom=0.625)
    """
    if not points:
        raise DataError("nothing was painted; press the button and move over the object")
    x, y = ([point[axis] for point in points] for axis in (0, 1))
    return box_between((min(x) - radius, min(y) - radius), (max(x) + radius, max(y) + radius))


def fit_factor(box: Box, factor: float) -> float:
    """Return the factor nearest to ``factor`` that keeps the slope outside the box between 0.1 and 10 on both axes.

    A box as wide as the image cannot be scaled: only the factor 1 fits it.
    """
    low, high = 0.0, math.inf
    for width in (box.right - box.left, box.bottom - box.top):
        high = min(high, (1 - LEAST_SLOPE * (1 - width)) / width)
        low = max(low, (1 - LARGEST_SLOPE * (1 - width)) / width)
    return min(max(factor, low), high)


def box_maps(box: Box, factors: Sequence[float]) -> SeparableMap:
    """Return one map per factor, each of which scales the box by the nearest factor that fits.

    >>> m = box_maps(Box(0.25, 0.25, 0.5, 0.5), [1.0, 2.0])
    >>> m.local_scale(torch.tensor([[[0.3, 0.4]]]))[:, 0]
    tensor([1., 2.])
    """
    fit = torch.tensor([fit_factor(box, factor) for factor in factors], dtype=torch.float64)
    return SeparableMap(_axis(box.left, box.right, fit), _axis(box.top, box.bottom, fit)).to(dtype=torch.float32)


def factors_to_try(box: Box, count: int) -> list[float]:
    """Return ``count`` factors in equal ratios, from the smallest that fits the box to the largest.

    >>> factors_to_try(Box(0.25, 0.25, 0.5, 0.5), 3)
    [0.4, 1.0, 2.5]
    """
    low, high = (math.log(fit_factor(box, end)) for end in (SMALLEST, LARGEST))
    if high <= low:
        return [1.0]
    return [round(math.exp(low + (high - low) * k / (count - 1)), 6) for k in range(count)]


def _axis(start: float, end: float, factors: torch.Tensor) -> MonotoneMap:
    """Return the map of one axis, with knots 0, start, end and 1; knots that coincide are merged."""
    width = end - start
    outside = (1 - factors * width) / (1 - width) if width < 1 else torch.ones_like(factors)
    knots, values = [torch.zeros_like(factors)], [torch.zeros_like(factors)]
    for place, value in ((start, start * outside), (end, 1 - (1 - end) * outside)):
        if 0 < place < 1:
            knots.append(torch.full_like(factors, place))
            values.append(value)
    one = torch.ones_like(factors)
    return MonotoneMap(torch.stack((*knots, one), -1), torch.stack((*values, one), -1))
