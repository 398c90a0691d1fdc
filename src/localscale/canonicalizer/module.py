"""The deep equilibrium canonicalizer, from features to equilibrium maps."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
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
from localscale.canonicalizer.network import IMAGE_CHANNELS, MapNetwork, Pools, working_size
from localscale.conventions import compute_dtype, resize
from localscale.equilibrium import Anderson, Picard, Solver, fixed_point
from localscale.equilibrium.fixed_point import report_failures
from localscale.equilibrium.solver import Function
from localscale.errors import ConfigError, ShapeError
from localscale.maps.base import FamilyMap
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

    @property
    def applied(self) -> FamilyMap:
        """The map that features are warped by: ``map``, without its gradient if ``detached``."""
        return self.map.detach() if self.detached else self.map


class Canonicalizer(nn.Module):
    """h: features to maps, by solving Φ = update(Φ) (paper, Sec. 4.2).

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
        exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
        if self.config.update.derivatives and exporting:
            raise ConfigError(
                f"{type(self.config.update).__name__} differentiates inside forward, which an exported program cannot "
                'record; export a model with update="direct" or "compose"'
            )
        with _full_precision(features.device.type):
            if has_kernels(self.config, features) and not torch.is_grad_enabled():
                return self._solve_with_kernels(features)
            return self._solve(self.working_copy(features))

    def _solve(self, copy: Tensor) -> SiteReport:
        family = family_of(self.config.family)
        start = identity_map(
            copy.shape[0], self.knots, family=self.config.family, dtype=copy.dtype, device=copy.device
        ).state()
        network = self.network
        solver: Solver = self.solver
        evaluation: Function
        if isinstance(network, MapNetwork) and has_gradient_kernels(self.config, copy, self.knots):
            evaluation = KernelEvaluation(network, copy, start, self.knots, self.config)
            assert isinstance(self.solver, Anderson | Picard)
            solver = KernelSolver(self.solver, evaluation)
        else:
            pools = network.pools(copy) if isinstance(network, MapNetwork) else None
            evaluation = _Evaluation(self._advance, copy, pools)
        solution = fixed_point(
            evaluation,
            start,
            solver=solver,
            gradient=self.config.gradient,
            on_failure=self.config.on_failure,
        )
        found = family.from_state(solution.value, self.knots)
        return SiteReport(found, solution.residual, solution.steps, solution.converged, self.detached)

    def _solve_with_kernels(self, features: Tensor) -> SiteReport:
        assert isinstance(self.network, MapNetwork)
        assert isinstance(self.solver, Anderson | Picard)
        estimate = solve_with_kernels(
            self.network, features, self.knots, self.config, self.solver, resolution=self.resolution
        )
        displacements = estimate.value  # zero, the identity, for images whose every step was not finite
        if self.config.on_failure == "identity":
            displacements = torch.where(estimate.converged[:, None], displacements, 0.0)
        report_failures(estimate, self.solver, self.config.on_failure)
        found = GridMap(displacements.view(-1, 2, self.knots[1], self.knots[0]))
        return SiteReport(found, estimate.residual, estimate.steps, estimate.converged, self.detached)

    def _advance(self, state: Tensor, copy: Tensor, pools: Pools | None = None) -> Tensor:
        """Return the state of the next map, given the current state, the working copy and the pooling matrices."""
        update, current = self.config.update, family_of(self.config.family).from_state(state, self.knots)
        sampler = "gather" if update.derivatives else "native"

        def look(m: FamilyMap) -> Tensor:
            return copy if _is_identity(m) else unscale(copy, m, sampler=sampler)

        network = self.network if pools is None else functools.partial(self.network, pools=pools)
        return update.step(current, look, network, self.config.guard).state()

    def working_copy(self, features: Tensor) -> Tensor:
        """Return the copy of ``features`` that all steps of a solve look at: small, in full precision, normalised.

        The normalisation is over the channels of each pixel, so it commutes with warping.
        """
        copy = features.to(compute_dtype(features.dtype))
        with _full_precision(features.device.type):
            copy = resize(copy, *working_size(copy.shape[-2], copy.shape[-1], self.resolution))
        if self.in_channels > IMAGE_CHANNELS:
            copy = F.layer_norm(copy.movedim(1, -1), (self.in_channels,)).movedim(-1, 1)
        return copy


@dataclass(frozen=True, eq=False)  # PyTorch 2.11 cannot compile a dataclass with __eq__
class _Evaluation:
    """The function f of states ``(B, D)`` whose fixed points are the equilibria."""

    advance: Callable[..., Tensor]
    copy: Tensor
    pools: Pools | None

    def __call__(self, state: Tensor) -> Tensor:
        return self.advance(state, self.copy, self.pools)

    def among(self, index: Tensor) -> _Evaluation:
        """Return the same function for the images at ``index``."""
        return _Evaluation(self.advance, self.copy[index], self.pools)


def _is_identity(m: FamilyMap) -> bool:
    """Return whether ``m`` is known to be the identity; only checked where that needs no host synchronisation."""
    checked = m.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return checked and isinstance(m, GridMap) and not m.moves.any()


@contextlib.contextmanager
def _full_precision(device_type: str) -> Iterator[None]:
    """Turn autocast off, because coordinates and solvers need full precision."""
    if torch.is_autocast_enabled(device_type):
        with torch.autocast(device_type, enabled=False):
            yield
    else:
        yield
