"""The parts that all solvers share: their interface, their result, and the loop.

Every sample of a batch converges on its own. Once its residual is at most the tolerance, the sample keeps its point
while the others continue. So a sample's result does not depend on when the loop stops.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from localscale.errors import ConfigError, ShapeError
from localscale.registry import Checked

__all__ = ["Estimate", "Function", "Solver", "check_solver", "iterate", "relative_residual", "stops_early"]

Function = Callable[[Tensor], Tensor]

GROUP = 8  # samples that a CPU evaluates together until all of them have converged


@dataclass(frozen=True)
class Estimate:
    """The best point z found so far, its ``value`` f(z), and the relative residual between the two.

    All but ``point`` and ``value`` have shape ``(B,)``; ``steps`` counts the steps that a sample took part in.
    """

    point: Tensor
    value: Tensor
    residual: Tensor
    steps: Tensor
    converged: Tensor


class Solver(Checked, ABC):
    """A way to find z with z = f(z) for every sample of a batch."""

    max_steps: int
    tolerance: float
    fixed_steps: bool

    @abstractmethod
    def solve(self, f: Function, z0: Tensor) -> Estimate:
        """Iterate from ``z0`` ``(B, ...)`` and return the best point found."""


def relative_residual(point: Tensor, value: Tensor) -> Tensor:
    """Return ‖f(z) − z‖ / ‖f(z)‖ per sample, shape ``(B,)``; infinite where anything is not finite."""
    distance = torch.linalg.vector_norm((value - point).flatten(1), dim=1)
    size = torch.linalg.vector_norm(value.flatten(1), dim=1)
    residual = distance / (size + 1e-12)  # the constant avoids 0/0 at a fixed point at zero
    return torch.where(torch.isfinite(residual) & torch.isfinite(size), residual, torch.inf)


def stops_early(fixed_steps: bool) -> bool:
    """Return whether the loop may read tensors on the host: not with fixed steps, nor while compiling or exporting."""
    return not fixed_steps and not torch.compiler.is_compiling()


def check_solver(max_steps: int, tolerance: float, damping: float) -> None:
    """Raise ``ConfigError`` unless the settings that solvers share are in range."""
    if max_steps < 1:
        raise ConfigError(f"max_steps is {max_steps}; expected at least 1")
    if not 0 <= tolerance < math.inf:
        raise ConfigError(f"tolerance is {tolerance}; expected a finite number, 0 or more")
    if not 0 < damping <= 1:
        raise ConfigError(f"damping is {damping}; expected a fraction of the step, above 0 and at most 1")


def iterate(f: Function, z0: Tensor, propose: Callable[[Tensor, Tensor, Tensor], Tensor], solver: Solver) -> Estimate:
    """Run the loop that all solvers share; ``propose(point, value, finite)`` returns the next point."""
    per_sample = (-1,) + (1,) * (z0.dim() - 1)
    point, best_point, best_value = z0, z0, z0
    best = torch.full(z0.shape[:1], torch.inf, dtype=z0.dtype, device=z0.device)
    active = torch.ones(z0.shape[:1], dtype=torch.bool, device=z0.device)
    steps = torch.zeros(z0.shape[:1], dtype=torch.long, device=z0.device)
    for _ in range(solver.max_steps):
        value = _evaluate(f, point, active) if stops_early(solver.fixed_steps) else f(point)
        _check_value(value, z0)
        residual = relative_residual(point, value)
        better = (active & (residual < best)).view(per_sample)
        best_point = torch.where(better, point, best_point)
        best_value = torch.where(better, value, best_value)
        best = torch.where(active, torch.minimum(residual, best), best)
        steps = steps + active
        active = active & (residual > solver.tolerance)
        if stops_early(solver.fixed_steps) and not bool(active.any()):
            break
        finite = torch.isfinite(residual)
        proposed = propose(point, value, finite)
        usable = (finite & torch.isfinite(proposed.flatten(1)).all(dim=1)).view(per_sample)
        proposed = torch.where(usable, proposed, best_value)  # a sample that is not finite restarts from its best value
        point = torch.where(active.view(per_sample), proposed, point)
    return Estimate(best_point, best_value, best, steps, best <= solver.tolerance)


def _check_value(value: Any, z0: Tensor) -> None:
    """Raise ``ShapeError`` unless f returned a tensor like ``z0``."""
    if not isinstance(value, Tensor):
        raise ShapeError(f"f returned a {type(value).__name__}; expected a tensor of shape {tuple(z0.shape)}")
    if value.shape != z0.shape:
        raise ShapeError(f"f took {tuple(z0.shape)} to {tuple(value.shape)}; expected the same shape back")
    if value.dtype != z0.dtype or value.device != z0.device:
        raise ShapeError(
            f"f took {z0.dtype} on {z0.device} to {value.dtype} on {value.device}; expected the same back: "
            "return value.to(z)"
        )


def _evaluate(f: Function, point: Tensor, active: Tensor) -> Tensor:
    """Return f(point); a group of converged samples keeps its points if ``f.among(samples)`` evaluates f for a slice.

    Groups are fixed. If the active samples alone were evaluated, then their number, and with it the order of sums in a
    convolution, would depend on when the other samples converge. On a GPU all samples are evaluated, because counting
    the active ones would synchronise with the host.
    """
    if point.device.type != "cpu" or not hasattr(f, "among") or len(point) <= GROUP:
        return f(point)
    groups = [slice(first, first + GROUP) for first in range(0, len(point), GROUP)]
    return torch.cat([f.among(group)(point[group]) if active[group].any() else point[group] for group in groups])
