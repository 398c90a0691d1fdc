"""The size network, which estimates the local sizes of things in a look and the map that makes them equal.

With ``update="compose"`` it gives the size equilibrium: l ← l∘δ, where δ is the grid map nearest to a similarity of
ratio T = exp(s − s₀), s is the log size, and each position has a weight. At the equilibrium, all things with a large
weight have the log size s₀.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localscale.canonicalizer.interfaces import NetworkSettings
from localscale.canonicalizer.network import FEATURE_SIDE, IMAGE_CHANNELS, convolve, strides_of
from localscale.canonicalizer.trunks import COLOURS, TRUNKS, EfficientNetLite0
from localscale.conventions import coordinates, lattice, resize
from localscale.errors import ConfigError, ShapeError, near_misses
from localscale.maps.grid import GridMap
from localscale.maps.similarity import SOFTEST, STIFFEST, map_from_scales
from localscale.registry import check_types

__all__ = ["WEIGHTS", "SizeEstimator", "SizeNetwork", "edge_weight"]

LARGEST = 2.0  # log sizes lie within ±2 of the mean log size of the images learned from
TRUNK_SIDE = 160  # default resolution with a trunk, in pixels
FLAT = 0.05  # contrast of every channel of a look, in units of the image's values, below which it shows nothing
CHANGED = 1e-3  # mean change of log size up to which a batch shows no change
PACE = 0.02  # fraction by which a batch moves the trust
HALF_STRENGTH = 0.05  # mean edge strength, in units of the image's values, whose weight is ½


def edge_weight(looks: Tensor, size: tuple[int, int], *, half: float = HALF_STRENGTH) -> Tensor:
    """Return g/(g + ``half``), where g is the mean edge strength of looks ``(B, C, h, w)`` on a grid of ``size``.

    >>> edge_weight(torch.ones(1, 3, 16, 16), (2, 2)).round(decimals=3)
    tensor([[[0., 0.],
             [0., 0.]]])
    """
    across, down = F.pad(looks.diff(dim=3), (0, 1)), F.pad(looks.diff(dim=2), (0, 0, 0, 1))
    strength = (across.square() + down.square()).mean(dim=1, keepdim=True).add(1e-12).sqrt() - 1e-6
    strength = resize(strength, *size)[:, 0].clamp_min(0)
    return strength / (strength + half)


WEIGHTS: dict[str, Callable[[Tensor, tuple[int, int]], Tensor]] = {"edges": edge_weight}


@dataclass(frozen=True)
class SizeNetwork(NetworkSettings):
    """Three convolutions and residual blocks that estimate log size and weight on a coarse grid.

    Args:
        width: channels of the residual blocks. The convolutions before them have 32 and 64, or fewer if it is small.
        blocks: number of residual blocks.
        resolution: longest side of a look, in pixels; ``None`` is 113 for images and 28 for features. A look has at
            most half as many pixels along a side as the image, so that enlarged parts gain detail.
        target: s₀, the log size that things are scaled to, relative to the mean of the images learned from: 0.5 makes
            things 1.6 times as large as they are on average.
        background: κ of ``ls.map_from_scales``, the stiffness where the weight is 0.
        shear: β of ``ls.map_from_scales``, the weight of keeping lines straight.
        settling: least-squares maps composed for each look. More of them need fewer looks, which cost more.
        weight: the importance of each position: ``"edges"``, ``"learned"``, or the name of a function entered in
            ``WEIGHTS``, which takes looks ``(B, C, h, w)`` and a size (h′, w′) to weights ``(B, h′, w′)`` in [0, 1].
            Where these are negative or not finite, they count as 0.
            ``learn_sizes`` teaches learned weights from masks or boxes.
        sure: weights up to this one count as 0, and those above are stretched to [0, 1]. Weights move an image by
            their ratios, so without it weights that are small everywhere move it, too.
        most: the largest factor by which one step magnifies or shrinks a thing.
        shrink: whether things larger than the target are made smaller. Without it only things smaller than the target
            are magnified, and the others shrink as far as these need their place.
        trunk: ``None``, or the name of a classifier whose first stages take the place of the convolutions, for colour
            images and learned weights: ``"efficientnet_lite0"``. Looks are then as large as ``resolution`` (160)
            allows, and ``blocks`` does not count. Its weights are random; ``ls.adapt(model, "photographs")`` has
            trained ones.
        absolute: whether log sizes, and the target, are relative to the whole frame, not to the mean of the things
            learned from: −0.7 is half the frame's side. Such sizes are learned from masks or boxes only.
    """

    full_resolution: ClassVar[bool] = True

    width: int = 64
    blocks: int = 2
    resolution: int | None = None
    target: float = 0.5
    background: float = 0.02
    shear: float = 1.0
    settling: int = 1
    weight: str = "edges"
    sure: float = 0.0
    most: float = math.e
    shrink: bool = True
    trunk: str | None = None
    absolute: bool = False

    def __post_init__(self) -> None:
        check_types(self, but=("weight",))  # which has an error of its own
        if self.width < 8 or self.width % 8:
            raise ConfigError(f"width is {self.width}; expected a positive multiple of 8")
        if self.blocks < 0:
            raise ConfigError(f"blocks is {self.blocks}; expected 0 or more")
        if self.settling < 1:
            raise ConfigError(f"settling is {self.settling}; expected at least 1")
        if self.resolution is not None and self.resolution < 8:
            raise ConfigError(f"resolution is {self.resolution}; expected at least 8 pixels")
        if not abs(self.target) < LARGEST:
            raise ConfigError(f"target is {self.target}; expected a log size between −{LARGEST:g} and {LARGEST:g}")
        for name in ("background", "shear"):
            if not SOFTEST <= getattr(self, name) <= STIFFEST:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; expected a positive number from {SOFTEST:g} to {STIFFEST:g}"
                )
        if not 0 <= self.sure < 1:
            raise ConfigError(f"sure is {self.sure}; expected a weight from 0 to below 1")
        if not 1 < self.most < math.inf:
            raise ConfigError(f"most is {self.most}; expected a factor above 1")
        if not isinstance(self.weight, str):
            raise ConfigError(
                f"weight is a {type(self.weight).__name__}; expected a name. Enter a function of your own in "
                'localscale.canonicalizer.sizes.WEIGHTS, as in WEIGHTS["mine"] = function, and pass weight="mine"'
            )
        if self.weight != "learned" and self.weight not in WEIGHTS:
            raise ConfigError(f"weight is {self.weight!r}: {near_misses(self.weight, ['learned', *WEIGHTS])}")
        if self.trunk is not None and self.trunk not in TRUNKS:
            raise ConfigError(f"trunk is {self.trunk!r}: {near_misses(str(self.trunk), TRUNKS)}; or None")
        for name in ("trunk", "absolute"):
            if getattr(self, name) and self.weight != "learned":
                raise ConfigError(
                    f'{name} is {getattr(self, name)!r} and weight is {self.weight!r}; use weight="learned"'
                )

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest excess s − s₀ that a step corrects; smaller things have a negative excess."""
        return -math.log(self.most), math.log(self.most) if self.shrink else 0.0

    def resolution_for(self, in_channels: int) -> int:
        if self.resolution is not None:
            return self.resolution
        if self.trunk is not None:
            return TRUNK_SIDE
        return 113 if in_channels <= IMAGE_CHANNELS else FEATURE_SIDE

    def map_network(
        self, in_channels: int, knots: tuple[int, int], *, family: str, temperature: float, guard: float | None
    ) -> nn.Module:
        if self.trunk is not None and in_channels != COLOURS:
            raise ConfigError(
                f"trunk is {self.trunk!r}, which reads images of {COLOURS} channels, and the canonicalizer sees "
                f'{in_channels}; use trunk=None, or the site "input" of a model for colour images'
            )
        return SizeEstimator(in_channels, knots, self, guard)


class SizeEstimator(nn.Module):
    """Estimate log sizes and weights in looks ``(B, C, h, w)``, on a coarse grid, and the maps that equalise the sizes.

    ``trust``, between 0 and 1, is the share of size changes that the network explained while it learned. Each step is
    multiplied by it. It starts at 0, so an untrained network returns the identity.

    With learned weights, ``mean_size`` is the mean log size of the known things learned from, as a fraction of the
    frame, and ``things`` their number; estimated log sizes are relative to this mean. It stays 0 with ``absolute``.
    """

    trust: Tensor
    mean_size: Tensor
    things: Tensor

    def __init__(self, in_channels: int, knots: tuple[int, int], settings: SizeNetwork, guard: float | None) -> None:
        super().__init__()
        self.knots, self.settings, self.guard = knots, settings, guard
        self.trunk: EfficientNetLite0 | None = None
        if settings.trunk is None:
            widths = (in_channels, min(32, settings.width), min(64, 2 * settings.width), settings.width)
            self.down: Any = nn.ModuleList(_Convolution(widths[i], widths[i + 1]) for i in range(3))
            self.blocks = nn.Sequential(*(_Block(settings.width) for _ in range(settings.blocks)))
            self.norm = _Norm(settings.width)
            self.head = nn.Conv2d(settings.width, 2 if settings.weight == "learned" else 1, kernel_size=1)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]
        else:
            self.trunk = TRUNKS[settings.trunk](settings.width, absolute=settings.absolute)
        self.register_buffer("trust", torch.zeros(()))
        if settings.weight == "learned":
            self.register_buffer("mean_size", torch.zeros(()))
            self.register_buffer("things", torch.zeros(()))

    def forward(self, looks: Tensor) -> GridMap:
        """Return the map δ that brings the log sizes estimated in ``looks`` to the target where the weight is large.

        One least-squares map does so approximately, so ``settling`` of them are composed. The later ones need no other
        look: through δ, the thing at p has the log size s(δ(p)) − ½ log det ∂δ(p).
        """
        size, weight = self.sizes(looks)
        found = self._correct(size, weight)
        points = (
            lattice(*size.shape[1:], dtype=size.dtype, device=size.device).flatten(0, 1).expand(size.shape[0], -1, -1)
        )
        for _ in range(self.settings.settling - 1):
            moved, change = found(points), found.local_scale(points).log().view_as(size)
            seen = torch.stack((size, weight), dim=1)
            grid = 2 * moved.view(*size.shape, 2) - 1
            read = F.grid_sample(seen, grid, mode="bilinear", padding_mode="border", align_corners=True)
            found = found.compose_resampled(self._correct(read[:, 0] - change, read[:, 1]), guard=self.guard)
        lost = 0 * looks.sum(
            dim=(1, 2, 3), dtype=size.dtype
        )  # NaN if a look is not finite, so that its image does not converge
        return GridMap(found.displacements + lost[:, None, None, None])

    def _correct(self, size: Tensor, weight: Tensor) -> GridMap:
        """Return the map nearest to a similarity of ratio exp(s − s₀) where the weight is large."""
        excess = (size - self.settings.target).clamp(*self.settings.range)
        trust = self.trust.to(size.dtype, copy=True)  # a size loss may change it before this is differentiated
        return map_from_scales(
            torch.exp(trust * excess),
            weight,
            knots=self.knots,
            background=self.settings.background,
            shear=self.settings.shear,
            guard=self.guard,
        )

    def sizes(self, looks: Tensor) -> tuple[Tensor, Tensor]:
        """Return log sizes and weights, both ``(B, h′, w′)``; their corners lie on the corners of the looks."""
        size, weight = self.estimates(looks)
        if self.settings.weight == "learned":
            contrast = (looks.amax(dim=(2, 3)) - looks.amin(dim=(2, 3))).amax(dim=1)
            weight = torch.sigmoid(weight) * (contrast > FLAT).to(weight.dtype)[:, None, None]
        return size, self.above_sure(weight)

    def estimates(self, looks: Tensor) -> tuple[Tensor, Tensor]:
        """Return log sizes and, if weights are learned, their logits; otherwise the weights as they are."""
        if self.trunk is not None:
            found = self.trunk(looks)
            return found[:, 0], found[:, 1]
        x, strides = looks, strides_of(looks.shape[-2], looks.shape[-1], len(self.down))
        for layer, stride in zip(self.down, strides, strict=True):
            x = F.gelu(layer(x, stride))
        x = F.gelu(self.norm(self.blocks(x)))
        raw = convolve(x, self.head.weight.to(x.dtype), self.head.bias.to(x.dtype))  # type: ignore[union-attr]
        raw = _to_corners(raw, looks.shape[-2:], math.prod(strides))
        size = LARGEST * torch.tanh(raw[:, 0] / LARGEST)
        if self.settings.weight == "learned":
            return size, raw[:, 1]
        return size, self._given_weight(looks, size)

    def _given_weight(self, looks: Tensor, size: Tensor) -> Tensor:
        """Return the weights of the function in ``WEIGHTS``, in the shape and precision of ``size`` ``(B, h′, w′)``."""
        name = self.settings.weight
        weight = WEIGHTS[name](looks, (size.shape[-2], size.shape[-1]))
        if not isinstance(weight, Tensor) or weight.shape != size.shape:
            came = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
            raise ShapeError(f"WEIGHTS[{name!r}] returned {came}; expected a tensor of shape {tuple(size.shape)}")
        weight = weight.to(size)
        return torch.where(torch.isfinite(weight) & (weight > 0), weight, 0)

    def above_sure(self, weight: Tensor) -> Tensor:
        """Return weights in which those up to ``sure`` are 0."""
        sure = self.settings.sure
        return ((weight - sure) / (1 - sure)).clamp_min(0) if sure else weight

    def count_explained(self, error: Tensor, change: Tensor) -> None:
        """Move ``trust`` towards the share of the changes of log size that a batch explained, 1 − error / change.

        A batch in which nothing changed its size, such as one of constant images, explains nothing and moves nothing.
        """
        explained = (1 - error / change.clamp_min(CHANGED)).clamp(0, 1)
        self.trust.add_(torch.where(change > CHANGED, PACE * (explained - self.trust), 0))

    def count_things(self, mean: Tensor, number: Tensor) -> None:
        """Take ``number`` more things of a mean log size ``mean`` into the mean of all things."""
        self.things += number.to(self.things)
        if self.settings.absolute:
            return
        self.mean_size.lerp_(mean.to(self.mean_size), number / self.things.clamp_min(1))


class _Convolution(nn.Conv2d):
    """A 3 × 3 convolution that runs in its input's precision, with a stride given at the call."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after, kernel_size=3, padding=1)

    def forward(self, x: Tensor, stride: int = 1) -> Tensor:
        assert self.bias is not None
        return convolve(x, self.weight.to(x.dtype), self.bias.to(x.dtype), stride=stride, padding=1)


class _Norm(nn.GroupNorm):
    """A group norm that runs in its input's precision."""

    def __init__(self, width: int) -> None:
        super().__init__(8, width)

    def forward(self, x: Tensor) -> Tensor:
        # F.group_norm refuses a single image of one pixel with one channel per group, whose norm is 0.
        return torch.group_norm(x, self.num_groups, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class _Block(nn.Module):
    """A residual block of two convolutions, each after a norm and a GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms: Any = nn.ModuleList(_Norm(width) for _ in range(2))
        self.convolutions: Any = nn.ModuleList(_Convolution(width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y = convolution(F.gelu(norm(y)))
        return x + y


def _to_corners(field: Tensor, size: torch.Size, spacing: int) -> Tensor:
    """Resample a field to the image's corners; its samples lie ``spacing`` pixels apart, from the first pixel on."""
    if spacing == 1:
        return field
    rows, columns = (_reading(count, side, spacing, field) for count, side in zip(field.shape[-2:], size, strict=True))
    return rows @ field @ columns.T


def _reading(count: int, side: int, spacing: int, like: Tensor) -> Tensor:
    """Return weights that interpolate samples ``spacing`` pixels apart at ``count`` even places of ``side`` pixels."""
    places = coordinates(count, dtype=like.dtype, device=like.device) * ((side - 1) / spacing)
    samples = torch.arange(count, dtype=like.dtype, device=like.device)
    return (1 - (places.clamp_max(count - 1)[:, None] - samples).abs()).clamp_min(0)
