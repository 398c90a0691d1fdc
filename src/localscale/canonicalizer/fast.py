"""The equilibrium without gradients on a GPU: few launches per evaluation, and one operator to ``torch.compile``.

The twin of ``localscale.equilibrium.fixed_point`` on the updates ``direct`` and ``compose`` for grid maps, made of
the kernels in ``localscale.kernels``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from localscale import kernels
from localscale.canonicalizer.config import DECConfig
from localscale.canonicalizer.network import MapNetwork, convolutions
from localscale.conventions import lattice
from localscale.equilibrium.solvers import Anderson, Estimate, stops_early

__all__ = ["can_solve_fast", "solve_fast"]


def can_solve_fast(config: DECConfig, copy: Tensor) -> bool:
    """Whether this solve has kernels, on this device and without anyone asking for gradients."""
    fits = config.family == "grid" and config.update in ("direct", "compose") and copy.dtype == torch.float32
    return fits and not torch.is_grad_enabled() and kernels.usable(copy)


def solve_fast(network: MapNetwork, copy: Tensor, knots: tuple[int, int], config: DECConfig) -> Estimate:
    """The best map found for each image of ``copy`` ``(B, C, h, w)``, as a solver's estimate."""
    solver = config.make_solver()
    image, residual, steps = torch.ops.localscale.solve(
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
    return Estimate(image, image, residual, steps, residual <= solver.tolerance)


@torch.library.custom_op("localscale::solve", mutates_args=())
def _solve(
    copy: Tensor, trunk: Sequence[Tensor], heads: Sequence[Tensor], knots: Sequence[int], temperature: float,
    guard: float, compose: bool, history: int, max_steps: int, tolerance: float, damping: float, ridge: float,
    fixed: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from localscale.kernels.head import next_state
    from localscale.kernels.mixing import Iteration
    from localscale.kernels.warp import fused_unscale

    columns, rows = knots
    even = lattice(rows, columns, dtype=copy.dtype, device=copy.device).permute(2, 0, 1).reshape(1, -1)
    start = even.expand(len(copy), -1)
    iteration = Iteration.begin(start, history=history, tolerance=tolerance, damping=damping, ridge=ridge)
    for number in range(max_steps):
        along_x, along_y = (iteration.point - even).unflatten(1, (2, rows, columns)).unbind(1)
        features = convolutions(fused_unscale(copy, along_x, along_y, "NCHW"), trunk)
        image = next_state(
            features,
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


@_solve.register_fake
def _(
    copy: Tensor, trunk: Sequence[Tensor], heads: Sequence[Tensor], knots: Sequence[int], temperature: float,
    guard: float, compose: bool, history: int, max_steps: int, tolerance: float, damping: float, ridge: float,
    fixed: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch = copy.shape[0]
    state = copy.new_empty(batch, 2 * knots[0] * knots[1])
    return state, copy.new_empty(batch), copy.new_empty(batch, dtype=torch.int64)
