"""From the trunk's features to the next map, in one launch: pooling, heads, increments, guard, composition.

Its twin is the rest of ``localscale.canonicalizer.network.MapNetwork`` with the updates ``direct`` and ``compose``
on grid maps. One program works on one image. Nothing here is differentiable.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["next_offsets"]


@triton.jit
def _pooled_raw(dot, across, along, lines, line, cells, k, size_across, size_along, bias, temperature):
    """Raw parameters of one line of knots, ``tanh(mean + bias) / temperature``, for cells ``k`` along it.

    ``across`` and ``along`` are each pixel's place across the lines and along them; pixels that are none lie at −1.
    """
    first, end = line * size_across // lines, ((line + 1) * size_across + lines - 1) // lines
    start, stop = k * size_along // cells, ((k + 1) * size_along + cells - 1) // cells
    inside = ((across >= first) & (across < end))[None, :]
    inside = inside & (along[None, :] >= start[:, None]) & (along[None, :] < stop[:, None])
    count = ((end - first) * (stop - start)).to(dot.dtype)
    mean = tl.sum(tl.where(inside, dot[None, :], 0.0), axis=1) / count
    return (2 * tl.sigmoid(2 * (mean + bias)) - 1) / temperature


@triton.jit
def _line_offsets(raw, k, cells):
    """Displacements of the knots after each cell, from raw parameters: a softmax's surplus, summed up."""
    raw = tl.where(k < cells, raw, float("-inf"))
    share = tl.exp(raw - tl.max(raw, axis=0))
    surplus = share / tl.sum(share, axis=0) - 1.0 / cells
    return tl.cumsum(tl.where(k < cells, surplus, 0.0), axis=0)


@triton.jit
def _gradients(offsets, i, j, rows, columns):
    """One component's slopes along the edges of the cells (i, j): top and bottom along x, left and right along y."""
    mask = (i < rows - 1) & (j < columns - 1)
    at = offsets + i * columns + j
    a, b = tl.load(at, mask=mask, other=0.0), tl.load(at + 1, mask=mask, other=0.0)
    c, d = tl.load(at + columns, mask=mask, other=0.0), tl.load(at + columns + 1, mask=mask, other=0.0)
    return (b - a) * (columns - 1), (d - c) * (columns - 1), (c - a) * (rows - 1), (d - b) * (rows - 1)


@triton.jit
def _corner_need(xx, yx, xy, yy, c):
    """1/t of one corner with slopes ∂x/∂x, ∂y/∂x, ∂x/∂y, ∂y/∂y (see ``maps.folds.guard_factor``)."""
    trace, determinant = xx + yy, xx * yy - xy * yx
    discriminant = tl.maximum(trace * trace - 4 * c * determinant, 1.1920929e-07)
    return (tl.sqrt(discriminant) - trace) / (2 * c)


@triton.jit
def _guard_factor(offsets, rows, columns, epsilon, KNOTS: tl.constexpr):
    """How far a map of offsets ``(2, rows, columns)`` must shrink to have no determinant below ``epsilon``."""
    i, j = tl.arange(0, KNOTS)[:, None], tl.arange(0, KNOTS)[None, :]
    top_x, bottom_x, left_x, right_x = _gradients(offsets, i, j, rows, columns)
    top_y, bottom_y, left_y, right_y = _gradients(offsets + rows * columns, i, j, rows, columns)
    c = 1 - epsilon
    need = _corner_need(top_x, top_y, left_x, left_y, c)
    need = tl.maximum(need, _corner_need(top_x, top_y, right_x, right_y, c))
    need = tl.maximum(need, _corner_need(bottom_x, bottom_y, left_x, left_y, c))
    need = tl.maximum(need, _corner_need(bottom_x, bottom_y, right_x, right_y, c))
    need = tl.where((i < rows - 1) & (j < columns - 1), need, 1.0)
    return 1 / tl.maximum(tl.max(tl.max(need, axis=1), axis=0), 1.0)


@triton.jit
def _outer_shift(offsets, x, y, mask, rows, columns, component: tl.constexpr):
    """A component of l(q) − q at points q = (x, y), from the offsets of l's control points."""
    place_x, place_y = x * (columns - 1), y * (rows - 1)
    left = tl.maximum(tl.minimum(place_x.to(tl.int32), columns - 2), 0)
    top = tl.maximum(tl.minimum(place_y.to(tl.int32), rows - 2), 0)
    s, t = place_x - left, place_y - top
    at = offsets + component * rows * columns + top * columns + left
    a, b = tl.load(at, mask=mask, other=0.0), tl.load(at + 1, mask=mask, other=0.0)
    c, d = tl.load(at + columns, mask=mask, other=0.0), tl.load(at + columns + 1, mask=mask, other=0.0)
    upper, lower = a * (1 - s) + b * s, c * (1 - s) + d * s
    return upper * (1 - t) + lower * t


@triton.jit
def _next_offsets(
    features, weight_x, bias_x, weight_y, bias_y, outer, out, channels, height, width, rows, columns,
    f_batch, f_channel, f_row, f_column, temperature, epsilon,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, KNOTS: tl.constexpr, GUARD: tl.constexpr, COMPOSE: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    pixel = tl.arange(0, PIXELS)
    there = pixel < height * width
    row, column = tl.where(there, pixel // width, -1), tl.where(there, pixel % width, -1)
    place = (pixel // width) * f_row + (pixel % width) * f_column
    dot_x, dot_y = tl.zeros((PIXELS,), tl.float32), tl.zeros((PIXELS,), tl.float32)
    for start in range(0, channels, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        mask = (channel < channels)[:, None] & there[None, :]
        at = features + batch * f_batch + channel[:, None] * f_channel + place[None, :]
        value = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        dot_x += tl.sum(value * tl.load(weight_x + channel, mask=channel < channels, other=0.0)[:, None], axis=0)
        dot_y += tl.sum(value * tl.load(weight_y + channel, mask=channel < channels, other=0.0)[:, None], axis=0)
    k = tl.arange(0, KNOTS)
    along_x = out + batch * 2 * rows * columns
    along_y = along_x + rows * columns
    zero = tl.zeros((KNOTS,), tl.float32)
    constant_x, constant_y = tl.load(bias_x), tl.load(bias_y)
    for line in range(0, rows):
        raw = _pooled_raw(dot_x, row, column, rows, line, columns - 1, k, height, width, constant_x, temperature)
        tl.store(along_x + line * columns + k + 1, _line_offsets(raw, k, columns - 1), mask=k < columns - 2)
        tl.store(along_x + line * columns + k * (columns - 1), zero, mask=k < 2)
    for line in range(0, columns):
        raw = _pooled_raw(dot_y, column, row, columns, line, rows - 1, k, width, height, constant_y, temperature)
        tl.store(along_y + (k + 1) * columns + line, _line_offsets(raw, k, rows - 1), mask=k < rows - 2)
        tl.store(along_y + k * (rows - 1) * columns + line, zero, mask=k < 2)
    tl.debug_barrier()
    i, j = tl.arange(0, KNOTS)[:, None], tl.arange(0, KNOTS)[None, :]
    mask, at = (i < rows) & (j < columns), i * columns + j
    factor = 1.0
    if GUARD:
        factor = _guard_factor(along_x, rows, columns, epsilon, KNOTS)
    x = factor * tl.load(along_x + at, mask=mask, other=0.0)
    y = factor * tl.load(along_y + at, mask=mask, other=0.0)
    tl.debug_barrier()
    if COMPOSE:
        even_x, even_y = j.to(tl.float32) / (columns - 1), i.to(tl.float32) / (rows - 1)
        before = outer + batch * 2 * rows * columns
        to_x = tl.minimum(tl.maximum(even_x + x, 0.0), 1.0)
        to_y = tl.minimum(tl.maximum(even_y + y, 0.0), 1.0)
        x += _outer_shift(before, to_x, to_y, mask, rows, columns, 0)
        y += _outer_shift(before, to_x, to_y, mask, rows, columns, 1)
        x = tl.where((j == 0) | (j == columns - 1), 0.0, x)
        y = tl.where((i == 0) | (i == rows - 1), 0.0, y)
        if GUARD:
            tl.store(along_x + at, x, mask=mask)
            tl.store(along_y + at, y, mask=mask)
            tl.debug_barrier()
            again = _guard_factor(along_x, rows, columns, epsilon, KNOTS)
            x, y = again * x, again * y
            tl.debug_barrier()
    tl.store(along_x + at, x, mask=mask)
    tl.store(along_y + at, y, mask=mask)


def next_offsets(
    features: Tensor,
    heads: tuple[Tensor, Tensor, Tensor, Tensor],
    knots: tuple[int, int],
    *,
    temperature: float,
    guard: float | None,
    outer: Tensor | None = None,
) -> Tensor:
    """Offsets ``(B, 2·Ny·Nx)`` of the next map from features ``(B, C, h, w)``, composed with ``outer`` if given.

    ``heads`` are weight and bias of the heads along x and y; ``outer`` is given as offsets too.
    """
    batch, channels, height, width = features.shape
    columns, rows = knots
    out = torch.empty(batch, 2 * rows * columns, dtype=torch.float32, device=features.device)
    pixels = triton.next_power_of_2(height * width)
    _next_offsets[(batch,)](
        features, *heads, out if outer is None else outer, out, channels, height, width, rows, columns,
        *features.stride(), temperature, 0.0 if guard is None else guard,
        PIXELS=pixels, CHANNELS=max(1, min(16, 4096 // pixels)), KNOTS=triton.next_power_of_2(max(knots)),
        GUARD=guard is not None, COMPOSE=outer is not None, num_warps=4,
    )  # fmt: skip
    return out
