"""A loss that teaches sizes from things that are known by masks or boxes.

A size network with ``weight="learned"`` learns w*, the share of each cell that things cover, and s*, the log size of
the thing there. Both are also shown through known maps, which move the things and change s* by known amounts, and with
random contrasts, as in ``size_loss``. Sizes are relative to the mean log size of the things learned from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.canonicalizer.looks import Looks, pyramid
from localscale.canonicalizer.network import IMAGE_CHANNELS
from localscale.canonicalizer.size_loss import (
    SHARP,
    SOMETHING,
    SizeLoss,
    change_contrast,
    draw_pairs,
    scale_half,
)
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.canonicalizer.things import Things
from localscale.conventions import lattice
from localscale.errors import ConfigError, ShapeError
from localscale.maps.base import Map

__all__ = ["ThingScores", "check_teachable", "thing_loss", "thing_scores"]


def check_teachable(estimator: SizeEstimator) -> None:
    """Raise ``ConfigError`` unless the weights of ``estimator`` are learned."""
    if estimator.settings.weight != "learned":
        raise ConfigError(
            f"masks and boxes teach weights, and the weights of this size network come from "
            f'{estimator.settings.weight!r}; adapt the model with DECConfig(network=SizeNetwork(weight="learned"))'
        )


def thing_loss(
    estimator: SizeEstimator, source: Tensor, size: tuple[int, int], things: Things, *, update: bool = True
) -> SizeLoss:
    """Compare estimates in looks of ``size`` (h, w) at ``source`` ``(B, C, H, W)`` with the known things.

    The ``error`` of the result is the mean absolute error in log size over things, and ``change`` that of an estimator
    that takes all things for averagely large. With ``update``, the estimator's ``trust`` moves towards
    1 − ``error`` / ``change``, and its mean size towards that of all things so far. Images that are not finite do not
    count.
    """
    check_teachable(estimator)
    if len(things) != len(source):
        raise ShapeError(
            f"masks or boxes of {len(things)} images came with {len(source)} images; expected one for each"
        )
    finite = torch.isfinite(source).flatten(1).all(dim=1)
    things = things.without(~finite)
    if update:
        estimator.count_things(*things.mean_size())
    source, halved = scale_half(torch.where(finite[:, None, None, None], source, 0))
    looks = Looks(pyramid(source, size), size)
    pixels = lattice(*size, dtype=source.dtype, device=source.device).expand(len(source), -1, -1, -1)
    moved, change = draw_pairs(len(source), looks).move(pixels)
    both = torch.cat((looks.at(pixels), looks.at(moved)))
    found, logits = estimator.estimates(change_contrast(both) if both.shape[1] <= IMAGE_CHANNELS else both)
    views = [
        things.through(*_through_half(halved, *view)) for view in ((pixels, torch.zeros_like(change)), (moved, change))
    ]
    grids = [view.on_grid(*found.shape[1:]) for view in views]
    expected, covered, counted = (torch.cat(pair) for pair in zip(*grids, strict=True))
    expected = expected - estimator.mean_size.to(expected)
    share = counted * covered / (counted * covered).sum(dim=(1, 2), keepdim=True).clamp_min(SOMETHING)
    wrong = (share * F.smooth_l1_loss(found, expected, beta=SHARP, reduction="none")).sum(dim=(1, 2)).mean()
    unsure = F.binary_cross_entropy_with_logits(logits, covered, reduction="none")
    unsure = (counted * unsure).sum() / counted.sum().clamp_min(1e-6)
    with torch.no_grad():
        some = share.sum(dim=(1, 2)).sum().clamp_min(1e-6)
        error, nothing = ((share * x.abs()).sum() / some for x in (found - expected, expected))
        if update:
            estimator.count_explained(error, nothing)
    return SizeLoss(wrong + unsure, error, nothing)


def _through_half(halved: Map | None, points: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``points`` and changes of log size after the maps that scaled every other image."""
    if halved is None:
        return points, change
    every_other = slice(0, 2 * halved.batch, 2)
    points, change = points.clone(), change.clone()
    here = points[every_other].flatten(1, 2)
    change[every_other] -= halved.local_scale(here).clamp_min(1e-3).log().view_as(change[every_other])
    points[every_other] = halved(here).view_as(points[every_other])
    return points, change


@dataclass(frozen=True)
class ThingScores:
    """Scores of a size network on known things, as scalar tensors.

    ``error`` is the mean absolute error in log size over the cells of things. ``overlap`` is the intersection over
    union of the cells whose weight is above ½ and those that things cover by more than half. ``spread`` is the standard
    deviation of the things' log sizes in canonical forms over that in the images.
    """

    error: Tensor
    overlap: Tensor
    spread: Tensor


def thing_scores(
    estimator: SizeEstimator, source: Tensor, size: tuple[int, int], things: Things, m: Map
) -> ThingScores:
    """Measure the estimates in looks of ``size`` at ``source``, and canonical forms through the maps ``m``."""
    points = lattice(*size, dtype=source.dtype, device=source.device).expand(len(source), -1, -1, -1)
    found, logits = estimator.estimates(Looks(pyramid(source, size), size).at(points))
    expected, covered, counted = things.on_grid(*found.shape[1:])
    share = counted * covered
    error = (share * (found + estimator.mean_size - expected).abs()).sum() / share.sum().clamp_min(1e-6)
    weight = estimator.above_sure(torch.sigmoid(logits))
    chosen, true = (weight > 0.5) & (counted > 0.5), (covered > 0.5) & (counted > 0.5)
    overlap = (chosen & true).sum() / (chosen | true).sum().clamp_min(1)
    full = lattice(*things.number.shape[1:], dtype=source.dtype, device=source.device).expand(len(source), -1, -1, -1)
    here = full.flatten(1, 2)
    canonical = things.through(m(here).view_as(full), -m.local_scale(here).clamp_min(1e-3).log().view(full.shape[:3]))
    before, after = (_deviation_of(each) for each in (things, canonical))
    return ThingScores(error, overlap, after / before.clamp_min(1e-6))


def _deviation_of(things: Things) -> Tensor:
    """Return the standard deviation of the log sizes of all things."""
    sums, counts = things.each()
    some = counts > 0
    size = torch.where(some, sums / counts.clamp_min(1), 0)
    mean = size.sum() / some.sum().clamp_min(1)
    return (torch.where(some, (size - mean).square(), 0).sum() / some.sum().clamp_min(1)).sqrt()
