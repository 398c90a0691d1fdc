"""DEC, the paper's method, and Optim: canonicalizers at sites of a backbone, trained with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel, adapt
from localscale.canonicalizer import ConvNetwork, DECConfig, SiteReport, SizeNetwork
from localscale.canonicalizer.site import INPUT
from localscale.conventions import lattice
from localscale.equilibrium import Anderson
from localscale.errors import ConfigError
from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.methods.method import Criterion, Method, check_mode
from localscale.lab.randomness import Draws
from localscale.maps.base import FamilyMap, Map
from localscale.warp import unscale

__all__ = [
    "DEC",
    "NETWORK",
    "TRAINING",
    "identity_prior",
    "map_prior",
    "separation_loss",
    "site_scalars",
    "supervision_error",
]

SEPARATION = 0.01  # squared distance of two maps above which the published scripts push them no further
POINTS = 16  # maps are compared on a lattice of this many points along each side
NETWORK = ConvNetwork(resolution=56)  # the tables' working copy, of images and of features
TRAINING: dict[str, Any] = {
    "tolerance": 1e-3,
    "fixed_steps": True,
}  # solvers in training never synchronise with the host


@dataclass(frozen=True)
class DEC(Method):
    """Deep equilibrium canonicalizers, trained with the backbone; with the update ``Descent`` it is Optim.

    Equivariance supervision needs no labels: scale the image by a known g and compare h(S(I; g)) with g∘h(I). A
    canonicalizer that ``config.detached`` names learns from supervision and prior alone, not from the task.
    """

    config: DECConfig = field(default_factory=lambda: DECConfig.paper(network=NETWORK, solver=Anderson(6, **TRAINING)))
    """Canonicalizers: sites, maps, update, network, solver and gradient rule."""
    supervision: float = 0.0
    """Weight of the equivariance supervision of the image's map; 0, as in the paper, turns it off."""
    prior: float = 0.0
    """Weight of the prior that keeps the mean map of every site near the identity; 0 turns it off."""
    separation: float = 0.0
    """Weight of −min(‖Φ(x) − Φ(x′)‖², 0.01), which the published scripts add to the task's loss: it pushes the maps of
    an image and of its scaled copy apart, at every site. The paper does not mention it; 0, the default, turns it off.
    One forward pass then takes images and scaled copies."""
    identity: float = 0.0
    """Weight of the identity prior that the published scripts add with the separation: the mean squared distance of
    the control points of every map from those of the identity, at every site. 0 turns it off."""
    supervised_scaling: RandomScaling = field(default_factory=RandomScaling)
    """Random scaling of the images for the supervision (g) and for the separation (x′)."""

    def check(self) -> None:
        self.supervised_scaling.check()
        if isinstance(self.config.network, SizeNetwork):
            raise ConfigError(
                "DEC is trained by the task, and a SizeNetwork learns sizes from the images alone; "
                "use the method SizeEquilibrium, or DECConfig.paper()"
            )
        for name in ("supervision", "prior", "separation", "identity"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"--method.{name} is {getattr(self, name)}; expected a finite number, 0 or more")
        alone = [site for site in self.config.detached if site != INPUT or not self.supervision]
        if alone:
            raise ConfigError(
                f"nothing trains the canonicalizer at {alone[0]}, which --method.config.detached names: only the one "
                f"at {INPUT} is supervised, and --method.supervision is {self.supervision}; name {INPUT} alone there, "
                "with a positive --method.supervision"
            )
        sites = [str(site) for site in self.config.sites]
        if self.supervision and INPUT not in sites:
            raise ConfigError(
                f"--method.supervision needs a canonicalizer at {INPUT}, but the sites are {', '.join(sites)}; "
                f"add {INPUT} to --method.config.sites, or set it to 0"
            )

    def check_answers(self, *, dense: bool) -> None:
        if dense or INPUT in map(str, self.config.sites):  # a classifier may scale inner features back
            check_mode(self.config.mode, dense=dense)

    def build(
        self,
        backbone: nn.Module,
        *,
        input_size: tuple[int, int, int] | None = None,
        source_size: tuple[int, int] | None = None,
    ) -> AdaptedModel:
        return adapt(backbone, self.config, input_size=input_size, source_size=source_size)

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        assert isinstance(model, AdaptedModel)
        count, shown = len(images), images
        if self.separation:
            shown = torch.cat((images, unscale(images, self.supervised_scaling.maps(draws, "separation"))))
        logits, report = model(shown, return_report=True)
        task = criterion(logits[:count], labels)
        found = {"loss": task, "task": task} | site_scalars(report)
        if self.prior:
            found["prior"] = torch.stack([map_prior(site.map) for site in report.values()]).sum()
            found["loss"] = found["loss"] + self.prior * found["prior"]
        if self.separation:
            pairs = [(site.map[:count], site.map[count:]) for site in report.values()]
            found["separation"] = torch.stack([separation_loss(*pair) for pair in pairs]).sum()
            found["loss"] = found["loss"] + self.separation * found["separation"]
        if self.identity:
            found["identity"] = torch.stack([identity_prior(site.map) for site in report.values()]).sum()
            found["loss"] = found["loss"] + self.identity * found["identity"]
        if self.supervision:
            u = self.supervised_scaling.maps(draws, "supervision").to(dtype=report[INPUT].map.dtype)
            canonicalizer = model.canonicalizers[INPUT]
            scaled = canonicalizer(unscale(canonicalizer.working_copy(images), u)).map
            found["supervision"] = supervision_error(report[INPUT].map[:count], scaled, u)
            found["loss"] = found["loss"] + self.supervision * found["supervision"]
        return found


def supervision_error(found: Map, found_scaled: Map, u: Map) -> Tensor:
    """Return the distance of h(S(I; g)) from g∘h(I), relative to that of g from the identity, with g = u⁻¹.

    Both maps are composed with u, which avoids inverting it: ‖u∘h(S(I; g)) − h(I)‖² / ‖u − id‖², where the norms are
    means over the batch and a lattice of points. An equivariant h gives 0; the identity for every image gives 1.

    >>> u = localscale.random_map(4, generator=torch.Generator().manual_seed(0))
    >>> identity = localscale.identity_map(4)
    >>> supervision_error(identity, identity, u).item(), supervision_error(u, identity, u).item()
    (1.0, 0.0)
    """
    points = lattice(POINTS, POINTS, dtype=u.dtype, device=u.device).reshape(1, -1, 2)
    error = (u @ found_scaled)(points) - found(points)
    size = (u(points) - points).square().sum(-1).mean()
    return error.square().sum(-1).mean() / size.clamp_min(1e-8)


def separation_loss(found: FamilyMap, found_scaled: FamilyMap) -> Tensor:
    """Return −min(‖Φ(x) − Φ(x′)‖², 0.01), mean over the batch; Φ are the positions of all control points.

    Its gradient is zero where both maps are equal, as they are before training: the task has to separate them first.

    >>> separation_loss(localscale.identity_map(2), localscale.identity_map(2))
    tensor(-0.)
    """
    return -(found.state() - found_scaled.state()).square().sum(dim=1).clamp_max(SEPARATION).mean()


def identity_prior(m: FamilyMap) -> Tensor:
    """Return the mean squared distance of the coordinates of all control points from those of the identity.

    >>> identity_prior(localscale.identity_map(2))
    tensor(0.)
    """
    state = m.state()
    even = type(m).from_logits(*(state.new_zeros(1, *shape) for shape in m.logit_shapes(m.knots)))
    return (state - even.state()).square().mean()


def map_prior(m: Map) -> Tensor:
    """Return ‖mean map − identity‖² on a lattice of points, in percent of the image side."""
    return (100 * m.displacement_field(POINTS, POINTS).mean(dim=0)).square().sum(-1).mean()


def site_scalars(report: dict[str, SiteReport]) -> dict[str, Tensor]:
    """Return residual, steps, displacement from the identity and variation at every site, means over the batch.

    The variation is the distance of an image's map from the mean map of the batch: 0 if all images have one map.
    """
    scalars = {}
    with torch.no_grad():
        for path, site in report.items():
            scalars[f"{path}/residual"] = site.residual.float().mean()
            scalars[f"{path}/steps"] = site.steps.float().mean()
            field = site.map.detach().displacement_field(POINTS, POINTS)
            scalars[f"{path}/displacement"] = torch.linalg.vector_norm(field, dim=-1).mean()
            scalars[f"{path}/variation"] = torch.linalg.vector_norm(field - field.mean(dim=0), dim=-1).mean()
    return scalars
