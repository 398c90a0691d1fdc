"""A marked part of an image, scaled on its own: a box and a factor make a map.

Along each axis the box [a, b] gets slope s, everything outside it one slope t = (1 − s·w) / (1 − w) with w = b − a. So
the ends of the axis stay, the map increases, and its inverse is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.maps import MonotoneMap, SeparableMap

__all__ = ["LARGEST", "SMALLEST", "box_around", "box_between", "box_maps", "factors_to_try", "fitting"]

SMALLEST, LARGEST = 0.4, 2.5  # ends of the slider
LEAST_SIDE = 0.02  # of a box, as a fraction of the image's
LEAST_SLOPE, LARGEST_SLOPE = 0.1, 10.0  # of what is not marked


def box_between(a: Sequence[float], b: Sequence[float]) -> Box:
    """The box with two opposite corners (x, y), in any order; what lies outside the image is left out.

    >>> box_between((0.8, 0.1), (0.2, 0.6))
    Box(left=0.2, top=0.1, right=0.8, bottom=0.6)
    """
    if not all(math.isfinite(value) for value in (*a, *b)):
        raise DataError("a corner of the box is not a number; mark it again")
    (left, right), (top, bottom) = (sorted(min(max(v, 0.0), 1.0) for v in pair) for pair in zip(a, b, strict=True))
    if min(right - left, bottom - top) < LEAST_SIDE:
        raise DataError("the box is too small to be seen; click two corners that are further apart")
    return Box(left, top, right, bottom)


def box_around(points: Sequence[Sequence[float]], radius: float) -> Box:
    """The box around what a brush of ``radius`` painted, ``points`` being the (x, y) places it passed.

    >>> box_around([(0.5, 0.5), (0.75, 0.5)], radius=0.125)
    Box(left=0.375, top=0.375, right=0.875, bottom=0.625)
    """
    if not points:
        raise DataError("nothing was painted; press and move over the object")
    across, down = ([point[axis] for point in points] for axis in (0, 1))
    return box_between(
        (min(across) - radius, min(down) - radius),
        (max(across) + radius, max(down) + radius),
    )


def fitting(box: Box, factor: float) -> float:
    """The factor nearest to ``factor`` at which what is not marked keeps a slope between 0.1 and 10 along both axes.

    A box as wide as the image leaves no room: only 1 fits.
    """
    low, high = 0.0, math.inf
    for width in (box.right - box.left, box.bottom - box.top):
        high = min(high, (1 - LEAST_SLOPE * (1 - width)) / width)
        low = max(low, (1 - LARGEST_SLOPE * (1 - width)) / width)
    return min(max(factor, low), high)


def box_maps(box: Box, factors: Sequence[float]) -> SeparableMap:
    """One map per factor, each scaling the box by it, or as near to it as fits.

    >>> m = box_maps(Box(0.25, 0.25, 0.5, 0.5), [1.0, 2.0])
    >>> m.local_scale(torch.tensor([[[0.3, 0.4]]]))[:, 0]
    tensor([1., 2.])
    """
    fit = torch.tensor([fitting(box, factor) for factor in factors], dtype=torch.float64)
    return SeparableMap(_axis(box.left, box.right, fit), _axis(box.top, box.bottom, fit)).to(dtype=torch.float32)


def factors_to_try(box: Box, count: int) -> list[float]:
    """Even steps of size, from the smallest factor that fits to the largest.

    >>> factors_to_try(Box(0.25, 0.25, 0.5, 0.5), 3)
    [0.4, 1.0, 2.5]
    """
    low, high = (math.log(fitting(box, end)) for end in (SMALLEST, LARGEST))
    if high <= low:
        return [1.0]
    return [round(math.exp(low + (high - low) * k / (count - 1)), 6) for k in range(count)]


def _axis(start: float, end: float, factors: torch.Tensor) -> MonotoneMap:
    """Knots 0, start, end, 1; those that fall together are one, so that every segment has a length."""
    width = end - start
    outside = (1 - factors * width) / (1 - width) if width < 1 else torch.ones_like(factors)
    knots, values = [torch.zeros_like(factors)], [torch.zeros_like(factors)]
    for place, value in ((start, start * outside), (end, 1 - (1 - end) * outside)):
        if 0 < place < 1:
            knots.append(torch.full_like(factors, place))
            values.append(value)
    one = torch.ones_like(factors)
    return MonotoneMap(torch.stack((*knots, one), -1), torch.stack((*values, one), -1))
