"""Measure whether canonicalization gives known things equal sizes, and whether it keeps their shapes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.errors import ShapeError
from localscale.maps.base import Map

__all__ = ["SizeSpread", "size_spread"]

ROUNDING = 1e-5  # standard deviation of log sizes that are equal up to rounding
FURTHEST = 2.0  # in image sides; boxes may reach out of the image, but not as far as boxes in pixels


@dataclass(frozen=True)
class SizeSpread:
    """The sizes of things in canonical forms, compared with those in the images; see ``size_spread``.

    ``spread`` is the standard deviation of the log sizes in canonical forms, divided by that in the images: 0 if all
    things become equally large. ``slope`` is the slope of a line fitted to the former as a function of the latter.
    ``size`` is the mean size in canonical forms, as a fraction of the image side. ``distortion`` is the mean relative
    distance between the canonical form of a thing's box and the nearest scaled copy of the box.
    """

    spread: float
    slope: float
    size: float
    distortion: float


def size_spread(m: Map, boxes: Tensor) -> SizeSpread:
    """Measure the things in ``boxes`` ``(B, N, 4)`` before and after canonicalization by ``m``.

    A point q of the image appears in the canonical form S⁻¹(I; l) at l⁻¹(q). The size of a thing in the image is
    √(width · height). In the canonical form it is larger by the factor that best scales nine points of the box to their
    new positions. What a box has outside the image is cut off. The boxes must differ in size.

    Convention: a box is (left, top, right, bottom) in [0,1]², x to the right and y down.

    >>> centre, half = torch.tensor([[[0.3, 0.5], [0.7, 0.5]]]), torch.tensor([[[0.05], [0.15]]])
    >>> found = size_spread(localscale.identity_map(1), torch.cat((centre - half, centre + half), dim=-1))
    >>> round(found.spread, 3), round(found.slope, 3), found.distortion < 1e-4
    (1.0, 1.0, True)
    """
    if not isinstance(boxes, Tensor) or boxes.dim() != 3 or boxes.shape[-1] != 4 or boxes.shape[0] != m.batch:
        came = f"have shape {tuple(boxes.shape)}" if isinstance(boxes, Tensor) else f"are {type(boxes).__name__}"
        raise ShapeError(f"boxes {came}; expected a tensor ({m.batch}, things, 4): left, top, right, bottom")
    if boxes.shape[1] * boxes.shape[0] < 2:
        raise ShapeError(f"boxes have shape {tuple(boxes.shape)}; a spread needs at least two boxes")
    boxes = boxes.to(device=m.device, dtype=m.dtype)
    if not bool((boxes.abs() <= FURTHEST).all()):
        raise ShapeError(
            f"boxes reach from {float(boxes.min()):g} to {float(boxes.max()):g}; expected finite fractions of the "
            "image's sides; divide boxes in pixels by its width and height"
        )
    boxes = boxes.clamp(0, 1)
    corner, extent = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
    if bool((extent <= 0).any()):
        raise ShapeError("a box has no area in the image; expected left < right and top < bottom")
    size = extent.prod(dim=-1).sqrt()
    if float(size.log().std()) < ROUNDING:
        raise ShapeError(
            f"all {size.numel()} boxes are equally large; expected things of different sizes, because the spread is "
            "relative to that in the images"
        )
    steps = torch.tensor([0.0, 0.5, 1.0], dtype=m.dtype, device=m.device)
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).reshape(1, 1, 9, 2)
    points = corner[:, :, None] + grid * extent[:, :, None]
    seen = m.inverse()(points.flatten(1, 2)).unflatten(1, points.shape[1:3])
    before, after = (p - p.mean(dim=2, keepdim=True) for p in (points, seen))
    factor = (before * after).sum(dim=(2, 3)) / before.square().sum(dim=(2, 3))
    left = after - factor[..., None, None] * before
    distortion = left.square().sum(dim=(2, 3)).sqrt() / after.square().sum(dim=(2, 3)).sqrt().clamp_min(1e-12)
    canonical = size * factor.clamp_min(1e-6)
    x, y = size.log().flatten(), canonical.log().flatten()
    centred = x - x.mean()
    slope = (centred * (y - y.mean())).sum() / centred.square().sum()
    spread = y.std() / x.std()
    return SizeSpread(float(spread), float(slope), float(canonical.mean()), float(distortion.mean()))
