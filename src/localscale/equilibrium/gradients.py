"""Gradient rules: how autograd differentiates a fixed point, whichever solver found it.

Each rule runs a solver on f from a starting point and attaches the value f(z*) to the autograd graph in its own way.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from localscale.equilibrium.solver import Estimate, Function, Solver, stops_early
from localscale.equilibrium.solvers import SOLVERS
from localscale.errors import ConfigError, GradientError
from localscale.registry import Checked, choose

__all__ = ["GRADIENTS", "Gradient", "Implicit", "Phantom", "Unrolled"]

logger = logging.getLogger(__name__)


class Gradient(Checked, ABC):
    """A rule that differentiates a fixed point."""

    @abstractmethod
    def attach(self, f: Function, z0: Tensor, solver: Solver) -> tuple[Tensor, Estimate]:
        """Solve from ``z0``; return the value with its gradient, and the solver's estimate."""


@dataclass(frozen=True)
class Implicit(Gradient):
    """The exact gradient by the implicit function theorem, with memory independent of the number of steps.

    With J = ∂f/∂z at the equilibrium, dz = (1 − J)⁻¹ ∂f/∂θ dθ; backward solves the adjoint fixed point u = v + Jᵀu with
    ``adjoint`` (by default the solver that found the equilibrium), then backpropagates u through one evaluation of f.
    """

    adjoint: Solver | None = None

    def __post_init__(self) -> None:
        if self.adjoint is not None and not isinstance(self.adjoint, Solver):
            object.__setattr__(self, "adjoint", choose("adjoint", self.adjoint, SOLVERS))
        super().__post_init__()

    def attach(self, f: Function, z0: Tensor, solver: Solver) -> tuple[Tensor, Estimate]:
        with torch.no_grad():
            estimate = solver.solve(f, z0)
        point, adjoint = estimate.point.detach(), self.adjoint or solver
        if not _graph_is_reusable():
            return ImplicitAdjoint.apply(f(point), point, f, adjoint), estimate
        with torch.compiler.set_stance("force_eager"):  # a compiled graph frees its saved tensors after one use
            value = f(point.requires_grad_())
        if not _depends_on_more(value, point):
            return value.detach(), estimate
        return ImplicitAdjoint.apply(value, point, None, adjoint), estimate


@dataclass(frozen=True)
class Phantom(Gradient):
    """Backpropagate through ``steps`` more (damped) steps only: cheap, but not the gradient of the equilibrium."""

    steps: int = 1
    damping: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise ConfigError(f"phantom steps is {self.steps}; expected at least 1")
        if not 0 < self.damping <= 1:
            raise ConfigError(f"phantom damping is {self.damping}; expected above 0 and at most 1")

    def attach(self, f: Function, z0: Tensor, solver: Solver) -> tuple[Tensor, Estimate]:
        with torch.no_grad():
            estimate = solver.solve(f, z0)
        value = estimate.point.detach()
        for _ in range(self.steps):
            value = torch.lerp(value, f(value), self.damping)
        return value, estimate


@dataclass(frozen=True)
class Unrolled(Gradient):
    """Backpropagate through every step of the solver; memory grows with the number of steps."""

    def attach(self, f: Function, z0: Tensor, solver: Solver) -> tuple[Tensor, Estimate]:
        estimate = solver.solve(f, z0)
        return estimate.value, estimate


class ImplicitAdjoint(torch.autograd.Function):
    """The identity on f(z*); its backward solves the adjoint equation."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, point: Tensor, f: Function | None, solver: Solver) -> Tensor:
        """Return ``value``."""
        ctx.save_for_backward(value, point)
        ctx.f, ctx.solver = f, solver
        return value.clone()

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None, None]:
        """Solve u = v + Jᵀu."""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise GradientError(
                'gradient="implicit" gives first derivatives only; use gradient="unrolled" where a gradient is '
                "differentiated again (create_graph=True)"
            )
        pull_back = _pull_back(ctx.f, *ctx.saved_tensors)
        adjoint = ctx.solver.solve(lambda u: v + pull_back(u), v)
        if stops_early(ctx.solver.fixed_steps) and not bool(adjoint.converged.all()):
            lost = int((~adjoint.converged).sum())
            worst = float(adjoint.residual.max())
            logger.info("adjoint: %d of %d samples above tolerance, worst residual %.1e", lost, len(v), worst)
        return adjoint.value, None, None, None


def _depends_on_more(value: Tensor, point: Tensor) -> bool:
    """Return whether ``value`` has a gradient with respect to anything but ``point``."""
    seen, ahead = set(), [value.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if getattr(node, "variable", point) is not point:
            return True
        seen.add(node)
        ahead += [following for following, _ in node.next_functions]
    return False


def _graph_is_reusable() -> bool:
    """Return whether the graph of one evaluation can be used in every step of the adjoint.

    With saved-tensor hooks, as in activation checkpointing, each use may recompute the saved tensors.
    """
    return not torch.compiler.is_compiling() and torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def _pull_back(f: Function | None, value: Tensor, point: Tensor) -> Function:
    """Return u ↦ Jᵀu with J = ∂f/∂z at ``point``, from the graph of ``value`` or from another evaluation of ``f``."""
    if f is not None and torch.compiler.is_compiling():  # dynamo traces vjp, but not autograd.grad with a kept graph
        vjp = torch.func.vjp(f, point)[1]
        return lambda u: vjp(u)[0]
    if f is not None:
        with torch.enable_grad(), torch.compiler.set_stance("force_eager"):
            point = point.detach().requires_grad_()
            value = f(point)
    return lambda u: torch.autograd.grad(value, point, u, retain_graph=True, materialize_grads=True)[0]


GRADIENTS: dict[str, type[Gradient]] = {"implicit": Implicit, "phantom": Phantom, "unrolled": Unrolled}
