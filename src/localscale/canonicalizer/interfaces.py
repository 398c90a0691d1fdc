"""The two interfaces of a canonicalizer: settings that build its network, and the update that uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from localscale.errors import ConfigError
from localscale.maps.base import FamilyMap
from localscale.registry import Checked

if TYPE_CHECKING:
    from localscale.canonicalizer.config import DECConfig

__all__ = ["Look", "Network", "NetworkSettings", "Update"]

Look = Callable[[FamilyMap], Tensor]
Network = Callable[[Tensor], Any]


class NetworkSettings(Checked, ABC):
    """Settings of a canonicalizer's network, a frozen dataclass that builds the network's modules.

    If ``full_resolution`` is true, looks are sampled from the features themselves, not from the small working copy.
    """

    full_resolution: ClassVar[bool] = False

    @abstractmethod
    def resolution_for(self, in_channels: int) -> int:
        """Return the longest side of the working copy, in pixels, for features with ``in_channels`` channels."""

    @abstractmethod
    def map_network(
        self, in_channels: int, knots: tuple[int, int], *, family: str, temperature: float, guard: float | None
    ) -> nn.Module:
        """Build a module from looks ``(B, C, h, w)`` to maps; at initialisation every map is the identity."""

    def energy_network(self, in_channels: int) -> nn.Module:
        """Build a module from looks ``(B, C, h, w)`` to energies ``(B,)``; at initialisation all are equal."""
        raise ConfigError(
            f"{type(self).__name__} has no energy, which update Descent needs; use Direct, Compose, or ConvNetwork"
        )


class Update(Checked, ABC):
    """One step of the equilibrium, a frozen dataclass with the step's own settings.

    ``derivatives`` counts the derivatives that a step takes. If it is not zero, looks are sampled such that they can be
    differentiated twice, and the model cannot be exported.
    """

    derivatives: ClassVar[int] = 0

    def build_network(self, config: DECConfig, in_channels: int, knots: tuple[int, int]) -> nn.Module:
        """Build the network that ``step`` calls; by default one that turns looks into maps."""
        return config.network.map_network(
            in_channels, knots, family=config.family, temperature=config.temperature, guard=config.guard
        )

    @abstractmethod
    def step(self, m: FamilyMap, look: Look, network: Network, guard: float | None) -> FamilyMap:
        """Return the next map, given the current map l.

        ``look(l)`` is the canonical form S⁻¹(F; l), and ``guard`` is the smallest Jacobian determinant to allow.
        """
