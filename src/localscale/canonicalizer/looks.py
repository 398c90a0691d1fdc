"""Looks: the canonical forms S⁻¹(F; l) that a canonicalizer sees through its map.

``WorkingCopy`` samples them from a small copy of the features. ``Looks`` samples them from a pyramid of the features at
full resolution, so that parts that the map enlarges gain detail and parts that it shrinks do not alias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.conventions import lattice, resize
from localscale.maps.base import FamilyMap, Map
from localscale.maps.grid import GridMap
from localscale.warp import unscale

__all__ = ["Looks", "WorkingCopy", "levels_for", "pyramid"]

SPARE_LEVELS = 2  # levels for maps that shrink things, by up to 2²


@dataclass(frozen=True, eq=False)
class WorkingCopy:
    """Looks sampled from ``source`` ``(B, C, h, w)``, a small copy of the features; they have the size of the copy.

    On a CPU ``source`` must be contiguous, as samples are: the look through the identity is ``source`` itself.
    """

    source: Tensor
    sampler: str = "native"

    def __call__(self, m: FamilyMap) -> Tensor:
        """Return the looks ``(B, C, h, w)`` through the maps ``m``."""
        return self.source if _is_identity(m) else unscale(self.source, m, sampler=self.sampler)

    def among(self, images: slice) -> WorkingCopy:
        """Return the looks for some of the images."""
        return WorkingCopy(self.source[images], self.sampler)


def _is_identity(m: FamilyMap) -> bool:
    """Return whether ``m`` is the identity; False where reading it would synchronise the host or break tracing."""
    may_read = m.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return may_read and isinstance(m, GridMap) and not m.moves.any()


def levels_for(source_size: tuple[int, int], size: tuple[int, int]) -> int:
    """Return how many levels of a pyramid looks of ``size`` (h, w) may need, the source of ``source_size`` included."""
    shrinking = max(source_size[0] / size[0], source_size[1] / size[1])
    return 1 + max(0, math.ceil(math.log2(shrinking))) + SPARE_LEVELS


def pyramid(source: Tensor, size: tuple[int, int]) -> tuple[Tensor, ...]:
    """Return ``source`` ``(B, C, H, W)`` and halved copies of it, as many as looks of ``size`` (h, w) may need."""
    levels = [source]
    for _ in range(levels_for((source.shape[-2], source.shape[-1]), size) - 1):
        height, width = (max(1, -(-side // 2)) for side in levels[-1].shape[-2:])
        levels.append(resize(levels[-1], height, width))
    return tuple(levels)


@dataclass(frozen=True, eq=False)
class Looks:
    """Looks of ``size`` (h, w), sampled from ``levels``, the pyramid of a source.

    >>> looks = Looks(pyramid(torch.rand(2, 3, 64, 64), (17, 17)), (17, 17))
    >>> looks(localscale.random_map(2)).shape
    torch.Size([2, 3, 17, 17])
    """

    levels: tuple[Tensor, ...]
    size: tuple[int, int]

    @property
    def source(self) -> Tensor:
        """The features at full resolution, ``(B, C, H, W)``."""
        return self.levels[0]

    def __call__(self, m: Map) -> Tensor:
        """Return the looks ``(B, C, h, w)`` through the maps ``m``."""
        pixels = lattice(*self.size, dtype=self.source.dtype, device=self.source.device)
        return self.at(pixels + m.displacement_field(*self.size))

    def at(self, points: Tensor) -> Tensor:
        """Return looks sampled at ``points`` ``(B, h, w, 2)``, interpolated between the two nearest levels."""
        level = self._level(points).unsqueeze(1)
        grid, found = 2 * points - 1, torch.zeros((), dtype=points.dtype, device=points.device)
        for number, values in enumerate(self.levels):
            read = F.grid_sample(values, grid, mode="bilinear", padding_mode="border", align_corners=True)
            found = found + (1 - (level - number).abs()).clamp_min(0) * read
        return found

    def _level(self, points: Tensor) -> Tensor:
        """Return log₂ of the source pixels per look pixel, ``(B, h, w)``, from the area between neighbouring points."""
        height, width = self.source.shape[-2:]
        across, down = _differences(points, axis=0), _differences(points, axis=1)
        area = across[..., 0] * down[..., 1] - across[..., 1] * down[..., 0]
        pixels = area * ((width - 1) * (height - 1))
        return (0.5 * torch.log2(pixels.clamp_min(1e-6))).clamp(0, len(self.levels) - 1)

    def among(self, images: slice) -> Looks:
        """Return the looks for some of the images."""
        return Looks(tuple(values[images] for values in self.levels), self.size)


def _differences(points: Tensor, axis: int) -> Tensor:
    """Return the steps from ``points`` ``(B, h, w, 2)`` to their neighbours along ``axis``, 0 for x and 1 for y.

    The last point has the step of the one before it. A point without a neighbour stands for a whole side.
    """
    dim = 2 - axis
    if points.shape[dim] == 1:
        whole = torch.ones_like(points[..., 0]), torch.zeros_like(points[..., 0])
        return torch.stack(whole if axis == 0 else whole[::-1], dim=-1)
    steps = points.diff(dim=dim)
    return torch.cat((steps, steps.narrow(dim, steps.shape[dim] - 1, 1)), dim=dim)
