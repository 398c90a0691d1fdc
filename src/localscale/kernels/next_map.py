"""Compute the next map from the features of the network's trunk, in one launch.

``next_displacements`` applies the two heads (1 × 1 convolutions to one *score* per pixel, along x and along y), pools
the scores to the cells of the map's lattice, turns them into increments by tanh and softmax, sums the increments up to
displacements, applies the fold guard, and composes with the current map for the update ``compose``. The reference is
``localscale.canonicalizer.network.MapNetwork`` after its trunk, with the updates ``direct`` and ``compose`` on grid
maps, which takes many small launches. One program instance works on one image.

Not differentiable; ``next_map_gradients`` has the version with gradients. The other functions here are device
functions that both share.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import launch, power_above

__all__ = [
    "cell_around", "corner_need", "displacements_of", "edge_slopes", "guard_and_compose", "guard_factor",
    "line_displacements", "next_displacements", "outer_displacement", "raw_parameters", "warps_for",
]  # fmt: skip


def warps_for(knots: int, height: int, width: int) -> int:
    """Return the number of warps that pool pixels to knots: one if the scores fit into its registers, else eight.

    All arguments are the powers of two that the kernel is compiled for.
    """
    return 1 if knots * height * max(knots, width) <= 4096 else 8


@triton.jit
def raw_parameters(
    scores, bias, lines, cells, size_across, size_along, stride_across, stride_along, temperature,
    ACROSS: tl.constexpr, ALONG: tl.constexpr, KNOTS: tl.constexpr,
):  # fmt: skip
    """Return the raw parameter ``tanh(mean score + bias) / temperature`` of every cell of every line of knots.

    Row k of the answer is a line of knots, column j a cell between two of its knots. Cells lie *along* one axis of the
    scores, lines *across* it, so that one function serves x and y.
    """
    i, j, k = tl.arange(0, ACROSS), tl.arange(0, ALONG), tl.arange(0, KNOTS)
    valid = (i < size_across)[:, None] & (j < size_along)[None, :]
    value = tl.load(scores + i[:, None] * stride_across + j[None, :] * stride_along, mask=valid, other=0.0)
    start, stop = k * size_along // cells, ((k + 1) * size_along + cells - 1) // cells
    first, end = k * size_across // lines, ((k + 1) * size_across + lines - 1) // lines
    in_cell = (j[None, :] >= start[:, None]) & (j[None, :] < stop[:, None])
    in_line = (i[None, :] >= first[:, None]) & (i[None, :] < end[:, None])
    by_cell = tl.sum(tl.where(in_cell[None, :, :], value[:, None, :], 0.0), axis=2)
    total = tl.sum(tl.where(in_line[:, :, None], by_cell[None, :, :], 0.0), axis=1)
    count = (end - first)[:, None] * (stop - start)[None, :]
    return (2 * tl.sigmoid(2 * (total / count.to(tl.float32) + bias)) - 1) / temperature


@triton.jit
def line_displacements(raw, k, cells):
    """Return the displacement of the knot after each cell, from the raw parameters of every line.

    A cell's increment is its softmax share of the line; the displacements are the running sums of share − 1 / cells.
    """
    raw = tl.where(k < cells, raw, float("-inf"))
    share = tl.exp(raw - tl.max(raw, axis=1)[:, None])
    surplus = share / tl.sum(share, axis=1)[:, None] - 1.0 / cells
    return tl.cumsum(tl.where(k < cells, surplus, 0.0), axis=1)


@triton.jit
def edge_slopes(displacements, i, j, rows, columns):
    """Return the slopes of one component along the edges of cells (i, j).

    Those of the top and bottom edges are along x, those of the left and right edges along y.
    """
    mask = (i < rows - 1) & (j < columns - 1)
    at = displacements + i * columns + j
    a, b = tl.load(at, mask=mask, other=0.0), tl.load(at + 1, mask=mask, other=0.0)
    c, d = tl.load(at + columns, mask=mask, other=0.0), tl.load(at + columns + 1, mask=mask, other=0.0)
    return (b - a) * (columns - 1), (d - c) * (columns - 1), (c - a) * (rows - 1), (d - b) * (rows - 1)


@triton.jit
def corner_need(xx, yx, xy, yy, c):
    """Return 1 / t for one corner of a cell, where t is the factor that the guard allows there.

    The arguments are the slopes ∂x/∂x, ∂y/∂x, ∂x/∂y, ∂y/∂y; see ``maps.folds.guard_factor``.
    """
    trace, determinant = xx + yy, xx * yy - xy * yx
    discriminant = tl.maximum(trace * trace - 4 * c * determinant, 1.1920929e-07)
    return (tl.sqrt(discriminant) - trace) / (2 * c)


@triton.jit
def guard_factor(displacements, rows, columns, epsilon, KNOTS: tl.constexpr):
    """Return the factor for displacements ``(2, rows, columns)`` that keeps every determinant at least ``epsilon``."""
    i, j = tl.arange(0, KNOTS)[:, None], tl.arange(0, KNOTS)[None, :]
    top_x, bottom_x, left_x, right_x = edge_slopes(displacements, i, j, rows, columns)
    top_y, bottom_y, left_y, right_y = edge_slopes(displacements + rows * columns, i, j, rows, columns)
    c = 1 - epsilon
    need = corner_need(top_x, top_y, left_x, left_y, c)
    need = tl.maximum(need, corner_need(top_x, top_y, right_x, right_y, c))
    need = tl.maximum(need, corner_need(bottom_x, bottom_y, left_x, left_y, c))
    need = tl.maximum(need, corner_need(bottom_x, bottom_y, right_x, right_y, c))
    need = tl.where((i < rows - 1) & (j < columns - 1), need, 1.0)
    return 1 / tl.maximum(tl.max(tl.max(need, axis=1), axis=0), 1.0)


@triton.jit
def cell_around(displacements, x, y, mask, rows, columns, component: tl.constexpr):
    """Return one component of the displacements at the four control points around (x, y), and the fractions between."""
    lattice_x, lattice_y = x * (columns - 1), y * (rows - 1)
    left = tl.maximum(tl.minimum(lattice_x.to(tl.int32), columns - 2), 0)
    top = tl.maximum(tl.minimum(lattice_y.to(tl.int32), rows - 2), 0)
    at = displacements + component * rows * columns + top * columns + left
    a, b = tl.load(at, mask=mask, other=0.0), tl.load(at + 1, mask=mask, other=0.0)
    c, d = tl.load(at + columns, mask=mask, other=0.0), tl.load(at + columns + 1, mask=mask, other=0.0)
    return a, b, c, d, lattice_x - left, lattice_y - top


@triton.jit
def outer_displacement(displacements, x, y, mask, rows, columns, component: tl.constexpr):
    """Return one component of l(q) − q at points q = (x, y), from the displacements of l's control points."""
    a, b, c, d, s, t = cell_around(displacements, x, y, mask, rows, columns, component)
    upper, lower = a * (1 - s) + b * s, c * (1 - s) + d * s
    return upper * (1 - t) + lower * t


@triton.jit
def guard_and_compose(
    out, outer, rows, columns, epsilon, KNOTS: tl.constexpr, GUARD: tl.constexpr, COMPOSE: tl.constexpr
):  # fmt: skip
    """Replace displacements ``out`` ``(2, rows, columns)`` of δ by those of δ or, with COMPOSE, of ``outer`` ∘ δ.

    With GUARD, both maps are guarded. ``outer`` may not be ``out``.
    """
    i, j = tl.arange(0, KNOTS)[:, None], tl.arange(0, KNOTS)[None, :]
    along_x, along_y = out, out + rows * columns
    tl.debug_barrier()
    mask, at = (i < rows) & (j < columns), i * columns + j
    factor = 1.0
    if GUARD:
        factor = guard_factor(along_x, rows, columns, epsilon, KNOTS)
    x = factor * tl.load(along_x + at, mask=mask, other=0.0)
    y = factor * tl.load(along_y + at, mask=mask, other=0.0)
    tl.debug_barrier()
    if COMPOSE:
        even_x, even_y = j.to(tl.float32) / (columns - 1), i.to(tl.float32) / (rows - 1)
        to_x = tl.minimum(tl.maximum(even_x + x, 0.0), 1.0)
        to_y = tl.minimum(tl.maximum(even_y + y, 0.0), 1.0)
        x += outer_displacement(outer, to_x, to_y, mask, rows, columns, 0)
        y += outer_displacement(outer, to_x, to_y, mask, rows, columns, 1)
        x = tl.where((j == 0) | (j == columns - 1), 0.0, x)
        y = tl.where((i == 0) | (i == rows - 1), 0.0, y)
        if GUARD:
            tl.store(along_x + at, x, mask=mask)
            tl.store(along_y + at, y, mask=mask)
            tl.debug_barrier()
            again = guard_factor(along_x, rows, columns, epsilon, KNOTS)
            x, y = again * x, again * y
            tl.debug_barrier()
    tl.store(along_x + at, x, mask=mask)
    tl.store(along_y + at, y, mask=mask)


@triton.jit
def displacements_of(
    scores, s_head, s_row, s_column, bias_x, bias_y, outer, out, height, width, rows, columns, temperature, epsilon,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KNOTS: tl.constexpr, GUARD: tl.constexpr, COMPOSE: tl.constexpr,
):  # fmt: skip
    """Write one image's next displacements to ``out``, from its ``scores`` ``(2, height, width)``.

    ``bias_x`` and ``bias_y`` are numbers, not pointers.
    """
    i, j = tl.arange(0, KNOTS)[:, None], tl.arange(0, KNOTS)[None, :]
    along_x, along_y = out, out + rows * columns
    raw = raw_parameters(
        scores, bias_x, rows, columns - 1, height, width, s_row, s_column, temperature, HEIGHT, WIDTH, KNOTS
    )  # fmt: skip
    line = line_displacements(raw, j, columns - 1)
    tl.store(along_x + i * columns + j + 1, line, mask=(i < rows) & (j < columns - 2))
    tl.store(along_x + i * columns + j * (columns - 1), tl.zeros_like(line), mask=(i < rows) & (j < 2))
    raw = raw_parameters(
        scores + s_head, bias_y, columns, rows - 1, width, height, s_column, s_row, temperature,
        WIDTH, HEIGHT, KNOTS,
    )  # fmt: skip
    line = line_displacements(raw, j, rows - 1)
    tl.store(along_y + (j + 1) * columns + i, line, mask=(i < columns) & (j < rows - 2))
    tl.store(along_y + j * (rows - 1) * columns + i, tl.zeros_like(line), mask=(i < columns) & (j < 2))
    guard_and_compose(out, outer, rows, columns, epsilon, KNOTS, GUARD, COMPOSE)


@triton.jit
def _next_displacements(
    features, scores, weight_x, bias_x, weight_y, bias_y, outer, out, channels, height, width, rows, columns,
    f_batch, f_channel, f_row, f_column, temperature, epsilon,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KNOTS: tl.constexpr,
    GUARD: tl.constexpr, COMPOSE: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    pixel = tl.arange(0, PIXELS)
    valid = pixel < height * width
    at_pixel = (pixel // width) * f_row + (pixel % width) * f_column
    dot_x, dot_y = tl.zeros((PIXELS,), tl.float32), tl.zeros((PIXELS,), tl.float32)
    for start in range(0, channels, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        mask = (channel < channels)[:, None] & valid[None, :]
        at = features + batch * f_batch + channel[:, None] * f_channel + at_pixel[None, :]
        value = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        dot_x += tl.sum(value * tl.load(weight_x + channel, mask=channel < channels, other=0.0)[:, None], axis=0)
        dot_y += tl.sum(value * tl.load(weight_y + channel, mask=channel < channels, other=0.0)[:, None], axis=0)
    scores += batch * 2 * height * width
    tl.store(scores + pixel, dot_x, mask=valid)
    tl.store(scores + height * width + pixel, dot_y, mask=valid)
    tl.debug_barrier()
    before = batch * 2 * rows * columns
    displacements_of(
        scores, height * width, width, 1, tl.load(bias_x), tl.load(bias_y), outer + before, out + before,
        height, width, rows, columns, temperature, epsilon, HEIGHT, WIDTH, KNOTS, GUARD, COMPOSE,
    )  # fmt: skip


def next_displacements(
    features: Tensor,
    heads: tuple[Tensor, Tensor, Tensor, Tensor],
    knots: tuple[int, int],
    *,
    temperature: float,
    guard: float | None,
    outer: Tensor | None = None,
) -> Tensor:
    """Return the displacements ``(B, 2·Ny·Nx)`` of the next map, from features ``(B, C, h, w)``.

    Args:
        features: the trunk's output.
        heads: weight and bias of the head along x, then of that along y.
        knots: control points along x and along y.
        temperature: divides the raw parameters.
        guard: the smallest determinant allowed; None for no guard.
        outer: displacements of the current map, with which the next one is composed; None for the update ``direct``.
    """
    batch, channels, height, width = features.shape
    columns, rows = knots
    out = torch.empty(batch, 2 * rows * columns, dtype=torch.float32, device=features.device)
    scores = torch.empty(batch, 2, height, width, dtype=torch.float32, device=features.device)
    pixels = power_above(height * width)
    launch(
        _next_displacements, (batch, 1, 1), 4,
        features, scores, *heads, out if outer is None else outer, out, channels, height, width, rows, columns,
        *features.stride(), temperature, 0.0 if guard is None else guard,
        PIXELS=pixels, CHANNELS=max(1, min(16, 4096 // pixels)), HEIGHT=power_above(height),
        WIDTH=power_above(width), KNOTS=power_above(max(knots)),
        GUARD=guard is not None, COMPOSE=outer is not None,
    )  # fmt: skip
    return out
