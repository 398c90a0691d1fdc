"""The size equilibrium on a GPU without gradients, with the kernels in ``localscale.kernels``.

The reference is ``localscale.equilibrium.fixed_point`` with a ``SizeEstimator``. A whole solve is one operator to
``torch.compile``; elsewhere it is recorded as a CUDA graph when it is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from localscale import kernels
from localscale.canonicalizer.config import DECConfig
from localscale.canonicalizer.looks import levels_for
from localscale.canonicalizer.network import strides_of
from localscale.canonicalizer.sizes import HALF_STRENGTH, LARGEST, WEIGHTS, SizeEstimator, SizeNetwork, edge_weight
from localscale.canonicalizer.updates import Compose
from localscale.equilibrium.solver import Estimate
from localscale.equilibrium.solvers import Anderson, Picard
from localscale.maps.similarity import MOST_KNOTS, UNSEEN

__all__ = ["has_size_kernels", "solve_sizes_with_kernels"]

FEWEST_KNOTS = 3  # along an axis


def has_size_kernels(config: DECConfig, network: object, source: Tensor, size: tuple[int, int]) -> bool:
    """Return whether kernels exist for this configuration and can run on looks of ``size`` at ``source``."""
    if not isinstance(network, SizeEstimator) or network.trunk is not None:
        return False
    if not kernels.available(source) or not len(source):
        return False
    from localscale.kernels.size_network import supports

    settings: SizeNetwork = network.settings
    strides = strides_of(*size, len(network.down))
    grid = [-(-side // 2 ** strides.count(2)) for side in size]
    known = isinstance(config.update, Compose) and isinstance(config.solver, Anderson | Picard)
    fits = min(network.knots) >= FEWEST_KNOTS and max(network.knots) <= MOST_KNOTS and source.dtype != torch.float64
    widths = [layer.out_channels for layer in network.down]
    plain = WEIGHTS.get(settings.weight) is edge_weight and not settings.sure
    return known and fits and plain and supports(widths, source.shape[1], (grid[0], grid[1]))


def solve_sizes_with_kernels(
    network: SizeEstimator, source: Tensor, size: tuple[int, int], config: DECConfig
) -> Estimate:
    """Return an estimate of the equilibrium displacements for each image of ``source`` ``(B, C, H, W)``."""
    from localscale.kernels.mixing import split_found

    settings, solver = network.settings, config.solver
    assert isinstance(solver, Anderson | Picard)
    launched = kernels.can_launch_directly(source)
    solve = _solve_now if launched else torch.ops.localscale.solve_sizes
    found, steps = solve(
        source, _tensors(network), network.trust, list(size), list(network.knots),
        [settings.target, *settings.range, settings.background, settings.shear, network.guard or 0.0],
        settings.settling,
        solver.history if isinstance(solver, Anderson) else 0, solver.max_steps, solver.tolerance, solver.damping,
        solver.ridge if isinstance(solver, Anderson) else 0.0, launched,
    )  # fmt: skip
    point, value, residual = split_found(found, len(source), 2 * network.knots[0] * network.knots[1])
    return Estimate(point, value, residual, steps, residual <= solver.tolerance)


def _tensors(network: SizeEstimator) -> list[Tensor]:
    """Return the parameters: the strided convolutions, those of the blocks, the norms and the head."""
    blocks: Any = network.blocks
    layers = [*network.down, *(layer for block in blocks for layer in block.convolutions)]
    norms = [*(norm for block in blocks for norm in block.norms), network.norm]
    return [tensor for layer in (*layers, *norms, network.head) for tensor in (layer.weight, layer.bias)]


def _lay_out(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the tensors of ``SizeWeights``, from what ``_tensors`` returned."""
    blocks = (len(tensors) - 10) // 8
    down, rest = tensors[:6], tensors[6:]
    convolutions, norms, head = rest[: 4 * blocks], rest[4 * blocks : -2], rest[-2:]
    wide = len(norms[0])
    empty = norms[0].new_empty(0, wide, wide, 3, 3)
    stacked = torch.stack(list(convolutions[::2])) if blocks else empty
    biases = torch.stack(list(convolutions[1::2])) if blocks else empty[..., 0, 0, 0]
    return [
        *(part.flatten(2).transpose(1, 2).to(dtype).contiguous() if part.dim() == 4 else part for part in down),
        stacked.flatten(3).transpose(2, 3).to(dtype).contiguous(),
        biases,
        torch.stack((torch.stack(list(norms[::2])), torch.stack(list(norms[1::2])))),
        head[0].flatten(),
        head[1],
    ]


def _solve_now(
    source: Tensor, tensors: Sequence[Tensor], trust: Tensor, size: Sequence[int], knots: Sequence[int],
    correction: Sequence[float], settling: int, history: int, max_steps: int, tolerance: float, damping: float,
    ridge: float, replay: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from localscale.kernels.cuda_graphs import replay_or_call
    from localscale.kernels.equilibrium import product_dtype
    from localscale.kernels.looks import build_levels
    from localscale.kernels.mixing import Iteration
    from localscale.kernels.size_equilibrium import Correction, launch_looks
    from localscale.kernels.size_network import SizeWeights

    (columns, rows), (height, width), dtype = knots, source.shape[-2:], product_dtype()
    target, least, most, background, shear, guard = correction
    look, count = (size[0], size[1]), levels_for((height, width), (size[0], size[1]))
    settings = Correction(target, least, most, background, shear, UNSEEN, settling, guard or None)

    def solve(levels: Tensor, share: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        iteration = Iteration.begin(
            len(levels), 2 * rows * columns, levels.device, history=history, max_steps=max_steps, tolerance=tolerance,
            damping=damping, ridge=ridge, lattice=(rows, columns),
        )  # fmt: skip
        launch_looks(
            levels, (height, width), look, count, SizeWeights.of(weights), strides_of(*look, 3), share, iteration,
            settings, largest=LARGEST, half=HALF_STRENGTH,
        )  # fmt: skip
        return iteration.found, iteration.steps

    given = (build_levels(source, count, dtype), trust.float(), *_lay_out(tensors, dtype))
    if not replay:
        return solve(*given)
    described = (dtype, height, width, look, rows, columns, settings, history, max_steps, tolerance, damping, ridge)
    return replay_or_call(solve, given, owner=tensors[0], settings=described)


_solve = torch.library.custom_op("localscale::solve_sizes", _solve_now, mutates_args=())


@_solve.register_fake
def _(
    source: Tensor, tensors: Sequence[Tensor], trust: Tensor, size: Sequence[int], knots: Sequence[int],
    correction: Sequence[float], settling: int, history: int, max_steps: int, tolerance: float, damping: float,
    ridge: float, replay: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, count = source.shape[0], 2 * knots[0] * knots[1]
    found = source.new_empty(batch * (2 * count + 1), dtype=torch.float32)
    return found, source.new_empty(batch, dtype=torch.int64)
