"""The deep equilibrium canonicalizer, from features to equilibrium maps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localscale.canonicalizer.config import DECConfig
from localscale.canonicalizer.kernel_solver import (
    KernelEvaluation,
    KernelSolver,
    has_gradient_kernels,
    has_kernels,
    solve_with_kernels,
)
from localscale.canonicalizer.looks import Looks, WorkingCopy, pyramid
from localscale.canonicalizer.network import IMAGE_CHANNELS, MapNetwork, Pools, working_size
from localscale.canonicalizer.size_kernels import has_size_kernels, solve_sizes_with_kernels
from localscale.canonicalizer.size_loss import SizeLoss, size_loss
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.canonicalizer.thing_loss import ThingScores, thing_loss, thing_scores
from localscale.canonicalizer.things import Things
from localscale.canonicalizer.trunks import shrink_look
from localscale.conventions import compute_dtype, full_precision, resize
from localscale.equilibrium import Anderson, Picard, Solver, fixed_point
from localscale.equilibrium.fixed_point import report_failures
from localscale.equilibrium.solver import Estimate, Function, relative_residual
from localscale.errors import ConfigError, ShapeError
from localscale.maps.base import FamilyMap, Map
from localscale.maps.build import family_of, identity_map
from localscale.maps.grid import GridMap
from localscale.warp import unscale

__all__ = ["Canonicalizer", "SiteReport"]


@dataclass(frozen=True)
class SiteReport:
    """The map found for each image at one site, and how well its equilibrium was reached.

    ``residual``, ``steps`` and ``converged`` have shape ``(B,)``; the map carries its gradient.
    """

    map: FamilyMap
    residual: Tensor
    steps: Tensor
    converged: Tensor
    detached: bool = False
    estimate: Callable[[Map], tuple[Tensor, Tensor]] | None = None

    @property
    def applied(self) -> FamilyMap:
        """The map that features are warped by: ``map``, without its gradient if ``detached``."""
        return self.map.detach() if self.detached else self.map

    @property
    def sizes_before(self) -> tuple[Tensor, Tensor]:
        """Log sizes and weights ``(B, h, w)`` that a ``SizeNetwork`` estimates in the site's input."""
        return self._sizes(identity_map(self.map.batch, dtype=self.map.dtype, device=self.map.device))

    @property
    def sizes_after(self) -> tuple[Tensor, Tensor]:
        """Log sizes and weights ``(B, h, w)`` that a ``SizeNetwork`` estimates in the canonical forms."""
        return self._sizes(self.map)

    def _sizes(self, m: Map) -> tuple[Tensor, Tensor]:
        if self.estimate is None:
            raise ConfigError("this site estimates no sizes; adapt the model with DECConfig(), the default")
        with torch.no_grad(), full_precision(m.device.type):
            return self.estimate(m)


class Canonicalizer(nn.Module):
    """The canonicalizer h, which finds the map of each image by solving Φ = update(Φ) (paper, Sec. 4.2).

    At initialisation every map is the identity, exactly.

    >>> canonicalizer = Canonicalizer(3, (6, 6), DECConfig())
    >>> report = canonicalizer(torch.rand(2, 3, 64, 64))
    >>> report.map.mean_displacement().max().item(), report.converged
    (0.0, tensor([True, True]))
    """

    def __init__(self, in_channels: int, knots: tuple[int, int], config: DECConfig, *, detached: bool = False) -> None:
        super().__init__()
        self.in_channels, self.knots, self.config, self.detached = in_channels, knots, config, detached
        self.resolution = config.network.resolution_for(in_channels)
        self.solver = config.solver
        self.network: Any = config.update.build_network(config, in_channels, knots)

    def forward(self, features: Tensor) -> SiteReport:
        """Solve for the maps of NCHW ``features``; gradients flow to the features and the weights."""
        if features.dim() != 4 or features.shape[1] != self.in_channels:
            raise ShapeError(
                f"features have shape {tuple(features.shape)}; expected (batch, {self.in_channels}, height, width)"
            )
        if 0 in features.shape or not features.is_floating_point():
            raise ShapeError(
                f"features have shape {tuple(features.shape)} and dtype {features.dtype}; "
                "expected floating point, and at least one image of at least 1×1 pixels"
            )
        weight = next(self.parameters(), features)  # a network of one's own may have no parameters
        if features.device != weight.device:
            raise ShapeError(
                f"features are on {features.device} and the canonicalizer on {weight.device}; move one with .to(device)"
            )
        exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
        if self.config.update.derivatives and exporting:
            raise ConfigError(
                f"{type(self.config.update).__name__} differentiates inside forward, which an exported program cannot "
                'record; export a model with update="direct" or "compose"'
            )
        dtype = _product_dtype(features, self._needs_gradient(features))
        with full_precision(features.device.type):
            if self._looks_once():
                return self._look_once(features, dtype)
            if has_kernels(self.config, features) and not torch.is_grad_enabled():
                return self._solve_with_kernels(features)
            if self._needs_gradient(features):
                return self._solve(self.looks(features))
            size = self._look_size(features)
            if has_size_kernels(self.config, self.network, features, size):
                return self._solve_sizes_with_kernels(features, size)
            with torch.no_grad():  # otherwise an implicit gradient takes one more evaluation
                return self._solve(self.looks(features))

    def _looks_once(self) -> bool:
        """Return whether the network has a trunk and sees nothing but the whole image, in one step."""
        return isinstance(self.network, SizeEstimator) and self.network.trunk is not None and self.solver.max_steps == 1

    def _look_once(self, features: Tensor, dtype: torch.dtype) -> SiteReport:
        """Return the map of a single step, the network's answer to the resized image, with a plain gradient."""
        size = self._look_size(features)
        found = self.network(shrink_look(features, size, dtype))
        start = identity_map(features.shape[0], self.knots, dtype=found.dtype, device=found.device)
        residual = relative_residual(start.state(), found.state())
        value = torch.where((residual < torch.inf)[:, None, None, None], found.displacements, 0.0).flatten(1)
        residual, steps = residual.detach(), torch.ones_like(residual, dtype=torch.long)
        estimate = Estimate(value, value, residual, steps, residual <= self.solver.tolerance)
        return self._report(estimate, functools.partial(_sizes_once, self.network, features, size, dtype))

    def _needs_gradient(self, features: Tensor) -> bool:
        if not torch.is_grad_enabled():
            return False
        weights = [parameter.requires_grad for parameter in self.network.parameters()]
        # The replicas of nn.DataParallel have weights, but no parameters.
        return features.requires_grad or any(weights) or not weights

    def _solve(self, looks: WorkingCopy | Looks) -> SiteReport:
        family = family_of(self.config.family)
        source = looks.source
        start = identity_map(
            source.shape[0], self.knots, family=self.config.family, dtype=source.dtype, device=source.device
        ).state()
        network = self.network
        solver: Solver = self.solver
        evaluation: Function
        if isinstance(network, MapNetwork) and has_gradient_kernels(self.config, source, self.knots):
            evaluation = KernelEvaluation(network, source, start, self.knots, self.config)
            assert isinstance(self.solver, Anderson | Picard)
            solver = KernelSolver(self.solver, evaluation)
        else:
            pools = network.pools(source) if isinstance(network, MapNetwork) else None
            evaluation = _Evaluation(self._advance, looks, pools)
        solution = fixed_point(
            evaluation,
            start,
            solver=solver,
            gradient=self.config.gradient,
            on_failure=self.config.on_failure,
        )
        found = family.from_state(solution.value, self.knots)
        estimate = None
        if isinstance(network, SizeEstimator) and isinstance(looks, Looks):
            estimate = functools.partial(_sizes_in, network, looks.source, looks.size)
        return SiteReport(found, solution.residual, solution.steps, solution.converged, self.detached, estimate)

    def size_loss(self, features: Tensor, *, things: Things | None = None, update_trust: bool = True) -> SizeLoss:
        """Return the loss that teaches a ``SizeNetwork`` the sizes of things in ``features``.

        The loss needs no labels; with ``things``, which are known by masks or boxes, it teaches theirs.
        """
        if not isinstance(self.network, SizeEstimator):
            raise ConfigError("only a SizeNetwork learns sizes; adapt the model with DECConfig(), the default")
        with full_precision(features.device.type):
            source, size = self._source(features), self._look_size(features)
            if things is not None:
                return thing_loss(self.network, source, size, things, update=update_trust)
            return size_loss(self.network, source, size, update_trust=update_trust)

    def thing_scores(self, features: Tensor, things: Things, m: Map) -> ThingScores:
        """Return how well a ``SizeNetwork`` finds ``things`` in ``features``, and how equal ``m`` makes their sizes."""
        assert isinstance(self.network, SizeEstimator)
        with torch.no_grad(), full_precision(features.device.type):
            return thing_scores(self.network, self._source(features), self._look_size(features), things, m)

    def _solve_with_kernels(self, features: Tensor) -> SiteReport:
        assert isinstance(self.network, MapNetwork)
        assert isinstance(self.solver, Anderson | Picard)
        estimate = solve_with_kernels(
            self.network, features, self.knots, self.config, self.solver, resolution=self.resolution
        )
        return self._report(estimate)

    def _solve_sizes_with_kernels(self, features: Tensor, size: tuple[int, int]) -> SiteReport:
        # Kernels read images in any precision, so images are not copied to full precision first.
        image = self.in_channels <= IMAGE_CHANNELS
        with torch.no_grad():
            source = features if image else self._source(features)
            estimate = solve_sizes_with_kernels(self.network, source, size, self.config)
        return self._report(estimate, functools.partial(_sizes_in, self.network, source, size))

    def _report(self, estimate: Estimate, sizes: Callable[[Map], tuple[Tensor, Tensor]] | None = None) -> SiteReport:
        """Return the report of a solve whose estimate holds displacements."""
        displacements = estimate.value  # zero, the identity, if no step of an image was finite
        if self.config.on_failure == "identity":
            displacements = torch.where(estimate.converged[:, None], displacements, 0.0)
        report_failures(estimate, self.solver, self.config.on_failure)
        found = GridMap(displacements.view(-1, 2, self.knots[1], self.knots[0]))
        return SiteReport(found, estimate.residual, estimate.steps, estimate.converged, self.detached, sizes)

    def _advance(self, state: Tensor, looks: WorkingCopy | Looks, pools: Pools | None = None) -> Tensor:
        """Return the state of the next map, given that of the current one; ``pools`` are the pooling matrices."""
        current = family_of(self.config.family).from_state(state, self.knots)
        network = self.network if pools is None else functools.partial(self.network, pools=pools)
        return self.config.update.step(current, looks, network, self.config.guard).state()

    def looks(self, features: Tensor) -> WorkingCopy | Looks:
        """Return the function that takes maps to looks at ``features`` ``(B, C, H, W)``."""
        if not self.config.network.full_resolution:
            sampler = "gather" if self.config.update.derivatives else "native"
            copy = self.working_copy(features)
            return WorkingCopy(copy.contiguous() if copy.device.type == "cpu" else copy, sampler)
        size = self._look_size(features)
        with full_precision(features.device.type):
            return Looks(pyramid(self._source(features), size), size)

    def _source(self, features: Tensor) -> Tensor:
        """Return what looks at full resolution are sampled from, in full precision."""
        return self._normalise(features.to(compute_dtype(features.dtype)))

    def _look_size(self, features: Tensor) -> tuple[int, int]:
        """Return the (height, width) of looks at full resolution."""
        height, width = features.shape[-2:]
        resolution = self.resolution
        trunk = isinstance(self.network, SizeEstimator) and self.network.trunk is not None
        if self.in_channels <= IMAGE_CHANNELS and not trunk:
            # At most half of an image's pixels per side, so that parts that the map enlarges gain detail.
            resolution = min(resolution, max(height, width) // 2 + 1)
        return working_size(height, width, resolution)

    def working_copy(self, features: Tensor) -> Tensor:
        """Return the working copy of ``features``: full precision, normalised across channels, at a small size."""
        copy = features.to(compute_dtype(features.dtype))
        with full_precision(features.device.type):
            copy = resize(copy, *working_size(copy.shape[-2], copy.shape[-1], self.resolution))
        return self._normalise(copy)

    def _normalise(self, x: Tensor) -> Tensor:
        """Normalise each pixel of features across channels; images stay as they are. It commutes with warping."""
        if self.in_channels <= IMAGE_CHANNELS:
            return x
        return F.layer_norm(x.movedim(1, -1), (self.in_channels,)).movedim(-1, 1)


@dataclass(frozen=True, eq=False)  # a dataclass that is compared by value cannot be compiled by PyTorch 2.11
class _Evaluation:
    """The function of states ``(B, D)`` whose fixed points are sought."""

    advance: Callable[..., Tensor]
    looks: WorkingCopy | Looks
    pools: Pools | None

    def __call__(self, state: Tensor) -> Tensor:
        return self.advance(state, self.looks, self.pools)

    def among(self, images: slice) -> _Evaluation:
        """Return the same function for some of the images."""
        return _Evaluation(self.advance, self.looks.among(images), self.pools)


def _sizes_in(network: SizeEstimator, source: Tensor, size: tuple[int, int], m: Map) -> tuple[Tensor, Tensor]:
    """Return log sizes and weights in the looks of ``size`` at ``source`` through ``m``."""
    return network.sizes(Looks(pyramid(source.to(compute_dtype(source.dtype)), size), size)(m))


def _sizes_once(
    network: SizeEstimator, features: Tensor, size: tuple[int, int], dtype: torch.dtype, m: Map
) -> tuple[Tensor, Tensor]:
    """Return log sizes and weights as a network with a trunk sees them, in ``features`` scaled back by ``m``."""
    return network.sizes(shrink_look(unscale(features, m), size, dtype))


def _product_dtype(features: Tensor, learning: bool) -> torch.dtype:
    """Return the precision of a trunk's products: that of autocast, if it is on, else that of ``features``.

    Without gradients float16 takes the place of bfloat16: it costs the same and has eight times the accuracy, which the
    bounded activations of a trunk leave room for. A CPU gains nothing by half precision.
    """
    dtype, device = features.dtype, features.device.type
    if dtype != torch.float64 and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    if dtype not in (torch.float16, torch.bfloat16) or learning:
        return dtype
    return torch.float32 if device == "cpu" else torch.float16
