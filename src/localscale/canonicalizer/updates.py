"""The updates Φ⁺ of a canonicalizer's equilibrium, and their registry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from localscale.canonicalizer.interfaces import Look, Network, Update
from localscale.errors import ConfigError
from localscale.maps.base import FamilyMap

if TYPE_CHECKING:
    from localscale.canonicalizer.config import DECConfig

__all__ = ["UPDATES", "Compose", "Descent", "Direct"]

# Descent keeps raw parameters within ±4; beyond that, float32 rounds the smallest increments away. A map that rests on
# this bound is an equilibrium because of the bound, not because the energy's gradient vanishes.
MOST = 4.0


@dataclass(frozen=True)
class Direct(Update):
    """Replace the map by the network's prediction, Φ⁺ = H_ψ(S⁻¹(F; Φ)): the paper's DEC."""

    def step(self, m: FamilyMap, look: Look, network: Network, guard: float | None) -> FamilyMap:
        return network(look(m))


@dataclass(frozen=True)
class Compose(Update):
    """Correct the map by the network's prediction: l⁺ = l∘δ with δ = H_ψ(S⁻¹(F; l)).

    Let F′ = S(F; g). Then S⁻¹(F′; g∘l) = S⁻¹(F; l), so both give the same δ: if l is an equilibrium of F, then g∘l is
    one of F′. That is h(S(F; g)) = g·h(F). It holds up to re-sampling l∘δ on the knots, and while the guard does not
    shrink a map.
    """

    def step(self, m: FamilyMap, look: Look, network: Network, guard: float | None) -> FamilyMap:
        return m.compose_resampled(network(look(m)), guard=guard)


@dataclass(frozen=True)
class Descent(Update):
    """Descend on a learned energy: Φ⁺ = Φ − η ∇_Φ E_ψ(S⁻¹(F; Φ)) (paper, Eq. deq_cano).

    Φ are the raw parameters of the map, and η is ``step_size``. With unrolled gradients it is the paper's *Optim*.
    """

    derivatives: ClassVar[int] = 1
    step_size: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.step_size < math.inf:
            raise ConfigError(f"step_size is {self.step_size}; expected a finite number, 0 or more")

    def build_network(self, config: DECConfig, in_channels: int, knots: tuple[int, int]) -> nn.Module:
        return config.network.energy_network(in_channels)

    def step(self, m: FamilyMap, look: Look, network: Network, guard: float | None) -> FamilyMap:
        def energy(logits_x: Tensor, logits_y: Tensor) -> Tensor:
            return network(look(type(m).from_logits(logits_x, logits_y, guard=guard))).sum()

        logits = m.logits()
        slopes = torch.func.grad(energy, argnums=(0, 1))(*logits)
        moved = [(raw - self.step_size * slope).clamp(-MOST, MOST) for raw, slope in zip(logits, slopes, strict=True)]
        return type(m).from_logits(moved[0], moved[1], guard=guard)


UPDATES: dict[str, type[Update]] = {"direct": Direct, "compose": Compose, "descent": Descent}
