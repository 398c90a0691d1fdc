"""DEC, the paper's method, and Optim, what it is compared with: canonicalizers at sites, trained with the backbone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel, adapt
from localscale.canonicalizer import UPDATES, ConvNetwork, DECConfig, Descent, SiteReport
from localscale.canonicalizer.site import INPUT
from localscale.conventions import lattice
from localscale.equilibrium import GRADIENTS, SOLVERS
from localscale.errors import ConfigError
from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.methods.method import Criterion, Method, check_mode
from localscale.lab.randomness import Draws
from localscale.maps.base import Map
from localscale.registry import choose
from localscale.warp import unscale

__all__ = ["DEC", "map_prior", "site_scalars", "supervision_error"]

POINTS = 16  # maps are compared on a lattice of so many points a side


@dataclass(frozen=True)
class DEC(Method):
    """Deep equilibrium canonicalizers at ``sites``; with ``update="descent"`` it is Optim.

    Equivariance supervision needs no labels: scale the image by a known g and compare h(S(I; g)) with g∘h(I).
    """

    sites: tuple[str, ...] = (INPUT,)
    """Dotted module paths; "input" is the image itself."""
    knots: tuple[int, ...] = (6,)
    """Control points along an axis, one for all sites or one per site."""
    family: Literal["grid", "separable"] = "grid"
    """Which maps."""
    update: Literal["direct", "compose", "descent"] = "direct"
    """The paper's DEC, the equivariant update, or a step of an inner optimisation."""
    mode: Literal["invariant", "equivariant"] = "invariant"
    """Whether features, and masks at the input, are scaled back after what follows."""
    source: Literal["latent", "image"] = "latent"
    """Whether a site's map comes from its own feature or from the image."""
    channels: tuple[int, ...] = (64, 128)
    """Widths of the canonicalizer's convolutions."""
    resolution: int | None = 56
    """Longest side of the copy that a canonicalizer looks at: 56 as in the tables; None is 28 for features."""
    temperature: float = 1.0
    """Divides raw parameters: higher is gentler."""
    solver: Literal["anderson", "picard"] = "anderson"
    """How the equilibrium is found."""
    solver_steps: int = 6
    """Evaluations per solve, always all of them: nothing waits for the GPU."""
    step_size: float = 1.0
    """η of update descent."""
    gradient: str = "implicit"
    """implicit, phantom(k) or unrolled."""
    supervision: float = 0.0
    """Weight of the equivariance supervision, at the input; 0 is none, as in the paper."""
    detached: bool = False
    """The supervised canonicalizer learns from supervision and prior alone, and not from the task."""
    prior: float = 0.0
    """Weight of the prior that keeps the mean map near the identity."""
    supervised_scaling: RandomScaling = field(default_factory=RandomScaling)
    """g: how images are scaled for the supervision."""

    def config(self) -> DECConfig:
        """The canonicalizers these settings describe."""
        return DECConfig(
            sites=self.sites,
            knots=self.knots[0] if len(self.knots) == 1 else self.knots,
            family=self.family,
            update=Descent(self.step_size) if self.update == "descent" else choose("update", self.update, UPDATES),
            mode=self.mode,
            source=self.source,
            network=ConvNetwork(self.channels, self.resolution),
            temperature=self.temperature,
            solver=SOLVERS[self.solver](max_steps=self.solver_steps, tolerance=1e-3, fixed_steps=True),  # type: ignore[call-arg]
            gradient=choose("gradient", self.gradient, GRADIENTS),
            detached=(INPUT,) if self.detached else (),
        )

    def check(self) -> None:
        self.supervised_scaling.check()
        if not (0 <= self.supervision < math.inf and 0 <= self.prior < math.inf):
            raise ConfigError(f"supervision is {self.supervision} and prior {self.prior}; expected 0 or more")
        if self.detached and not self.supervision:
            raise ConfigError(
                "a detached canonicalizer learns from supervision alone, and supervision is 0; "
                "give it a weight, or set detached=False"
            )
        if (self.supervision or self.prior) and INPUT not in self.sites:
            raise ConfigError(
                f'supervision and prior look at the image\'s map, but "{INPUT}" is not among the sites '
                f"({', '.join(self.sites)}); add it, or set both to 0"
            )
        self.config()

    def check_answers(self, *, dense: bool) -> None:
        if dense or INPUT in self.sites:  # features alone may be scaled back in a classifier
            check_mode(self.mode, dense=dense)

    def build(self, backbone: nn.Module) -> AdaptedModel:
        return adapt(backbone, self.config())

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        assert isinstance(model, AdaptedModel)
        logits, report = model(images, return_report=True)
        task = criterion(logits, labels)
        found = {"loss": task, "task": task} | site_scalars(report)
        if self.prior:
            found["prior"] = map_prior(report[INPUT].map)
            found["loss"] = found["loss"] + self.prior * found["prior"]
        if self.supervision:
            u = self.supervised_scaling.maps(draws, "supervision").to(dtype=report[INPUT].map.dtype)
            canonicalizer = model.canonicalizers[INPUT]
            scaled = canonicalizer(unscale(canonicalizer.working_copy(images), u)).map
            found["supervision"] = supervision_error(report[INPUT].map, scaled, u)
            found["loss"] = found["loss"] + self.supervision * found["supervision"]
        return found


def supervision_error(found: Map, found_scaled: Map, u: Map) -> Tensor:
    """How far h(S(I; g)) is from g∘h(I), relative to how far g is from the identity, with g = u⁻¹.

    Both sides are taken through u, so nothing is inverted: ‖u∘h(S(I; g)) − h(I)‖² / ‖u − id‖², means over the batch
    and a lattice of points. The identity for every image scores 1, a canonicalizer 0.

    >>> u = localscale.random_map(4, generator=torch.Generator().manual_seed(0))
    >>> identity = localscale.identity_map(4)
    >>> supervision_error(identity, identity, u).item(), supervision_error(u, identity, u).item()
    (1.0, 0.0)
    """
    points = lattice(POINTS, POINTS, dtype=u.dtype, device=u.device).reshape(1, -1, 2)
    error = (u @ found_scaled)(points) - found(points)
    size = (u(points) - points).square().sum(-1).mean()
    return error.square().sum(-1).mean() / size.clamp_min(1e-8)


def map_prior(m: Map) -> Tensor:
    """‖mean map − identity‖² over a lattice of points, in units of a percent of the image side."""
    return (100 * m.displacement_field(POINTS, POINTS).mean(dim=0)).square().sum(-1).mean()


def site_scalars(report: dict[str, SiteReport]) -> dict[str, Tensor]:
    """Residual, steps and displacement from the identity at every site, means over the batch."""
    scalars = {}
    with torch.no_grad():
        for path, site in report.items():
            scalars[f"{path}/residual"] = site.residual.float().mean()
            scalars[f"{path}/steps"] = site.steps.float().mean()
            scalars[f"{path}/displacement"] = site.map.detach().mean_displacement(POINTS).mean()
    return scalars
