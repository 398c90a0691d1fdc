"""One step of the equilibrium, three ways.

An update takes the current map l and returns the next; ``observe(l)`` is the canonical form S⁻¹(F; l).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from localscale.maps.grid import GridMap
from localscale.maps.separable import SeparableMap

if TYPE_CHECKING:
    from localscale.canonicalizer.config import DECConfig

__all__ = ["UPDATES", "Update", "compose", "direct", "gradient"]

# Raw parameters of the gradient update stay within ±4, or increments would be lost to rounding. A map that rests there
# is an equilibrium by the bound, not by a vanishing gradient.
MOST = 4.0
FamilyMap = GridMap | SeparableMap
Observe = Callable[[FamilyMap], Tensor]
Network = Callable[[Tensor], Any]  # features to a map, or to energies
Update = Callable[[FamilyMap, Observe, Network, "DECConfig"], FamilyMap]


def direct(m: FamilyMap, observe: Observe, network: Network, config: DECConfig) -> FamilyMap:
    """Φ⁺ = H_ψ(S⁻¹(F; Φ)): the paper's DEC."""
    return network(observe(m))


def compose(m: FamilyMap, observe: Observe, network: Network, config: DECConfig) -> FamilyMap:
    """l⁺ = l∘δ with δ = H_ψ(S⁻¹(F; l)).

    If F′ = S(F; g), then g∘l sees the canonical form of F′ that l sees of F, and gets the same δ: an equilibrium l of F
    makes g∘l one of F′. That is h(S(F; g)) = g·h(F), up to re-sampling l∘δ on the knots and as long as no map is so
    strong that the guard must shrink it.
    """
    return m.compose_resampled(network(observe(m)), guard=config.guard)


def gradient(m: FamilyMap, observe: Observe, network: Network, config: DECConfig) -> FamilyMap:
    """Φ⁺ = Φ − η ∇_Φ E_ψ(S⁻¹(F; Φ)), Eq. deq_cano; Φ are the raw parameters that give l."""

    def energy(logits_x: Tensor, logits_y: Tensor) -> Tensor:
        return network(observe(type(m).from_logits(logits_x, logits_y, guard=config.guard))).sum()

    logits = m.logits()
    slopes = torch.func.grad(energy, argnums=(0, 1))(*logits)
    moved = [(value - config.step_size * slope).clamp(-MOST, MOST) for value, slope in zip(logits, slopes, strict=True)]
    return type(m).from_logits(moved[0], moved[1], guard=config.guard)


UPDATES: dict[str, Update] = {"direct": direct, "gradient": gradient, "compose": compose}
