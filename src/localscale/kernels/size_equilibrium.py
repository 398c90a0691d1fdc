"""Solve for the size equilibrium with about ten kernel launches per look and no host synchronisation.

The reference is ``localscale.equilibrium.fixed_point`` with the update ``compose`` and a
``localscale.canonicalizer.sizes.SizeEstimator``. Each look launches:

1. ``looks``: the image sampled through the current map;
2. ``size_network``: log sizes and weights on a coarse grid;
3. ``_correct``: the springs of the least-squares map and their balance (``lattice``). One program instance works on one
   axis of one image;
4. ``_settle``, and ``_correct`` again, for each further map of a look: the guarded composition of the maps so far, and
   the log sizes and weights through it;
5. ``_advance``: the composition with the current map, and the solver's step (``mixing``).

Not differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels import lattice, size_network
from localscale.kernels.equilibrium import product_dtype
from localscale.kernels.lattice import balance
from localscale.kernels.launch import Launch, power_above
from localscale.kernels.looks import look_launch
from localscale.kernels.mixing import Iteration, mix
from localscale.kernels.next_map import cell_around, guard_and_compose
from localscale.kernels.size_network import SizeWeights

__all__ = ["Correction", "launch_looks"]


@dataclass(frozen=True)
class Correction:
    """The settings of the least-squares map; see ``localscale.canonicalizer.sizes.SizeNetwork``."""

    target: float
    least: float  # the range of the excess s − s₀
    most: float
    background: float
    shear: float
    unseen: float
    settling: int
    guard: float | None


@triton.jit
def _interval(place, size):
    """Return the samples before and after ``place`` in [0,1] among ``size`` even samples, and the fraction between."""
    at = place * (size - 1)
    before = tl.maximum(tl.minimum(at.to(tl.int32), size - 2), 0)
    return before, tl.minimum(before + 1, size - 1), at - before


@triton.jit
def _pull(sizes, weights, at, mask, trust, target, least, most):
    """Return the weight w at a sample of the field, and w (T − 1) with the wanted scale T."""
    excess = tl.load(sizes + at, mask=mask, other=0.0) - target
    weight = tl.load(weights + at, mask=mask, other=0.0)
    scale = tl.exp(trust * tl.minimum(tl.maximum(excess, least), most))
    seen = (excess == excess) & (weight > 0) & (weight < float("inf"))
    weight = tl.where(seen, weight, 0.0)
    return weight, tl.where(seen, weight * (scale - 1), 0.0)


@triton.jit
def _field(
    sizes, weights, across, along, mask, size_across, size_along, stride_across, stride_along, trust, target,
    least, most,
):  # fmt: skip
    """Return ``_pull`` interpolated at the positions (``across``, ``along``) in [0,1]."""
    top, bottom, t = _interval(across, size_across)
    left, right, s = _interval(along, size_along)
    top, bottom, left, right = top * stride_across, bottom * stride_across, left * stride_along, right * stride_along
    a, pull_a = _pull(sizes, weights, top + left, mask, trust, target, least, most)
    b, pull_b = _pull(sizes, weights, top + right, mask, trust, target, least, most)
    c, pull_c = _pull(sizes, weights, bottom + left, mask, trust, target, least, most)
    d, pull_d = _pull(sizes, weights, bottom + right, mask, trust, target, least, most)
    weight = (a * (1 - s) + b * s) * (1 - t) + (c * (1 - s) + d * s) * t
    return weight, (pull_a * (1 - s) + pull_b * s) * (1 - t) + (pull_c * (1 - s) + pull_d * s) * t


@triton.jit(do_not_specialize=["step"])
def _correct(
    sizes, weights, trust, delta, springs, inverses, active, step, height, width, rows, columns, space, target, least,
    most, background, shear, unseen, KNOTS: tl.constexpr,
):  # fmt: skip
    """Write the displacements ``delta`` ``(2, rows, columns)`` of the least-squares map along one axis."""
    axis, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        # Lines of knots lie across the axis; the inner knots of each line are displaced along it.
        lines, knots = tl.where(axis == 0, rows, columns), tl.where(axis == 0, columns, rows)
        size_across, size_along = tl.where(axis == 0, height, width), tl.where(axis == 0, width, height)
        stride_across, stride_along = tl.where(axis == 0, width, 1), tl.where(axis == 0, 1, width)
        sizes, weights, inner = sizes + sample * height * width, weights + sample * height * width, knots - 2
        system = 2 * sample + axis
        springs += system * space
        horizontal, vertical = springs, springs + lines * (inner + 1)
        force, found, rest = vertical + lines * inner, vertical + 2 * lines * inner, vertical + 3 * lines * inner
        inverses += system * (KNOTS - 2) * KNOTS * KNOTS
        share = tl.load(trust)
        i, j = tl.arange(0, KNOTS)[:, None], tl.arange(0, KNOTS)[None, :]
        line, cells, gaps = i * (1.0 / (lines - 1)), knots - 1.0, lines - 1.0
        # Edges along the axis pull towards the wanted scale; edges across it resist shear.
        strength, pull = _field(
            sizes, weights, line, (j + 0.5) / cells, (i < lines) & (j < knots - 1),
            size_across, size_along, stride_across, stride_along, share, target, least, most,
        )  # fmt: skip
        stiffness = strength + background
        tl.store(horizontal + i * (inner + 1) + j, cells * cells * stiffness, mask=(i < lines) & (j < knots - 1))
        after, pull_after = _field(
            sizes, weights, line, (j + 1.5) / cells, (i < lines) & (j < inner),
            size_across, size_along, stride_across, stride_along, share, target, least, most,
        )  # fmt: skip
        rise = stiffness * pull / (strength + unseen)
        rise_after = (after + background) * pull_after / (after + unseen)
        tl.store(force + i * inner + j, cells * (rise - rise_after), mask=(i < lines) & (j < inner))
        between, _ = _field(
            sizes, weights, (i + 0.5) / gaps, (j + 1.0) / cells, (i < lines - 1) & (j < inner),
            size_across, size_along, stride_across, stride_along, share, target, least, most,
        )  # fmt: skip
        resistance = shear * gaps * gaps * (between + background)
        tl.store(vertical + i * inner + j, resistance, mask=(i < lines - 1) & (j < inner))
        tl.debug_barrier()
        balance(horizontal, vertical, force, found, inverses, rest, lines, inner, KNOTS, False)
        tl.debug_barrier()
        inside = (i < lines) & (j > 0) & (j < knots - 1)
        value = tl.load(found + i * inner + j - 1, mask=inside, other=0.0)
        at = tl.where(axis == 0, i * columns + j, j * columns + i)
        tl.store(delta + (2 * sample + axis) * rows * columns + at, value, mask=(i < lines) & (j < knots))


@triton.jit
def _sampled(field, x, y, mask, height, width):
    """Return a field ``(height, width)`` at points of [0,1]²; points outside are moved to the border."""
    x, y = tl.minimum(tl.maximum(x, 0.0), 1.0), tl.minimum(tl.maximum(y, 0.0), 1.0)
    left, right, s = _interval(x, width)
    top, bottom, t = _interval(y, height)
    upper = tl.load(field + top * width + left, mask=mask) * (1 - s)
    upper += tl.load(field + top * width + right, mask=mask) * s
    lower = tl.load(field + bottom * width + left, mask=mask) * (1 - s)
    lower += tl.load(field + bottom * width + right, mask=mask) * s
    return upper * (1 - t) + lower * t


@triton.jit
def _slopes(m, x, y, mask, rows, columns, component: tl.constexpr):
    """Return one component of l(p) − p at points p of [0,1]², and its slopes along x and y."""
    a, b, c, d, s, t = cell_around(m, x, y, mask, rows, columns, component)
    value = (a * (1 - s) + b * s) * (1 - t) + (c * (1 - s) + d * s) * t
    by_x = ((b - a) * (1 - t) + (d - c) * t) * (columns - 1)
    by_y = ((c - a) * (1 - s) + (d - b) * s) * (rows - 1)
    return value, by_x, by_y


@triton.jit(do_not_specialize=["step"])
def _settle(
    delta, before, sizes, weights, moved_sizes, moved_weights, active, step, height, width, rows, columns, epsilon,
    COMPOSE: tl.constexpr, KNOTS: tl.constexpr, GUARD: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Guard ``delta`` or, with COMPOSE, ``before`` ∘ ``delta``, and write the log sizes and weights through it."""
    sample = tl.program_id(0).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        delta, before = delta + sample * 2 * rows * columns, before + sample * 2 * rows * columns
        guard_and_compose(delta, before, rows, columns, epsilon, KNOTS, GUARD, COMPOSE)
        tl.debug_barrier()
        pixel = tl.arange(0, PIXELS)
        mask = pixel < height * width
        x = (pixel % width) * (1.0 / tl.maximum(width - 1, 1))
        y = tl.where(mask, pixel // width, 0) * (1.0 / tl.maximum(height - 1, 1))
        to_x, xx, xy = _slopes(delta, x, y, mask, rows, columns, 0)
        to_y, yx, yy = _slopes(delta, x, y, mask, rows, columns, 1)
        change = 0.5 * tl.log((1 + xx) * (1 + yy) - xy * yx)
        at = sample * height * width
        size = _sampled(sizes + at, x + to_x, y + to_y, mask, height, width) - change
        tl.store(moved_sizes + at + pixel, size, mask=mask)
        weight = _sampled(weights + at, x + to_x, y + to_y, mask, height, width)
        tl.store(moved_weights + at + pixel, weight, mask=mask)


@triton.jit(do_not_specialize=["step", "last"])
def _advance(
    delta, before, sizes, point, best_point, best_value, best, active, steps, points, errors, step, last,
    pixels, rows, columns, epsilon, tolerance, damping, ridge,
    SETTLED: tl.constexpr, GUARD: tl.constexpr, KNOTS: tl.constexpr, PIXELS: tl.constexpr, SIZE: tl.constexpr,
    HISTORY: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Compose ``point`` ∘ ``before`` ∘ ``delta`` into ``delta`` and take the solver's step; ``before`` if SETTLED."""
    sample = tl.program_id(0).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        at = sample * 2 * rows * columns
        guard_and_compose(delta + at, before + at, rows, columns, epsilon, KNOTS, GUARD, SETTLED)
        guard_and_compose(delta + at, point + at, rows, columns, epsilon, KNOTS, GUARD, True)
        tl.debug_barrier()
        # A look that is not finite gives sizes that are not; its image must not converge.
        pixel, d = tl.arange(0, PIXELS), tl.arange(0, SIZE)
        lost = 0 * tl.sum(tl.load(sizes + sample * pixels + pixel, mask=pixel < pixels, other=0.0), axis=0)
        inside = d < 2 * rows * columns
        tl.store(delta + at + d, tl.load(delta + at + d, mask=inside, other=0.0) + lost, mask=inside)
        tl.debug_barrier()
        mix(
            sample, point, delta, best_point, best_value, best, active, steps, points, errors, step, last,
            2 * rows * columns, rows, columns, tolerance, damping, ridge, SIZE, HISTORY, SLOTS,
        )  # fmt: skip


def launch_looks(
    levels: Tensor,
    source_size: tuple[int, int],
    look_size: tuple[int, int],
    count: int,
    weights: SizeWeights,
    strides: Sequence[int],
    trust: Tensor,
    iteration: Iteration,
    correction: Correction,
    *,
    largest: float,
    half: float,
) -> None:
    """Launch all looks of a solve and leave the result in ``iteration``.

    ``levels`` are the ``count`` levels of the pyramid of a source of ``source_size``, as ``looks.build_levels`` returns
    them. ``trust`` is the share of size changes that the network explains, a scalar tensor.
    """
    batch, device, (rows, columns) = len(levels), levels.device, iteration.lattice
    channels = weights.down[0].shape[2]  # the levels may hold more, for alignment
    looks = torch.empty(batch, *look_size, channels, dtype=product_dtype(), device=device)
    lattice_state: dict[str, Any] = {"rows": rows, "columns": columns, "active": iteration.active}
    launches = [look_launch(levels, looks, source_size, count, {**lattice_state, "point": iteration.point})]
    network, sizes, importance = size_network.launches(
        looks, weights, strides, iteration.active, largest=largest, half=half
    )
    launches += network
    (height, width), knots = sizes.shape[1:], power_above(max(rows, columns))
    pixels, guard = power_above(height * width), 0.0 if correction.guard is None else correction.guard
    first, second = torch.empty(2, *iteration.point.shape, device=device).unbind()
    moved_sizes, moved_weights = torch.empty(2, *sizes.shape, device=device).unbind()
    space = 6 * rows * columns  # of the springs of one system and what balances them
    springs = torch.empty(2 * batch * space, device=device)
    inverses = torch.empty(2 * batch * (knots - 2) * knots * knots, device=device)

    def correct(size: Tensor, weight: Tensor, delta: Tensor) -> Launch:
        return Launch(
            _correct, (2, batch, 1), lattice.WARPS, size, weight, trust, delta, springs, inverses,
            **lattice_state, height=height, width=width, space=space, target=correction.target,
            least=correction.least, most=correction.most, background=correction.background, shear=correction.shear,
            unseen=correction.unseen, KNOTS=knots,
        )  # fmt: skip

    launches.append(correct(sizes, importance, first))
    for number in range(correction.settling - 1):
        launches.append(
            Launch(
                _settle, (batch, 1, 1), 4, first, second, sizes, importance, moved_sizes, moved_weights,
                **lattice_state, height=height, width=width, epsilon=guard, COMPOSE=number > 0, KNOTS=knots,
                GUARD=correction.guard is not None, PIXELS=pixels,
            )
        )  # fmt: skip
        first, second = second, first
        launches.append(correct(moved_sizes, moved_weights, first))
    history = iteration.points.shape[1]
    launches.append(
        Launch(
            _advance, (batch, 1, 1), 4, first, second, sizes, iteration.point, iteration.best_point,
            iteration.best_value, iteration.best, steps=iteration.steps, points=iteration.points,
            errors=iteration.errors, last=iteration.max_steps - 1, **lattice_state, pixels=height * width,
            epsilon=guard, tolerance=iteration.tolerance, damping=iteration.damping, ridge=iteration.ridge,
            SETTLED=correction.settling > 1, GUARD=correction.guard is not None, KNOTS=knots, PIXELS=pixels,
            SIZE=power_above(2 * rows * columns), HISTORY=history, SLOTS=power_above(max(history, 2)),
        )
    )  # fmt: skip
    for step in range(iteration.max_steps):
        for launch in launches:
            launch(step)
