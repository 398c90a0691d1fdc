"""Canon: try every configuration of a finite set and keep the one of least energy (paper, Eq. cann_opt).

The paper says how many configurations there are, that the identity is one of them, and that the energy is a CNN of
three layers. It does not say how the energy learns. With the task's loss alone, through the argmin, energies choose
badly: at first all are equal, so the least one is an accident, which changes at every step, and the backbone is trained
on scrambled images. So here the energies first learn to undo known configurations, which needs no labels, and are then
frozen while the backbone is trained. Both are ours. The prior behind them, that training images are canonical, is
that of Panigrahi and Mondal (2024), whom the paper cites for canonicalization by energies.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localscale.conventions import compute_dtype, resize, stretch
from localscale.errors import ConfigError
from localscale.lab.methods.energies import learn_energies
from localscale.lab.methods.method import Method, backbone_size, check_mode
from localscale.maps.monotone import MonotoneMap, displacements_from_logits
from localscale.maps.separable import SeparableMap
from localscale.warp import scale, unscale

__all__ = ["Canon", "DiscreteCanonicalizer", "EnergyCNN", "profiles"]

logger = logging.getLogger(__name__)


def profiles(count: int, knots: int, strength: float, device: torch.device | str | None = None) -> Tensor:
    """Return ``count`` raw parameter vectors of one axis, ``(count, knots − 1)``: the identity, then ± cosines.

    The first cosine enlarges one side at the cost of the other, the second one the middle, and so on.

    >>> profiles(3, 4, 1.0)[0]
    tensor([0., 0., 0.])
    """
    place = (torch.arange(knots - 1, device=device) + 0.5) / (knots - 1)
    waves = [strength * sign * torch.cos(math.pi * k * place) for k in range(1, count) for sign in (1, -1)]
    return torch.stack([torch.zeros_like(place), *waves])[:count]


class EnergyCNN(nn.Module):
    """Three strided convolutions and a mean: images ``(B, C, H, W)`` to energies ``(B,)``."""

    def __init__(self, in_channels: int, channels: tuple[int, int, int] = (32, 64, 64)) -> None:
        super().__init__()
        widths = (in_channels, *channels)
        self.layers = nn.ModuleList(nn.Conv2d(widths[i], widths[i + 1], 3, stride=2, padding=1) for i in range(3))
        self.to_energy = nn.Linear(channels[-1], 1, bias=False)
        nn.init.zeros_(self.to_energy.weight)  # equal energies at first choose the identity

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.to_energy(x.mean(dim=(2, 3))).squeeze(1)


class DiscreteCanonicalizer(nn.Module):
    """A backbone M that sees the configuration of least energy: M(S⁻¹(I; Φ*)) with Φ* = argmin E(S⁻¹(I; Φ)).

    The identity is one of the configurations.

    With ``mode="equivariant"`` the answer, ``(B, K, H, W)``, is scaled back: S(M(S⁻¹(I; Φ*)); Φ*).

    The energies are computed on a small copy of each image. If the energies are trained, the argmin uses a
    straight-through gradient: the forward pass takes the map of least energy, the backward pass differentiates the
    softmax-weighted mean of all maps.

    ``size`` is the (height, width) of the canonical forms, if the images are larger.

    >>> model = DiscreteCanonicalizer(nn.Flatten(), channels=3, configurations=4)
    >>> image = torch.rand(2, 3, 16, 16)
    >>> torch.equal(model(image), image.flatten(1))
    True
    """

    def __init__(
        self,
        base: nn.Module,
        *,
        channels: int = 3,
        configurations: int = 64,
        knots: int = 6,
        strength: float = 1.0,
        resolution: int = 56,
        temperature: float = 1.0,
        mode: str = "invariant",
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        check_configurations(configurations, knots, strength)
        self.profile = (math.isqrt(configurations), knots, strength)
        self.base, self.energy = base, EnergyCNN(channels)
        self.resolution, self.temperature, self.mode, self.size = resolution, temperature, mode, size

    def _offsets(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return all maps' displacements along x and y, ``(K, knots)``; a buffer would be rounded by ``.half()``."""
        axis = displacements_from_logits(profiles(*self.profile, device=like.device)).to(compute_dtype(like.dtype))
        count = len(axis)
        return axis.repeat_interleave(count, dim=0), axis.repeat(count, 1)

    def configurations(self) -> SeparableMap:
        """Return all maps as one batch; the first is the identity."""
        return _separable(*self._offsets(self.energy.to_energy.weight))

    def energies(self, images: Tensor) -> Tensor:
        """Return E(S⁻¹(I; Φ)) for every image and configuration, ``(B, K)``."""
        x, y = self._offsets(images)
        batch, count = len(images), len(x)
        maps = _separable(x.repeat(batch, 1), y.repeat(batch, 1))
        tried = unscale(self.small_copy(images).repeat_interleave(count, dim=0), maps)
        return self.energy(tried).view(batch, count)

    def small_copy(self, images: Tensor) -> Tensor:
        """Return the images on which energies are computed, whose longer side has ``resolution`` pixels at most."""
        shrink = min(1.0, self.resolution / max(images.shape[-2:]))
        return resize(images, *(max(1, round(side * shrink)) for side in images.shape[-2:]))

    def choose(self, images: Tensor) -> SeparableMap:
        """Return the map of least energy for each image, with the gradient of the softmax."""
        soft = (-self.energies(images) / self.temperature).to(compute_dtype(images.dtype)).softmax(1)
        hard = F.one_hot(soft.argmax(1), soft.shape[1]).to(soft.dtype)
        weights = (hard + (soft - soft.detach())).unsqueeze(-1)
        # Sums instead of matrix products, because autocast would compute those in half precision.
        x, y = self._offsets(images)
        return _separable((weights * x).sum(1), (weights * y).sum(1))

    def forward(self, images: Tensor) -> Tensor:
        m = self.choose(images)
        answer = self.base(unscale(images, m, size=self.size))
        if self.mode == "invariant":
            return answer
        return scale(answer if self.size is None else stretch(answer, images.shape[-2], images.shape[-1]), m)


def check_configurations(configurations: int, knots: int, strength: float) -> None:
    """Raise ``ConfigError`` unless the settings give distinct maps."""
    per_axis = math.isqrt(max(configurations, 0))
    if per_axis**2 != configurations or per_axis < 1:
        raise ConfigError(
            f"{configurations} configurations are not a square; expected 25, 64 …, because each map of "
            "x is combined with each map of y"
        )
    if per_axis > 2 * knots - 3:  # the identity, and ± cosines of at most knots − 2 half periods
        raise ConfigError(
            f"{configurations} configurations need {per_axis} different maps of an axis, and {knots} knots allow "
            f"{max(2 * knots - 3, 0)}; expected at least {per_axis // 2 + 2} knots"
        )
    if not 0 < strength < math.inf:
        raise ConfigError(f"configurations have strength {strength}; expected a positive number")


def _separable(displacements_x: Tensor, displacements_y: Tensor) -> SeparableMap:
    return SeparableMap(
        MonotoneMap.from_displacements(displacements_x), MonotoneMap.from_displacements(displacements_y)
    )


@dataclass(frozen=True)
class Canon(Method):
    """Vanilla canonicalization of the image: a finite set of maps and a learned energy (App. A1)."""

    configurations: int = 64
    """Number of maps that are tried, a square number."""
    canon_strength: float = 0.5
    """Strength of the maps. It must not be larger than that of the scalings in the images, which the maps undo."""
    canon_knots: int = 6
    """Control points of a map along each axis."""
    mode: Literal["invariant", "equivariant"] = "invariant"
    """equivariant scales the output back, for segmentation; invariant does not, for classification."""
    learning_steps: int = 1000
    """Steps in which the energies learn to undo known configurations, before the backbone is trained."""
    tuned: bool = False
    """Let the task train the energies as well, through a straight-through gradient; otherwise they are frozen."""

    prepared: ClassVar[str] = "learned_energies"

    def check(self) -> None:
        check_configurations(self.configurations, self.canon_knots, self.canon_strength)
        if self.learning_steps < 0:
            raise ConfigError(f"--method.learning-steps is {self.learning_steps}; expected 0 or more")
        if not (self.learning_steps or self.tuned):
            raise ConfigError(
                "nothing trains the energies: --method.learning-steps is 0, and the task does not tune them; raise "
                "--method.learning-steps (default 1000), or add --method.tuned"
            )

    def check_answers(self, *, dense: bool) -> None:
        check_mode(self.mode, dense=dense)

    def build(
        self,
        backbone: nn.Module,
        *,
        input_size: tuple[int, int, int] | None = None,
        source_size: tuple[int, int] | None = None,
    ) -> nn.Module:
        model = DiscreteCanonicalizer(
            backbone,
            channels=3 if input_size is None else input_size[0],
            configurations=self.configurations,
            knots=self.canon_knots,
            strength=self.canon_strength,
            mode=self.mode,
            size=None if source_size is None else backbone_size(backbone, input_size),
        )
        model.energy.requires_grad_(self.tuned)
        return model

    def prepare(
        self, model: nn.Module, batches: Iterable[Any], *, progress: bool, checkpoint: Path | None = None
    ) -> dict[str, Any] | None:
        assert isinstance(model, DiscreteCanonicalizer)
        if not self.learning_steps:
            return None
        model.energy.requires_grad_(True)
        found = learn_energies(model, batches, steps=self.learning_steps, progress=progress)
        model.energy.requires_grad_(self.tuned)
        if found.undone < 2 * found.chance:
            logger.warning(
                "the energies undo %.1f %% of the known configurations, and chance %.1f %%: raise "
                "--method.learning-steps %d, or take fewer or stronger configurations",
                100 * found.undone,
                100 * found.chance,
                self.learning_steps,
            )
        return dataclasses.asdict(found)
