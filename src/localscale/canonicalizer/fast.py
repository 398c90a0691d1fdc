"""The equilibrium without gradients on a GPU: few launches per evaluation, and one operator to ``torch.compile``.

The twin of ``localscale.equilibrium.fixed_point`` on the updates ``direct`` and ``compose`` for grid maps, made of
the kernels in ``localscale.kernels``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from localscale import kernels
from localscale.canonicalizer.config import DECConfig
from localscale.canonicalizer.network import MapNetwork, convolutions, stride_of
from localscale.equilibrium.solvers import Anderson, Estimate, stops_early

__all__ = ["can_solve_fast", "solve_fast"]


def can_solve_fast(config: DECConfig, copy: Tensor) -> bool:
    """Whether this solve has kernels, on this device and without anyone asking for gradients."""
    fits = config.family == "grid" and config.update in ("direct", "compose") and copy.dtype == torch.float32
    return fits and not torch.is_grad_enabled() and kernels.usable(copy)


def solve_fast(network: MapNetwork, copy: Tensor, knots: tuple[int, int], config: DECConfig) -> Estimate:
    """The best map found for each image of ``copy`` ``(B, C, h, w)``: a solver's estimate of its offsets."""
    solver = config.make_solver()
    offsets, residual, steps = torch.ops.localscale.solve(
        copy,
        network.trunk.parameters_as(copy.dtype),
        [tensor.to(copy.dtype) for head in (network.to_x, network.to_y) for tensor in (head.weight, head.bias)],
        list(knots),
        network.temperature,
        network.guard or 0.0,
        config.update == "compose",
        solver.history if isinstance(solver, Anderson) else 0,
        solver.max_steps,
        solver.tolerance,
        solver.damping,
        solver.ridge if isinstance(solver, Anderson) else 0.0,
        not stops_early(solver.fixed),
    )
    return Estimate(offsets, offsets, residual, steps, residual <= solver.tolerance)


@torch.library.custom_op("localscale::solve", mutates_args=())
def _solve(
    copy: Tensor, trunk: Sequence[Tensor], heads: Sequence[Tensor], knots: Sequence[int], temperature: float,
    guard: float, compose: bool, history: int, max_steps: int, tolerance: float, damping: float, ridge: float,
    fixed: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from localscale.kernels.head import next_offsets
    from localscale.kernels.mixing import Iteration

    columns, rows = knots
    observe = _observer(copy, trunk[0], trunk[1])
    mixing: dict[str, Any] = {"history": history, "tolerance": tolerance, "damping": damping, "ridge": ridge}
    iteration = Iteration.begin(len(copy), 2 * rows * columns, copy.device, lattice=(rows, columns), **mixing)
    for number in range(max_steps):
        along_x, along_y = iteration.point.view(-1, 2, rows, columns).unbind(1)
        image = next_offsets(
            convolutions(observe(along_x, along_y), trunk[2:]),
            (heads[0], heads[1], heads[2], heads[3]),
            (columns, rows),
            temperature=temperature,
            guard=guard or None,
            outer=iteration.point if compose else None,
        )
        iteration.advance(image, number)
        if not fixed and not bool(iteration.active.any()):
            break
    return iteration.best_image, iteration.best, iteration.steps


def _observer(copy: Tensor, weight: Tensor, bias: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """What takes a map's displacements to the first layer of its canonical form."""
    from localscale.kernels.first_layer import MOST_CHANNELS, WIDEST, first_layer, project_taps
    from localscale.kernels.warp import launch_unscale

    channels, height, width = copy.shape[1:]
    stride, wide = stride_of(height, width), len(bias)
    settings: dict[str, Any] = {"weight": weight, "bias": bias, "stride": stride}
    if wide <= WIDEST and channels <= MOST_CHANNELS:
        return functools.partial(first_layer, copy, **settings)
    if wide <= WIDEST and stride == 1 and channels >= 9 * wide:  # then the taps' results are no more to read
        return functools.partial(first_layer, project_taps(copy, weight), projected=True, **settings)
    return lambda along_x, along_y: convolutions(launch_unscale(copy, along_x, along_y, height, width), (weight, bias))


@_solve.register_fake
def _(
    copy: Tensor, trunk: Sequence[Tensor], heads: Sequence[Tensor], knots: Sequence[int], temperature: float,
    guard: float, compose: bool, history: int, max_steps: int, tolerance: float, damping: float, ridge: float,
    fixed: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch = copy.shape[0]
    state = copy.new_empty(batch, 2 * knots[0] * knots[1])
    return state, copy.new_empty(batch), copy.new_empty(batch, dtype=torch.int64)
