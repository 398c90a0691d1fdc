"""A loss that teaches sizes without labels: a known map changes the sizes of things by known factors.

For a known map u, the look x∘u shows at p what x shows at u(p), larger by det(∂u)^(−1/2). So the estimated log sizes s
must obey s_{x∘u}(p) = s_x(u(p)) − ½ log det ∂u(p). This leaves a constant free, so the loss also penalises the mean.

It also leaves free what "size" is: the thickness of a digit's strokes obeys the equation as well as the digit's extent
does. Every look therefore gets a random contrast, which makes strokes thicker or thinner and must not change s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.canonicalizer.looks import Looks, pyramid
from localscale.canonicalizer.network import IMAGE_CHANNELS
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.conventions import lattice
from localscale.maps.base import Map
from localscale.maps.build import random_map
from localscale.warp import unscale

__all__ = ["Pairs", "SizeLoss", "change_contrast", "draw_pairs", "scale_half", "size_loss"]

KNOTS = 4  # control points of a random map along each axis; few, so that sizes change smoothly
SEPARABLE, GRID = 2.0, 1.5  # strengths of the random maps
SHARP = 0.1  # errors in log size below this are squared, larger ones count linearly
SOMETHING = 0.1  # sum of the weights below which an image counts for less
CENTRE = 0.1  # weight of the squared mean log size in the loss
POWER, STEEPNESS = 1.2, 8.0  # largest log exponent and steepness of a random contrast


@dataclass(frozen=True)
class SizeLoss:
    """The size loss of a batch, as scalar tensors; computing them needs no host synchronisation.

    ``loss`` is the value to minimise. ``error`` is the mean absolute error in log size, and ``change`` is the error of
    an estimator that predicts no change of size.
    """

    loss: Tensor
    error: Tensor
    change: Tensor


def size_loss(
    estimator: SizeEstimator, source: Tensor, size: tuple[int, int], *, update_trust: bool = True
) -> SizeLoss:
    """Estimate sizes in looks of ``size`` (h, w) at ``source`` ``(B, C, H, W)`` before and after known changes of size.

    Images that are not finite do not count, and images that show nothing hardly do. With ``update_trust``, the
    estimator's ``trust`` moves towards 1 − ``error`` / ``change``, the share of the changes that it explains.
    """
    finite = torch.isfinite(source).flatten(1).all(dim=1)[:, None, None, None]
    source, _ = scale_half(torch.where(finite, source, 0))
    looks = Looks(pyramid(source, size), size)
    pixels = lattice(*size, dtype=source.dtype, device=source.device).expand(len(source), -1, -1, -1)
    pairs = draw_pairs(len(source), looks)
    first, second = looks.at(pixels), looks.at(pairs.move(pixels)[0])
    both = torch.cat((first, second))
    sizes, weights = estimator.sizes(change_contrast(both) if both.shape[1] <= IMAGE_CHANNELS else both)
    before, after = sizes.chunk(2)
    weight_before, weight = weights.detach().chunk(2)
    field = lattice(*sizes.shape[1:], dtype=source.dtype, device=source.device).expand(len(source), -1, -1, -1)
    moved, change = pairs.move(field)
    expected = F.grid_sample(before[:, None], 2 * moved - 1, padding_mode="border", align_corners=True)[:, 0] + change
    share = finite[:, 0] * weight / weight.sum(dim=(1, 2), keepdim=True).clamp_min(SOMETHING)
    mean = (weight_before * before).sum() / weight_before.sum().clamp_min(1e-6)
    loss = (share * F.smooth_l1_loss(after, expected, beta=SHARP, reduction="none")).sum(dim=(1, 2)).mean()
    with torch.no_grad():
        error = (share * (after - expected).abs()).sum(dim=(1, 2)).mean()
        nothing = (share * change.abs()).sum(dim=(1, 2)).mean()
        if update_trust:
            estimator.count_explained(error, nothing)
    return SizeLoss(loss + CENTRE * mean.square(), error, nothing)


@dataclass(frozen=True)
class Pairs:
    """Known maps u, one per image: ``maps``, then zooms by ``ratio`` ``(n, 1)`` about ``centre`` ``(n, 2)``."""

    maps: tuple[Map, ...]
    ratio: Tensor
    centre: Tensor

    def move(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return u(p) at ``points`` ``(B, h, w, 2)``, and the change of log size there, ``(B, h, w)``."""
        moved, change, first = [], [], 0
        for m in self.maps:
            here = points[first : first + m.batch].flatten(1, 2)
            moved.append(m(here))
            change.append(-m.local_scale(here).clamp_min(1e-3).log())
            first += m.batch
        here = points[first:].flatten(1, 2)
        moved.append((here - 0.5) / self.ratio[:, None] + self.centre[:, None])
        change.append(self.ratio.log().expand(-1, here.shape[1]))
        shape = points.shape[1:3]
        return torch.cat(moved).unflatten(1, shape), torch.cat(change).unflatten(1, shape)


def draw_pairs(batch: int, looks: Looks) -> Pairs:
    """Draw known maps: a quarter separable, a quarter grid maps, and zooms up to the resolution of the source.

    A source that has no more pixels than a look, such as a feature, leaves no room for zooms: all are maps then.
    """
    device, dtype = looks.source.device, looks.source.dtype
    sides = zip(looks.source.shape[-2:], looks.size, strict=True)
    most = max(1.0, min((have - 1) / max(shown - 1, 1) for have, shown in sides))
    separable, grid = (batch // 4, batch // 4) if most > 1 else (batch // 2, batch - batch // 2)
    drawn = [("separable", SEPARABLE, separable), ("grid", GRID, grid)]
    maps = tuple(
        random_map(count, KNOTS, strength=strength, family=family, dtype=dtype, device=device)
        for family, strength, count in drawn
        if count
    )
    rest = batch - separable - grid
    ratio = torch.exp(torch.rand(rest, 1, dtype=dtype, device=device) * math.log(most))
    room = 1 - 1 / ratio
    centre = 0.5 + (torch.rand(rest, 2, dtype=dtype, device=device) - 0.5) * room
    return Pairs(maps, ratio, centre)


def scale_half(source: Tensor) -> tuple[Tensor, Map | None]:
    """Scale every other image by a random separable map, so that sizes vary more than in the images themselves.

    Return the images and the maps of the scaled ones, numbers 0, 2, 4 …
    """
    count = len(source) // 2
    if not count:
        return source, None
    m = random_map(count, KNOTS, strength=SEPARABLE, family="separable", dtype=source.dtype, device=source.device)
    scaled = source.clone()
    scaled[::2][:count] = unscale(source[::2][:count], m)
    return scaled, m


def change_contrast(looks: Tensor) -> Tensor:
    """Apply a random increasing curve, a power and then a logistic, between each look's darkest and lightest value."""
    low, high = looks.amin(dim=(1, 2, 3), keepdim=True), looks.amax(dim=(1, 2, 3), keepdim=True)

    def draw(least: float, most: float) -> Tensor:
        return least + (most - least) * torch.rand_like(low)

    value = ((looks - low) / (high - low).clamp_min(1e-6)).clamp(1e-6, 1)  # a power has no finite slope at 0
    value = value ** torch.exp(draw(-POWER, POWER))
    steepness, middle = draw(0.01, STEEPNESS), draw(0.2, 0.8)
    curve, first, last = (torch.sigmoid(steepness * (v - middle)) for v in (value, 0.0, 1.0))
    return low + (high - low) * (curve - first) / (last - first)
