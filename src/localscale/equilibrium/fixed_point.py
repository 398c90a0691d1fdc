"""``fixed_point``: solve z = f(z) with a solver, a gradient rule and a failure policy, chosen separately."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.equilibrium.gradients import GRADIENTS, Gradient
from localscale.equilibrium.solver import Estimate, Function, Solver, stops_early
from localscale.equilibrium.solvers import SOLVERS, Anderson
from localscale.errors import ConfigError, ConvergenceError, ConvergenceWarning, ShapeError, near_misses
from localscale.registry import choose

__all__ = ["POLICIES", "Solution", "fixed_point", "report_failures"]

logger = logging.getLogger(__name__)

POLICIES = ("warn", "raise", "identity")


@dataclass(frozen=True)
class Solution:
    """A batch of fixed points, and how well each was reached.

    ``value`` is f(z) for the best z found, ``residual`` is ‖f(z) − z‖/‖f(z)‖ there; ``residual``, ``steps`` and
    ``converged`` have shape ``(B,)``.
    """

    value: Tensor
    residual: Tensor
    steps: Tensor
    converged: Tensor


def fixed_point(
    f: Function,
    z0: Tensor,
    *,
    solver: str | Solver = Anderson(),  # noqa: B008 (frozen value)
    gradient: str | Gradient = "implicit",
    on_failure: str = "warn",
) -> Solution:
    """Solve z = f(z) for every sample of a batch.

    Args:
        f: takes ``(B, ...)`` to ``(B, ...)``, samples independent of each other.
        z0: where to start, ``(B, ...)``.
        solver: ``Anderson(…)``, ``Picard(…)``, or a registered name such as ``"anderson"``.
        gradient: ``Implicit()`` (exact, constant memory), ``Phantom(k)``, ``Unrolled()``, or a registered name such as
            ``"implicit"`` or ``"phantom(3)"``.
        on_failure: ``"warn"`` or ``"raise"`` when a sample does not converge, or ``"identity"`` to return ``z0`` for
            that sample. Warning and raising read the result on the host; with fixed steps, ``"warn"`` is silent and
            ``"raise"`` is refused. ``Solution.converged`` is always set.

    >>> a = torch.tensor([[0.5], [0.9]], requires_grad=True)
    >>> solution = fixed_point(lambda z: torch.cos(a * z), torch.zeros(2, 1))
    >>> bool(solution.converged.all())
    True
    >>> _ = solution.value.sum().backward()  # through the equilibrium, not the iterations
    """
    if not isinstance(z0, Tensor):
        raise ShapeError(f"z0 is a {type(z0).__name__}; expected a float32 or float64 (batch, ...) tensor")
    if z0.dim() < 2 or z0.dtype not in (torch.float32, torch.float64):
        raise ShapeError(
            f"z0 has shape {tuple(z0.shape)} and dtype {z0.dtype}; expected a float32 or float64 (batch, ...) tensor"
        )
    if not isinstance(solver, Solver):
        solver = choose("solver", solver, SOLVERS)
    rule = gradient if isinstance(gradient, Gradient) else choose("gradient", gradient, GRADIENTS)
    if on_failure not in POLICIES:
        raise ConfigError(f"no failure policy {on_failure!r}: {near_misses(str(on_failure), POLICIES)}")
    if on_failure == "raise" and solver.fixed_steps:
        raise ConfigError(
            'on_failure="raise" reads the result on the host, which a solver with fixed_steps=True never does; '
            'use "warn" or "identity"'
        )
    if torch.is_grad_enabled():
        value, estimate = rule.attach(f, z0, solver)
    else:
        estimate = solver.solve(f, z0)
        value = estimate.value
    reached = estimate.converged if on_failure == "identity" else estimate.residual < torch.inf
    value = torch.where(reached.view((-1,) + (1,) * (z0.dim() - 1)), value, z0)
    report_failures(estimate, solver, on_failure)
    return Solution(value, estimate.residual.detach(), estimate.steps, estimate.converged)


def report_failures(estimate: Estimate, solver: Solver, on_failure: str) -> None:
    """Warn or raise if samples did not converge; do nothing where reading the result would synchronise the host."""
    if on_failure == "identity" or not stops_early(solver.fixed_steps):
        return
    lost = int((~estimate.converged).sum())
    if not lost:
        return
    stopped = f"stopped above the tolerance {solver.tolerance:g} after {solver.max_steps} steps"
    remedy = "raise max_steps or loosen the tolerance"
    worst = float(estimate.residual.max())
    found = f"{lost} of {len(estimate.converged)} fixed points {stopped} (worst residual {worst:.1e})"
    if on_failure == "raise":
        raise ConvergenceError(f"{found}; {remedy}")
    logger.info(found)
    # The text holds no counts, so that Python shows the warning once and not at every training step.
    warnings.warn(f"some fixed points {stopped}, the report says which; {remedy}", ConvergenceWarning, stacklevel=3)
