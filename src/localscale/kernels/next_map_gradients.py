"""Compute the next map from the heads' scores, and the gradients of that step, in one launch each.

Forward is ``localscale.kernels.next_map.displacements_of``. Backward recomputes it from the scores and takes the
gradient through composition, fold guard, running sum, softmax, tanh and pooling. The reference is autograd on
``localscale.canonicalizer.network.MapNetwork`` after its heads, with the updates ``direct`` and ``compose`` on grid
maps. One program instance works on one image and adds up in a fixed order, so gradients are reproducible.

These functions are not registered as custom operators, so torch.compile cannot trace them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.availability import refuse_second_derivative
from localscale.kernels.launch import launch, power_above
from localscale.kernels.next_map import (
    cell_around,
    corner_need,
    displacements_of,
    edge_slopes,
    guard_factor,
    line_displacements,
    outer_displacement,
    raw_parameters,
    warps_for,
)

__all__ = ["differentiable_displacements"]

TINY = tl.constexpr(1.1920929e-07)  # the smallest discriminant, as in ``corner_need``
PLANES = 12  # scratch lattices per program instance: 2 for displacements, 8 for the guard, 2 for the composition


def differentiable_displacements(
    scores: Tensor,
    knots: tuple[int, int],
    *,
    temperature: float,
    guard: float | None,
    outer: Tensor | None = None,
) -> Tensor:
    """Return the displacements ``(B, 2, Ny, Nx)`` of the next map, from scores ``(B, 2, h, w)`` with biases added.

    With ``outer``, the displacements ``(B, 2, Ny, Nx)`` of another map, return those of outer∘map instead, re-sampled
    on the knots and guarded again. Everything is computed in float32. Differentiable once, with respect to both.
    """
    return _Displacements.apply(scores, outer, knots, temperature, guard)


class _Displacements(torch.autograd.Function):
    @staticmethod
    def forward(
        scores: Tensor, outer: Tensor | None, knots: tuple[int, int], temperature: float, guard: float | None
    ) -> Tensor:  # fmt: skip
        (columns, rows), scores = knots, scores.float()
        out = torch.empty(len(scores), 2, rows, columns, dtype=torch.float32, device=scores.device)
        settings = _settings(scores, knots, temperature, guard)
        launch(
            _displacements, (len(scores), 1, 1), settings.pop("warps"),
            scores, out if outer is None else _float32(outer), out,
            **settings, COMPOSE=outer is not None,
        )  # fmt: skip
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.knots, ctx.temperature, ctx.guard = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (grad,) = map(_float32, gradients)
        tensors = ctx.saved_tensors
        scores, composed = tensors[0].float(), tensors[1] is not None
        outer = _float32(tensors[1]) if composed else grad
        to_scores, to_outer = torch.empty_like(scores), torch.empty_like(outer)
        if to_scores.stride() != scores.stride():  # for example, scores are a slice of a tensor
            scores = scores.contiguous()
            to_scores = torch.empty_like(scores)
        scratch = scores.new_empty(len(scores), PLANES, *grad.shape[2:])
        settings = _settings(scores, ctx.knots, ctx.temperature, ctx.guard)
        launch(
            _displacements_backward, (len(scores), 1, 1), settings.pop("warps"),
            scores, outer, grad, to_scores, to_outer, scratch, **settings, COMPOSE=composed, PLANES=PLANES,
        )  # fmt: skip
        found = zip(ctx.needs_input_grad, (to_scores, to_outer), tensors, strict=False)
        return *(slope.to(tensor.dtype) if needed else None for needed, slope, tensor in found), None, None, None


def _float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32).contiguous()


def _settings(scores: Tensor, knots: tuple[int, int], temperature: float, guard: float | None) -> dict[str, Any]:
    """Return the kernel arguments that forward and backward share, and the number of warps."""
    height, width = scores.shape[2:]
    s_batch, s_head, s_row, s_column = scores.stride()
    tall, wide, most = (power_above(size) for size in (height, width, max(knots)))
    return {
        "warps": warps_for(most, tall, wide), "height": height, "width": width, "rows": knots[1], "columns": knots[0],
        "s_batch": s_batch, "s_head": s_head, "s_row": s_row, "s_column": s_column,
        "temperature": float(temperature), "epsilon": 0.0 if guard is None else float(guard),
        "HEIGHT": tall, "WIDTH": wide, "KNOTS": most, "GUARD": guard is not None,
    }  # fmt: skip


@triton.jit
def _displacements(
    scores, outer, out, height, width, rows, columns, s_batch, s_head, s_row, s_column, temperature, epsilon,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KNOTS: tl.constexpr, GUARD: tl.constexpr, COMPOSE: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    before = batch * 2 * rows * columns
    displacements_of(
        scores + batch * s_batch, s_head, s_row, s_column, 0.0, 0.0, outer + before, out + before,
        height, width, rows, columns, temperature, epsilon, HEIGHT, WIDTH, KNOTS, GUARD, COMPOSE,
    )  # fmt: skip


@triton.jit
def _through_corner(xx, yx, xy, yy, c, slope):
    """Return the gradients to a corner's slopes, given ``slope``, the gradient to the result of ``corner_need``."""
    trace, determinant = xx + yy, xx * yy - xy * yx
    square = trace * trace - 4 * c * determinant
    by_root = tl.where(square >= TINY, slope / tl.sqrt(tl.maximum(square, TINY)), 0.0)
    by_trace = (by_root * trace - slope) / (2 * c)
    return by_trace - by_root * yy, by_root * xy, by_root * yx, by_trace - by_root * xx


@triton.jit
def _scatter_to_planes(planes, top, bottom, left, right, i, j, rows, columns):
    """Write what each cell (i, j) adds to the gradients of its four knots, one plane per corner.

    ``top``, ``bottom``, ``left`` and ``right`` are the gradients to one component's slopes along the cell's edges.
    """
    mask, at, size = (i < rows - 1) & (j < columns - 1), planes + i * columns + j, rows * columns
    top, bottom, left, right = top * (columns - 1), bottom * (columns - 1), left * (rows - 1), right * (rows - 1)
    tl.store(at, -top - left, mask=mask)
    tl.store(at + size, top - right, mask=mask)
    tl.store(at + 2 * size, left - bottom, mask=mask)
    tl.store(at + 3 * size, bottom + right, mask=mask)


@triton.jit
def _gather_from_planes(planes, row, column, mask, rows, columns):
    """Return the gradients of knots (row, column), the sum over the four cells around each."""
    at, size = planes + row * columns + column, rows * columns
    below, right = mask & (row < rows - 1), column < columns - 1
    above, left = mask & (row > 0), column > 0
    total = tl.load(at, mask=below & right, other=0.0)
    total += tl.load(at + size - 1, mask=below & left, other=0.0)
    total += tl.load(at + 2 * size - columns, mask=above & right, other=0.0)
    return total + tl.load(at + 3 * size - columns - 1, mask=above & left, other=0.0)


@triton.jit
def _through_guard(displacements, grad, planes, rows, columns, epsilon, KNOTS: tl.constexpr):
    """Return the guard's factor, and write its gradient to the displacements into ``planes``.

    ``grad`` is the gradient to the guarded map. The corner with the largest need decides the factor; if several do,
    they share the gradient equally, as in torch.amax. ``_gather_from_planes`` reads the result.
    """
    i, j = tl.arange(0, KNOTS)[:, None], tl.arange(0, KNOTS)[None, :]
    mask, at, size = (i < rows) & (j < columns), i * columns + j, rows * columns
    along = tl.load(grad + at, mask=mask, other=0.0) * tl.load(displacements + at, mask=mask, other=0.0)
    along += tl.load(grad + size + at, mask=mask, other=0.0) * tl.load(displacements + size + at, mask=mask, other=0.0)
    top_x, bottom_x, left_x, right_x = edge_slopes(displacements, i, j, rows, columns)
    top_y, bottom_y, left_y, right_y = edge_slopes(displacements + size, i, j, rows, columns)
    c, cell = 1 - epsilon, (i < rows - 1) & (j < columns - 1)
    need_a = tl.where(cell, corner_need(top_x, top_y, left_x, left_y, c), 0.0)
    need_b = tl.where(cell, corner_need(top_x, top_y, right_x, right_y, c), 0.0)
    need_c = tl.where(cell, corner_need(bottom_x, bottom_y, left_x, left_y, c), 0.0)
    need_d = tl.where(cell, corner_need(bottom_x, bottom_y, right_x, right_y, c), 0.0)
    need = tl.maximum(tl.maximum(need_a, need_b), tl.maximum(need_c, need_d))
    need = tl.max(tl.max(need, axis=1), axis=0)
    worst_a, worst_b = (need_a == need).to(tl.float32), (need_b == need).to(tl.float32)
    worst_c, worst_d = (need_c == need).to(tl.float32), (need_d == need).to(tl.float32)
    ties = tl.sum(tl.sum(worst_a + worst_b + worst_c + worst_d, axis=1), axis=0)
    factor = 1 / tl.maximum(need, 1.0)
    slope = tl.where(need >= 1, -tl.sum(tl.sum(along, axis=1), axis=0) * factor * factor / ties, 0.0)
    xx_a, yx_a, xy_a, yy_a = _through_corner(top_x, top_y, left_x, left_y, c, slope * worst_a)
    xx_b, yx_b, xy_b, yy_b = _through_corner(top_x, top_y, right_x, right_y, c, slope * worst_b)
    xx_c, yx_c, xy_c, yy_c = _through_corner(bottom_x, bottom_y, left_x, left_y, c, slope * worst_c)
    xx_d, yx_d, xy_d, yy_d = _through_corner(bottom_x, bottom_y, right_x, right_y, c, slope * worst_d)
    _scatter_to_planes(planes, xx_a + xx_b, xx_c + xx_d, xy_a + xy_c, xy_b + xy_d, i, j, rows, columns)
    _scatter_to_planes(planes + 4 * size, yx_a + yx_b, yx_c + yx_d, yy_a + yy_c, yy_b + yy_d, i, j, rows, columns)
    tl.debug_barrier()
    return factor


@triton.jit
def _outer_jacobian(displacements, x, y, mask, rows, columns, component: tl.constexpr):
    """Return the derivatives along x and y of ``outer_displacement``."""
    a, b, c, d, s, t = cell_around(displacements, x, y, mask, rows, columns, component)
    along_x, along_y = (b - a) * (1 - t) + (d - c) * t, (c - a) * (1 - s) + (d - b) * s
    return along_x * (columns - 1), along_y * (rows - 1)


@triton.jit
def _through_composition(
    displacements, outer, grad, to_outer, composed, planes, rows, columns, epsilon,
    KNOTS: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """Turn the gradient to outer∘map into those to ``outer`` and, in ``composed``, to the inner map.

    ``displacements`` are the inner map's before its guard. ``composed`` first holds the displacements of outer∘map.
    """
    i, j = tl.arange(0, KNOTS)[:, None], tl.arange(0, KNOTS)[None, :]
    mask, at, size = (i < rows) & (j < columns), i * columns + j, rows * columns
    inner_x, inner_y = (j > 0) & (j < columns - 1), (i > 0) & (i < rows - 1)  # the borders do not move
    factor = 1.0
    if GUARD:
        factor = guard_factor(displacements, rows, columns, epsilon, KNOTS)
    x = factor * tl.load(displacements + at, mask=mask, other=0.0)
    y = factor * tl.load(displacements + size + at, mask=mask, other=0.0)
    to_x, to_y = j.to(tl.float32) / (columns - 1) + x, i.to(tl.float32) / (rows - 1) + y
    # Increments are positive, so only rounding can move a knot out of the unit square.
    to_x, to_y = tl.minimum(tl.maximum(to_x, 0.0), 1.0), tl.minimum(tl.maximum(to_y, 0.0), 1.0)
    grad_x = tl.load(grad + at, mask=mask, other=0.0)
    grad_y = tl.load(grad + size + at, mask=mask, other=0.0)
    if GUARD:
        x += outer_displacement(outer, to_x, to_y, mask, rows, columns, 0)
        y += outer_displacement(outer, to_x, to_y, mask, rows, columns, 1)
        tl.store(composed + at, tl.where(inner_x, x, 0.0), mask=mask)
        tl.store(composed + size + at, tl.where(inner_y, y, 0.0), mask=mask)
        tl.debug_barrier()
        again = _through_guard(composed, grad, planes, rows, columns, epsilon, KNOTS)
        grad_x = again * grad_x + _gather_from_planes(planes, i, j, mask, rows, columns)
        grad_y = again * grad_y + _gather_from_planes(planes + 4 * size, i, j, mask, rows, columns)
    grad_x, grad_y = tl.where(inner_x, grad_x, 0.0), tl.where(inner_y, grad_y, 0.0)
    xx, xy = _outer_jacobian(outer, to_x, to_y, mask, rows, columns, 0)
    yx, yy = _outer_jacobian(outer, to_x, to_y, mask, rows, columns, 1)
    tl.store(composed + at, grad_x + grad_x * xx + grad_y * yx, mask=mask)
    tl.store(composed + size + at, grad_y + grad_x * xy + grad_y * yy, mask=mask)
    # A knot of the outer map contributes to every point that lies between it and its neighbours.
    k, lattice_y = tl.arange(0, KNOTS), to_y * (rows - 1)
    across = tl.maximum(1 - tl.abs((to_x * (columns - 1))[:, :, None] - k[None, None, :]), 0.0)
    for row in range(0, rows):
        down = tl.maximum(1 - tl.abs(lattice_y - row), 0.0)
        share_x = tl.sum(tl.sum((down * grad_x)[:, :, None] * across, axis=1), axis=0)
        share_y = tl.sum(tl.sum((down * grad_y)[:, :, None] * across, axis=1), axis=0)
        tl.store(to_outer + row * columns + k, share_x, mask=k < columns)
        tl.store(to_outer + size + row * columns + k, share_y, mask=k < columns)
    tl.debug_barrier()


@triton.jit
def _through_line(raw, grad, j, cells, temperature):
    """Return the gradients to the mean score of every cell, given those to ``line_displacements``."""
    share = tl.where(j < cells, raw, float("-inf"))
    share = tl.exp(share - tl.max(share, axis=1)[:, None])
    share = share / tl.sum(share, axis=1)[:, None]
    grad = tl.cumsum(grad, axis=1, reverse=True)
    grad = share * (grad - tl.sum(share * grad, axis=1)[:, None])
    squashed = raw * temperature
    return grad * (1 - squashed * squashed) / temperature


@triton.jit
def _per_pixel(to_mean, i, j, lines, cells, size_across, size_along):
    """Divide the gradient to a cell's mean by its number of pixels (see ``next_map.raw_parameters``)."""
    across = ((i + 1) * size_across + lines - 1) // lines - i * size_across // lines
    along = ((j + 1) * size_along + cells - 1) // cells - j * size_along // cells
    return to_mean / (across * along).to(tl.float32)


@triton.jit
def _to_pixels(
    each, target, lines, cells, size_across, size_along, stride_across, stride_along,
    ACROSS: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    """Write the gradient of every pixel to ``target``: the sum of ``each`` over the cells that contain the pixel.

    As in adaptive pooling, pixel k of ``size`` lies in cells ⌊k·cells/size⌋ … ⌈(k + 1)·cells/size⌉ − 1.
    """
    i, j = tl.arange(0, ACROSS)[:, None], tl.arange(0, ALONG)[None, :]
    valid = (i < size_across) & (j < size_along)
    first, end = i * lines // size_across, ((i + 1) * lines + size_across - 1) // size_across
    start, stop = j * cells // size_along, ((j + 1) * cells + size_along - 1) // size_along
    total = tl.zeros((ACROSS, ALONG), tl.float32)
    for line in range(0, lines // size_across + 2):
        for cell in range(0, cells // size_along + 2):
            mask = valid & (first + line < end) & (start + cell < stop)
            total += tl.load(each + (first + line) * cells + start + cell, mask=mask, other=0.0)
    tl.store(target + i * stride_across + j * stride_along, total, mask=valid)


@triton.jit
def _displacements_backward(
    scores, outer, grad, to_scores, to_outer, scratch,
    height, width, rows, columns, s_batch, s_head, s_row, s_column, temperature, epsilon,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KNOTS: tl.constexpr, GUARD: tl.constexpr, COMPOSE: tl.constexpr,
    PLANES: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, KNOTS)[:, None], tl.arange(0, KNOTS)[None, :]
    size = rows * columns
    scores, to_scores = scores + batch * s_batch, to_scores + batch * s_batch
    outer, grad, to_outer = outer + batch * 2 * size, grad + batch * 2 * size, to_outer + batch * 2 * size
    displacements = scratch + batch * PLANES * size
    planes = displacements + 2 * size
    raw_x = raw_parameters(
        scores, 0.0, rows, columns - 1, height, width, s_row, s_column, temperature, HEIGHT, WIDTH, KNOTS
    )  # fmt: skip
    raw_y = raw_parameters(
        scores + s_head, 0.0, columns, rows - 1, width, height, s_column, s_row, temperature,
        WIDTH, HEIGHT, KNOTS,
    )  # fmt: skip
    factor = 1.0
    if GUARD or COMPOSE:
        line = line_displacements(raw_x, j, columns - 1)
        tl.store(displacements + i * columns + j + 1, line, mask=(i < rows) & (j < columns - 2))
        tl.store(displacements + i * columns + j * (columns - 1), tl.zeros_like(line), mask=(i < rows) & (j < 2))
        line = line_displacements(raw_y, j, rows - 1)
        tl.store(displacements + size + (j + 1) * columns + i, line, mask=(i < columns) & (j < rows - 2))
        tl.store(displacements + size + j * (rows - 1) * columns + i, tl.zeros_like(line), mask=(i < columns) & (j < 2))
        tl.debug_barrier()
    if COMPOSE:
        composed = planes + 8 * size
        _through_composition(
            displacements, outer, grad, to_outer, composed, planes, rows, columns, epsilon, KNOTS, GUARD
        )
        grad = composed
    if GUARD:
        factor = _through_guard(displacements, grad, planes, rows, columns, epsilon, KNOTS)
    inner = (i < rows) & (j < columns - 2)
    to_displacement = factor * tl.load(grad + i * columns + j + 1, mask=inner, other=0.0)
    if GUARD:
        to_displacement += _gather_from_planes(planes, i, j + 1, inner, rows, columns)
    to_mean = _through_line(raw_x, to_displacement, j, columns - 1, temperature)
    each = _per_pixel(to_mean, i, j, rows, columns - 1, height, width)
    tl.store(displacements + i * (columns - 1) + j, each, mask=(i < rows) & (j < columns - 1))
    inner = (i < columns) & (j < rows - 2)
    to_displacement = factor * tl.load(grad + size + (j + 1) * columns + i, mask=inner, other=0.0)
    if GUARD:
        to_displacement += _gather_from_planes(planes + 4 * size, j + 1, i, inner, rows, columns)
    to_mean = _through_line(raw_y, to_displacement, j, rows - 1, temperature)
    each = _per_pixel(to_mean, i, j, columns, rows - 1, width, height)
    tl.store(displacements + size + i * (rows - 1) + j, each, mask=(i < columns) & (j < rows - 1))
    tl.debug_barrier()
    _to_pixels(displacements, to_scores, rows, columns - 1, height, width, s_row, s_column, HEIGHT, WIDTH)
    _to_pixels(
        displacements + size, to_scores + s_head, columns, rows - 1, width, height, s_column, s_row, WIDTH, HEIGHT
    )  # fmt: skip
