"""Controls for what a canonicalizer does besides canonicalizing: magnify the centre, and warp at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from localscale.conventions import compute_dtype, stretch
from localscale.errors import ConfigError
from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.methods.method import Criterion, Method, backbone_size, check_mode
from localscale.lab.randomness import Draws
from localscale.maps.monotone import MonotoneMap
from localscale.maps.separable import SeparableMap
from localscale.warp import scale, unscale

__all__ = ["CentreZoom", "CentreZoomed", "RandomWarp", "centre_map"]


def centre_map(magnification: float, *, dtype: torch.dtype, device: torch.device | str | None = None) -> SeparableMap:
    """Return the map l whose ``unscale`` enlarges the middle half of each axis by ``magnification``.

    l(x) = ½ + (x − ½) / magnification for |x − ½| ≤ ¼, and straight lines from there to the sides, so everything stays
    in the image. What is at the sides becomes smaller, by 2 − 1 / magnification along each axis.

    >>> centre_map(2.0, dtype=torch.float32).x.values
    tensor([[0.0000, 0.3750, 0.5000, 0.6250, 1.0000]])
    """
    moved = 0.25 - 0.25 / magnification
    displacement = torch.zeros(1, 5, dtype=dtype, device=device)
    displacement[:, 1].fill_(moved)  # an assignment would copy from the host, which a CUDA graph cannot record
    displacement[:, 3].fill_(-moved)
    axis = MonotoneMap.from_displacements(displacement)
    return SeparableMap(axis, axis)


class CentreZoomed(nn.Module):
    """A backbone that sees the middle of each image enlarged, at test time as well; it has no weights of its own.

    >>> CentreZoomed(nn.Conv2d(3, 5, 1), 2.0, mode="equivariant")(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 5, 8, 8])
    """

    def __init__(
        self, base: nn.Module, magnification: float, *, mode: str = "invariant", size: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.base, self.magnification, self.mode, self.size = base, magnification, mode, size

    def forward(self, images: Tensor) -> Tensor:
        m = centre_map(self.magnification, dtype=compute_dtype(images.dtype), device=images.device)
        answer = self.base(unscale(images, m, size=self.size))
        if self.mode == "invariant":
            return answer
        return scale(answer if self.size is None else stretch(answer, images.shape[-2], images.shape[-1]), m)


@dataclass(frozen=True)
class CentreZoom(Method):
    """A fixed magnification of the image's centre: what a canonicalizer gains by enlarging whatever is there."""

    magnification: float = 1.5
    """Factor by which the middle half of each axis is enlarged; 1 gives the backbone itself."""
    mode: Literal["invariant", "equivariant"] = "invariant"
    """equivariant scales the output back, for segmentation; invariant does not, for classification."""

    def check(self) -> None:
        if not 0.5 < self.magnification < float("inf"):
            raise ConfigError(f"--method.magnification is {self.magnification}; expected more than 0.5, such as 1.5")

    def check_answers(self, *, dense: bool) -> None:
        check_mode(self.mode, dense=dense)

    def build(
        self,
        backbone: nn.Module,
        *,
        input_size: tuple[int, int, int] | None = None,
        source_size: tuple[int, int] | None = None,
    ) -> CentreZoomed:
        size = None if source_size is None else backbone_size(backbone, input_size)
        return CentreZoomed(backbone, self.magnification, mode=self.mode, size=size)


@dataclass(frozen=True)
class RandomWarp(Method):
    """Random maps as strong as a canonicalizer's in training, and none at test time: what warps alone regularise.

    They come on top of the augmentation that every row shares. ``displacement`` in the log of a run is the mean one of
    these maps, as ``input/displacement`` is that of a canonicalizer; choose the strength that makes them equal.
    """

    scaling: RandomScaling = field(default_factory=RandomScaling)
    """Random scaling of the training images, and of their masks."""

    def check(self) -> None:
        self.scaling.check()

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        u = self.scaling.maps(draws, "warp")
        if labels.dim() == 3:
            labels = unscale(labels, u, mode="nearest")
        task = criterion(model(unscale(images, u)), labels)
        return {"loss": task, "task": task, "displacement": u.mean_displacement().mean()}
