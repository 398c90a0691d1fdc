"""Finding z with z = f(z) for a batch, one sample at a time in one go.

A solver is a frozen value with one method, ``solve(f, z0) -> Estimate``. Every sample converges on its own: once its
residual is under the tolerance it stays where it is while the others go on, so stopping early changes no answer, only
the work done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from localscale.errors import ConfigError, ShapeError

__all__ = ["SOLVERS", "Anderson", "Estimate", "Function", "Picard", "Solver", "relative_residual"]

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Estimate:
    """The best point met so far: its value under f, and how far the two are apart.

    All but ``point`` and ``value`` have shape ``(B,)``; ``steps`` counts the evaluations a sample took part in.
    """

    point: Tensor
    value: Tensor
    residual: Tensor
    steps: Tensor
    converged: Tensor


class Solver(Protocol):
    """What ``fixed_point`` asks of a solver."""

    @property
    def max_steps(self) -> int: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def fixed_steps(self) -> bool: ...
    def solve(self, f: Function, z0: Tensor) -> Estimate:
        """Iterate from ``z0`` ``(B, ...)``."""


def relative_residual(point: Tensor, value: Tensor) -> Tensor:
    """‖f(z) − z‖ / ‖f(z)‖ per sample, shape ``(B,)``; infinite where anything is not finite."""
    distance = torch.linalg.vector_norm((value - point).flatten(1), dim=1)
    size = torch.linalg.vector_norm(value.flatten(1), dim=1)
    residual = distance / (size + 1e-12)  # the constant only keeps 0/0 from an exact fixed point at zero
    return torch.where(torch.isfinite(residual) & torch.isfinite(size), residual, torch.inf)


def stops_early(fixed_steps: bool) -> bool:
    """Whether the host may look at the data: not in fixed-step mode, nor inside ``torch.compile`` or export."""
    return not fixed_steps and not torch.compiler.is_compiling()


def _check(max_steps: int, tolerance: float, damping: float) -> None:
    if not isinstance(max_steps, int) or max_steps < 1:
        raise ConfigError(f"max_steps is {max_steps}; expected at least 1")
    if not tolerance >= 0:
        raise ConfigError(f"tolerance is {tolerance}; expected 0 or more")
    if not 0 < damping <= 1:
        raise ConfigError(f"damping is {damping}; expected a fraction of the step, above 0 and at most 1")


def _iterate(
    f: Function, z0: Tensor, propose: Callable[[Tensor, Tensor, Tensor], Tensor], solver: Anderson | Picard
) -> Estimate:
    """The loop all solvers share; ``propose(point, value, finite)`` gives the next point."""
    per_sample = (-1,) + (1,) * (z0.dim() - 1)
    point, best_point, best_value = z0, z0, z0
    best = torch.full(z0.shape[:1], torch.inf, dtype=z0.dtype, device=z0.device)
    active = torch.ones(z0.shape[:1], dtype=torch.bool, device=z0.device)
    steps = torch.zeros(z0.shape[:1], dtype=torch.long, device=z0.device)
    for _ in range(solver.max_steps):
        value = _evaluate(f, point, active) if stops_early(solver.fixed_steps) else f(point)
        if value.shape != z0.shape:
            raise ShapeError(f"f took {tuple(z0.shape)} to {tuple(value.shape)}; expected the same shape back")
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
        proposed = torch.where(usable, proposed, best_value)  # a lost sample goes on from the best it had
        point = torch.where(active.view(per_sample), proposed, point)
    return Estimate(best_point, best_value, best, steps, best <= solver.tolerance)


def _evaluate(f: Function, point: Tensor, active: Tensor) -> Tensor:
    """f(point); samples that are done are left out if ``f`` can do without them, and their points stand for them.

    ``f.among(index)`` is f for some of the samples. A GPU is faster with all of them than waiting to hear how many.
    """
    if point.device.type != "cpu" or not hasattr(f, "among") or bool(active.all()):
        return f(point)
    index = active.nonzero()[:, 0]
    return point.index_copy(0, index, f.among(index)(point[index]))


@dataclass(frozen=True)
class Picard:
    """z ← (1 − damping)·z + damping·f(z)."""

    max_steps: int = 50
    tolerance: float = 1e-4
    damping: float = 1.0
    fixed_steps: bool = False

    def __post_init__(self) -> None:
        _check(self.max_steps, self.tolerance, self.damping)

    def solve(self, f: Function, z0: Tensor) -> Estimate:
        """Iterate from ``z0`` ``(B, ...)``."""
        return _iterate(f, z0, lambda point, value, _: torch.lerp(point, value, self.damping), self)


@dataclass(frozen=True)
class Anderson:
    """Anderson acceleration: mix the last ``history`` points so that their mixed residual is smallest.

    The weights minimise ‖Σ αᵢ rᵢ‖² + ridge · Σ αᵢ²‖rᵢ‖² with Σ αᵢ = 1. The ridge is relative to the Gram matrix's own
    diagonal, so it means the same at every scale, and the matrix solved has unit diagonal plus ridge: never singular.

    Args:
        max_steps: most evaluations of f.
        tolerance: relative residual at which a sample is done.
        history: how many points to mix.
        damping: how far to go from the mixed points toward their images.
        ridge: relative regularisation.
        fixed_steps: take exactly ``max_steps``, without host synchronisation, as ``torch.compile``, CUDA graphs and
            export need. The answers are the same.
    """

    max_steps: int = 20
    tolerance: float = 1e-4
    history: int = 5
    damping: float = 1.0
    ridge: float = 1e-6
    fixed_steps: bool = False

    def __post_init__(self) -> None:
        _check(self.max_steps, self.tolerance, self.damping)
        if not isinstance(self.history, int) or self.history < 1:
            raise ConfigError(f"history is {self.history}; expected at least 1")
        if not self.ridge > 0:
            raise ConfigError(f"ridge is {self.ridge}; expected a positive number")

    def solve(self, f: Function, z0: Tensor) -> Estimate:
        """Iterate from ``z0`` ``(B, ...)``."""
        points: list[Tensor] = []
        residuals: list[Tensor] = []

        def propose(point: Tensor, value: Tensor, finite: Tensor) -> Tensor:
            keep = finite[:, None]
            points.append(torch.where(keep, point.flatten(1), 0))
            residuals.append(torch.where(keep, (value - point).flatten(1), 0))
            del points[: -self.history], residuals[: -self.history]
            history, errors = torch.stack(points, dim=1), torch.stack(residuals, dim=1)
            weights = _mixing_weights(errors, self.ridge)
            mixed = (weights.unsqueeze(-1) * (history + self.damping * errors)).sum(dim=1)
            return mixed.view_as(point)

        return _iterate(f, z0, propose, self)


def _mixing_weights(residuals: Tensor, ridge: float) -> Tensor:
    """Anderson's weights for residuals ``(B, m, D)``, shape ``(B, m)``; an all-zero residual is one not to be used."""
    norms = torch.linalg.vector_norm(residuals, dim=2)
    used = norms > 0
    safe = torch.where(used, norms, 1)
    unit = residuals / safe.unsqueeze(-1)
    gram = unit @ unit.transpose(1, 2)
    gram = gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    smallest = torch.where(used, norms, torch.inf).amin(dim=1, keepdim=True)
    inverse_norms = torch.where(used, smallest / safe, 0)  # 1/‖rᵢ‖, scaled to at most one
    weights = _solve_spd(gram, inverse_norms) * inverse_norms
    total = weights.sum(dim=1, keepdim=True)
    return weights / torch.where(total > 0, total, 1)


def _solve_spd(matrix: Tensor, right: Tensor) -> Tensor:
    """Gauss–Jordan elimination for a few unknowns, ``(B, m, m)`` and ``(B, m)``: no pivots, no host, no library."""
    size = matrix.shape[-1]
    unit = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    rows = torch.cat((matrix, right.unsqueeze(-1)), dim=-1)
    for k in range(size):
        pivot = rows[:, k : k + 1] / rows[:, k : k + 1, k : k + 1]
        rows = rows - (rows[:, :, k : k + 1] - unit[k].view(1, size, 1)) * pivot
    return rows[..., -1]


SOLVERS: dict[str, type[Anderson] | type[Picard]] = {"anderson": Anderson, "picard": Picard}
