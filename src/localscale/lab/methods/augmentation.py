"""Random monotone scaling: the augmentation that the paper calls Aug."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.errors import ConfigError, near_misses
from localscale.lab.randomness import Draws
from localscale.maps.base import Map, knot_pair
from localscale.maps.build import family_of, map_from_logits
from localscale.maps.distributions import DISTRIBUTIONS, raw_parameters
from localscale.warp import unscale

__all__ = ["RandomScaling"]


@dataclass(frozen=True)
class RandomScaling:
    """Scale each image by a map of its own, S(I; u⁻¹)(p) = I(u(p)), for a random map u.

    ``maps`` draws u, the inverse of the scaling, directly, so no map has to be inverted. The map of a sample
    depends on its draws alone, not on the batch or the process that the sample is in.

    >>> draws = Draws(0, torch.arange(4))
    >>> RandomScaling(strength=1.0)(torch.rand(4, 3, 32, 32), draws).shape
    torch.Size([4, 3, 32, 32])
    """

    strength: float = 1.0
    """Factor of the raw parameters. 0 is the identity; at 2, increments differ by a factor of up to e² ≈ 7."""
    probability: float = 1.0
    """Probability that an image is scaled."""
    knots: int = 6
    """Control points along each axis."""
    family: str = "grid"
    """Family of the maps: grid or separable."""
    distribution: str = "logits"
    """logits: raw parameters uniform in [0, strength]; simplex: with strength 1, increments uniform on the simplex."""

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that no map can be drawn with."""
        if not 0 <= self.strength < math.inf:
            raise ConfigError(f"a random scaling's strength is {self.strength}; expected a finite number, 0 or more")
        if not 0 <= self.probability <= 1:
            raise ConfigError(f"a random scaling's probability is {self.probability}; expected 0 to 1")
        family_of(self.family)
        knot_pair(self.knots)
        if self.distribution not in DISTRIBUTIONS:
            raise ConfigError(
                f"a random scaling's distribution is {self.distribution!r}: "
                f"{near_misses(str(self.distribution), DISTRIBUTIONS)}"
            )

    def maps(self, draws: Draws, name: str = "scaling") -> Map:
        """Return one map u for each sample; the same ``name`` gives the same maps."""
        logits = []
        hit = draws.uniform(f"{name}/hit", 1) < self.probability
        for axis, shape in zip("xy", family_of(self.family).logit_shapes(knot_pair(self.knots)), strict=True):
            drawn = self.strength * raw_parameters(draws.uniform(f"{name}/{axis}", *shape), self.distribution)
            logits.append(torch.where(hit.view(-1, *(1 for _ in shape)), drawn, 0).float())
        return map_from_logits(*logits, family=self.family)

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the scaled images."""
        if self.strength == 0 or self.probability == 0:
            return images
        return unscale(images, self.maps(draws))

    def both(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Return the scaled images and their label maps ``(B, H, W)``, scaled alike with nearest-neighbour sampling."""
        if self.strength == 0 or self.probability == 0:
            return images, labels
        u = self.maps(draws)
        return unscale(images, u), unscale(labels, u, mode="nearest")
