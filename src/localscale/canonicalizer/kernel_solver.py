"""The equilibrium on a GPU, with the kernels in ``localscale.kernels``.

It covers grid maps, the updates ``direct`` and ``compose``, ``ConvNetwork`` and both solvers; the reference is
``localscale.equilibrium.fixed_point``. A step takes few kernel launches. Without gradients a whole solve is one
operator to ``torch.compile``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale import kernels
from localscale.canonicalizer.config import DECConfig
from localscale.canonicalizer.network import (
    IMAGE_CHANNELS,
    ConvNetwork,
    MapNetwork,
    convolutions,
    strides_of,
    working_size,
)
from localscale.canonicalizer.updates import Compose, Direct
from localscale.equilibrium.solver import Estimate, Function, Solver, stops_early
from localscale.equilibrium.solvers import Anderson, Picard

if TYPE_CHECKING:
    from localscale.kernels.mixing import Iteration

__all__ = ["KernelEvaluation", "KernelSolver", "has_gradient_kernels", "has_kernels", "solve_with_kernels"]

MOST_KNOTS = 32  # along an axis; the gradient kernel holds all knots of a map in one program


def has_kernels(config: DECConfig, features: Tensor) -> bool:
    """Return whether kernels exist for this configuration, and can run on ``features``."""
    known = (
        config.family == "grid"
        and isinstance(config.update, Direct | Compose)
        and isinstance(config.network, ConvNetwork)
        and isinstance(config.solver, Anderson | Picard)
    )
    return known and features.dtype != torch.float64 and features.shape[0] > 0 and kernels.available(features)


def has_gradient_kernels(config: DECConfig, working_copy: Tensor, knots: tuple[int, int]) -> bool:
    """Return whether kernels can also differentiate one step.

    These kernels are not registered as custom operators, so ``torch.compile`` cannot trace them.
    """
    return has_kernels(config, working_copy) and max(knots) <= MOST_KNOTS and kernels.can_launch_directly(working_copy)


@dataclass(frozen=True, eq=False)
class KernelEvaluation:
    """One solver step on states ``(B, D)``, in kernels with gradients; the reference is ``Canonicalizer._advance``."""

    network: MapNetwork
    working_copy: Tensor
    even: Tensor  # the identity's state
    knots: tuple[int, int]
    config: DECConfig

    def __call__(self, state: Tensor) -> Tensor:
        from localscale.kernels.next_map_gradients import differentiable_displacements
        from localscale.kernels.warp import unscale_with_separate_gradients

        network, (columns, rows) = self.network, self.knots
        current = (state - self.even).view(-1, 2, rows, columns)
        features = network.trunk(unscale_with_separate_gradients(self.working_copy, current))
        weights, biases = network.head_weights(features.dtype), network.head_biases(features.dtype)
        if features.is_contiguous():
            weighed = (weights @ features.flatten(2) + biases[:, None]).unflatten(2, features.shape[2:])
        else:  # channels last
            weighed = F.linear(features.permute(0, 2, 3, 1), weights, biases).permute(0, 3, 1, 2)
        displacements = differentiable_displacements(
            weighed,
            self.knots,
            temperature=network.temperature,
            guard=network.guard,
            outer=current if isinstance(self.config.update, Compose) else None,
        )
        return self.even + displacements.flatten(1)


class KernelSolver(Solver):
    """A solver that runs ``reference``'s iteration in kernels.

    For ``evaluation``, all steps run in kernels. For any other function, such as an adjoint, a kernel only computes the
    next point. If gradients are enabled, autograd must record every step, so ``reference`` itself is called.
    """

    def __init__(self, reference: Anderson | Picard, evaluation: KernelEvaluation) -> None:
        self.reference, self.evaluation = reference, evaluation
        self.max_steps, self.tolerance = reference.max_steps, reference.tolerance
        self.fixed_steps = reference.fixed_steps

    def solve(self, f: Function, z0: Tensor) -> Estimate:
        """Iterate from ``z0`` ``(B, D)``, which for ``evaluation`` is the identity."""
        if torch.is_grad_enabled():
            return self.reference.solve(f, z0)
        if f is not self.evaluation:
            return self._solve_between(f, z0)
        network, working_copy, knots, config = f.network, f.working_copy.detach(), f.knots, f.config
        found = solve_with_kernels(network, working_copy, knots, config, self.reference)
        return dataclasses.replace(found, point=z0 + found.point, value=z0 + found.value)

    def _solve_between(self, f: Function, z0: Tensor) -> Estimate:
        from localscale.kernels.mixing import Iteration

        solver = self.reference
        history, ridge = (solver.history, solver.ridge) if isinstance(solver, Anderson) else (0, 0.0)
        mixing: dict[str, Any] = {"history": history, "damping": solver.damping, "ridge": ridge}
        ends: dict[str, Any] = {"max_steps": solver.max_steps, "tolerance": solver.tolerance}
        iteration = Iteration.begin(len(z0), z0.shape[1], z0.device, **mixing, **ends)
        iteration.point.copy_(z0)
        _iterate(f, iteration, fixed_steps=not stops_early(solver.fixed_steps))
        point, value, residual = iteration.best_point, iteration.best_value, iteration.best
        return Estimate(point, value, residual, iteration.steps, residual <= solver.tolerance)


def solve_with_kernels(
    network: MapNetwork,
    features: Tensor,
    knots: tuple[int, int],
    config: DECConfig,
    solver: Anderson | Picard,
    *,
    resolution: int = 0,
) -> Estimate:
    """Return an estimate of the equilibrium displacements for each image of ``features`` ``(B, C, H, W)``.

    ``resolution`` is the longest side of the working copy; 0 means that ``features`` are a working copy.
    """
    from localscale.kernels.mixing import split_found

    launched = kernels.can_launch_directly(features)
    solve = _solve_now if launched else torch.ops.localscale.solve
    found, steps = solve(
        features,
        network.trunk.tensors(),
        [tensor for head in (network.to_x, network.to_y) for tensor in (head.weight, head.bias)],
        list(knots),
        resolution,
        network.temperature,
        network.guard or 0.0,
        isinstance(config.update, Compose),
        solver.history if isinstance(solver, Anderson) else 0,
        solver.max_steps,
        solver.tolerance,
        solver.damping,
        solver.ridge if isinstance(solver, Anderson) else 0.0,
        not stops_early(solver.fixed_steps),
        launched and resolution > 0,  # training has working copies, and compiled programs record the whole model
    )
    point, value, residual = split_found(found, len(features), 2 * math.prod(knots))
    return Estimate(point, value, residual, steps, residual <= solver.tolerance)


def _solve_now(
    features: Tensor, trunk: Sequence[Tensor], heads: Sequence[Tensor], knots: Sequence[int], resolution: int,
    temperature: float, guard: float, compose: bool, history: int, max_steps: int, tolerance: float, damping: float,
    ridge: float, fixed_steps: bool, replay: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from localscale.kernels.cuda_graphs import replay_or_call
    from localscale.kernels.equilibrium import launch_steps, prepare, product_dtype, supports
    from localscale.kernels.mixing import Iteration

    columns, rows = knots
    mixing: dict[str, Any] = {"history": history, "damping": damping, "ridge": ridge}
    mixing |= {"max_steps": max_steps, "tolerance": tolerance}
    settings: dict[str, Any] = {"temperature": temperature, "guard": guard or None, "compose": compose}

    def started() -> Iteration:
        return Iteration.begin(len(features), 2 * rows * columns, features.device, lattice=(rows, columns), **mixing)

    if not supports(trunk):
        working_copy, iteration = _working_copy(features, resolution, torch.float32), started()
        trunk, heads = ([parameter.float() for parameter in parameters] for parameters in (trunk, heads))
        _solve_together(working_copy, trunk, heads, iteration, fixed_steps=fixed_steps, **settings)
        return iteration.found, iteration.steps
    working_copy = _working_copy(features, resolution, product_dtype())
    first, second = strides_of(working_copy.shape[1], working_copy.shape[2], 2)

    def solve(start: Tensor, weight_1: Tensor, weight_2: Tensor) -> tuple[Tensor, Tensor]:
        iteration, weights = started(), (weight_1, weight_2)
        launch_steps(start, *weights, trunk, heads, (first, second), iteration, **settings)
        return iteration.found, iteration.steps

    given = prepare(working_copy, trunk, first)
    if not replay:
        return solve(*given)
    recorded_settings = (product_dtype(), first, second, rows, columns, *mixing.values(), *settings.values())
    return replay_or_call(solve, given, owner=trunk[0], reads=(trunk[1], trunk[3], *heads), settings=recorded_settings)


def _working_copy(features: Tensor, resolution: int, dtype: torch.dtype) -> Tensor:
    """Return ``Canonicalizer.working_copy(features)`` as ``(B, h, w, C)``; images are always float32."""
    from localscale.kernels.working_copy import normalise, shrink

    channels, height, width = features.shape[1:]
    size = working_size(height, width, resolution) if resolution else (height, width)
    if channels > IMAGE_CHANNELS and resolution:
        return normalise(features, *size, dtype)
    if size != (height, width):
        return shrink(features, *size)
    return features.permute(0, 2, 3, 1).to(dtype if channels > IMAGE_CHANNELS else torch.float32).contiguous()


def _solve_together(
    working_copy: Tensor, trunk: Sequence[Tensor], heads: Sequence[Tensor], iteration: Iteration, *,
    fixed_steps: bool, temperature: float, guard: float | None, compose: bool,
) -> None:  # fmt: skip
    """Step all images together, for trunks of any depth and width."""
    from localscale.kernels.next_map import next_displacements
    from localscale.kernels.warp import launch_unscale

    height, width = working_copy.shape[1:3]
    rows, columns = iteration.lattice

    def f(point: Tensor) -> Tensor:
        along_x, along_y = point.view(-1, 2, rows, columns).unbind(1)
        moved = launch_unscale(working_copy, along_x, along_y, height, width, channels_last=True)
        return next_displacements(
            convolutions(moved.permute(0, 3, 1, 2), trunk),
            (heads[0], heads[1], heads[2], heads[3]),
            (columns, rows),
            temperature=temperature,
            guard=guard,
            outer=point if compose else None,
        )

    _iterate(f, iteration, fixed_steps=fixed_steps)


def _iterate(f: Function, iteration: Iteration, *, fixed_steps: bool) -> None:
    """Step all samples; unless ``fixed_steps``, synchronise after each step and stop if all have converged."""
    for number in range(iteration.max_steps):
        iteration.advance(f(iteration.point), number)
        if not fixed_steps and not bool(iteration.active.any()):
            break


_solve = torch.library.custom_op("localscale::solve", _solve_now, mutates_args=())


@_solve.register_fake
def _(
    features: Tensor, trunk: Sequence[Tensor], heads: Sequence[Tensor], knots: Sequence[int], resolution: int,
    temperature: float, guard: float, compose: bool, history: int, max_steps: int, tolerance: float, damping: float,
    ridge: float, fixed_steps: bool, replay: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, size = features.shape[0], 2 * knots[0] * knots[1]
    found = features.new_empty(batch * (2 * size + 1), dtype=torch.float32)
    return found, features.new_empty(batch, dtype=torch.int64)
