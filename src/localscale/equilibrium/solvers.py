"""The solvers of z = f(z), and their registry."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.equilibrium.solver import Estimate, Function, Solver, check_solver, iterate
from localscale.errors import ConfigError

__all__ = ["SOLVERS", "Anderson", "Picard"]


@dataclass(frozen=True)
class Picard(Solver):
    """Damped fixed-point iteration, z ← (1 − damping)·z + damping·f(z); the fields are those of ``Anderson``."""

    max_steps: int = 50
    tolerance: float = 1e-4
    damping: float = 1.0
    fixed_steps: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_solver(self.max_steps, self.tolerance, self.damping)

    def solve(self, f: Function, z0: Tensor) -> Estimate:
        return iterate(f, z0, lambda point, value, _: torch.lerp(point, value, self.damping), self)


@dataclass(frozen=True)
class Anderson(Solver):
    """Anderson acceleration: mix the last ``history`` points so that their mixed residual is smallest.

    The weights minimise ‖Σ αᵢ rᵢ‖² + ridge · Σ αᵢ²‖rᵢ‖² with Σ αᵢ = 1. The ridge is relative to the Gram matrix's own
    diagonal, so it means the same at every scale, and the matrix solved has unit diagonal plus ridge: never singular.

    Args:
        max_steps: the largest number of steps; each evaluates f once.
        tolerance: the relative residual at which a sample has converged.
        history: the number of points that are mixed.
        damping: the fraction of the way from the mixed points to their values under f.
        ridge: relative regularisation.
        fixed_steps: take exactly ``max_steps``, without host synchronisation, as ``torch.compile``, CUDA graphs and
            export need. The results are the same.
    """

    max_steps: int = 20
    tolerance: float = 1e-4
    history: int = 5
    damping: float = 1.0
    ridge: float = 1e-6
    fixed_steps: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_solver(self.max_steps, self.tolerance, self.damping)
        if self.history < 1:
            raise ConfigError(f"history is {self.history}; expected at least 1")
        if not 0 < self.ridge < math.inf:
            raise ConfigError(f"ridge is {self.ridge}; expected a positive number")

    def solve(self, f: Function, z0: Tensor) -> Estimate:
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

        return iterate(f, z0, propose, self)


def _mixing_weights(residuals: Tensor, ridge: float) -> Tensor:
    """Return Anderson's weights for residuals ``(B, m, D)``, shape ``(B, m)``; all-zero residuals get weight 0."""
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
    """Solve by Gauss–Jordan elimination for ``(B, m, m)`` and ``(B, m)``, without pivots or host synchronisation."""
    size = matrix.shape[-1]
    unit = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    rows = torch.cat((matrix, right.unsqueeze(-1)), dim=-1)
    for k in range(size):
        pivot = rows[:, k : k + 1] / rows[:, k : k + 1, k : k + 1]
        rows = rows - (rows[:, :, k : k + 1] - unit[k].view(1, size, 1)) * pivot
    return rows[..., -1]


SOLVERS: dict[str, type[Solver]] = {"anderson": Anderson, "picard": Picard}
