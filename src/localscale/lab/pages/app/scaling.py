"""Boxes that a visitor marks, and the maps that scale them about their centres, as far as the image has room."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.box_map import BoxMap

__all__ = ["LARGEST", "SMALLEST", "box_around", "box_between", "box_maps", "factors_to_try", "fit_factor"]

SMALLEST, LARGEST = 0.4, 2.5  # ends of the slider
LEAST_SIDE = 0.02  # of a box, as a fraction of the image's side
LEAST_SLOPE, LARGEST_SLOPE = 0.1, 10.0  # of what is between the box and the image's border
ROOM = 0.2  # what surrounds the box is compressed to this share of its width, if the image is wide enough


def box_between(a: Sequence[float], b: Sequence[float]) -> Box:
    """Return the box between two opposite corners (x, y), given in any order and clamped to the image.

    >>> box_between((0.8, 0.1), (0.2, 0.6))
    Box(left=0.2, top=0.1, right=0.8, bottom=0.6)
    """
    if not all(math.isfinite(value) for value in (*a, *b)):
        raise DataError("a corner of the box is not a finite number; mark the box again")
    (left, right), (top, bottom) = (sorted(_share(value) for value in pair) for pair in zip(a, b, strict=True))
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
    """Return the factor nearest to ``factor`` for which the rest keeps between a tenth and ten times its width.

    A box as wide as the image cannot be scaled: only the factor 1 fits it.
    """
    low, high = 0.0, math.inf
    for width in (box.right - box.left, box.bottom - box.top):
        high = min(high, (1 - LEAST_SLOPE * (1 - width)) / width)
        low = max(low, (1 - LARGEST_SLOPE * (1 - width)) / width)
    return min(max(factor, low), high)


def box_maps(box: Box, factors: Sequence[float]) -> BoxMap:
    """Return one map per factor, each of which scales the box by the nearest factor that fits.

    The box keeps its centre, unless it would leave the image. What surrounds it is compressed or stretched; the rest
    of the image stays as it is.

    >>> m = box_maps(Box(0.25, 0.25, 0.5, 0.5), [1.0, 2.0])
    >>> m.local_scale(torch.tensor([[[0.3, 0.4]]]))[:, 0]
    tensor([1., 2.])
    """
    fit = torch.tensor([[fit_factor(box, factor)] for factor in factors], dtype=torch.float64)
    inner = torch.tensor(box.edges, dtype=torch.float64).expand(len(fit), -1)
    start, end = inner.chunk(2, dim=1)
    width, after = fit * (end - start), 1 - end
    low = torch.maximum(LEAST_SLOPE * start, 1 - width - LARGEST_SLOPE * after)
    high = torch.minimum(LARGEST_SLOPE * start, 1 - width - LEAST_SLOPE * after)
    moved = ((start + end - width) / 2).clamp(low, high)
    target = torch.where((inner == 0) | (inner == 1), inner, torch.cat((moved, moved + width), dim=1))
    reach = (target - inner).abs().amax(dim=1, keepdim=True) / (1 - ROOM)
    outer = torch.cat((inner[:, :2] - reach, inner[:, 2:] + reach), dim=1).clamp(0, 1)
    return BoxMap(inner, target, outer).to(dtype=torch.float32)


def factors_to_try(box: Box, count: int) -> list[float]:
    """Return ``count`` factors in equal ratios, from the smallest that fits the box to the largest.

    The one nearest to 1 between them is replaced by 1, the image as it is.

    >>> factors_to_try(Box(0.25, 0.25, 0.75, 0.5), 4)
    [0.4, 0.672395, 1.0, 1.9]
    """
    low, high = (math.log(fit_factor(box, end)) for end in (SMALLEST, LARGEST))
    if high <= low:
        return [1.0]
    step = (high - low) / (count - 1)
    unscaled = min(max(round(-low / step), 1), count - 2)
    return [1.0 if k == unscaled else round(math.exp(low + step * k), 6) for k in range(count)]


def _share(value: float) -> float:
    """Clamp to the image and round to less than a pixel, so that a box lies on a border or visibly apart from it."""
    return round(min(max(float(value), 0.0), 1.0), 4)
