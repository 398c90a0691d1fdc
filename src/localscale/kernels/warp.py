"""S⁻¹(x; l) in one pass: where each pixel looks is worked out where it is needed, and never stored.

Its twin is ``localscale.sampling.sample_native`` on ``localscale.conventions.pixel_positions``. The map comes
as *tables*, the displacements along x and along y on an even lattice each, linear in between: a grid map's own control
points, both in one, a line and a column for a separable one, or every pixel's displacement for any other.

Layouts are read and written as they are, prefix tokens included: whatever the strides, a block of pixels and channels
is loaded with the contiguous one of them along the threads, and where a pixel looks is worked out once for all of its
channels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.choice import launched, only_once
from localscale.kernels.launch import Grid, cover, launch, power_above
from localscale.kernels.places import addresses, between, block_of, corners, tile_of
from localscale.layouts import Layout, Tokens

__all__ = ["fused_unscale", "launch_unscale", "unscale_apart"]

Ints = tuple[int, ...]
Tensors = tuple[Tensor, ...]
Place = tuple[int, int, int, bool]  # height, width, prefix tokens, and whether channels are last


def fused_unscale(x: Tensor, tables: Tensors, layout: Layout) -> Tensor:
    """x(l(p)) for ``x`` in ``layout``, with l's displacements as ``tables``.

    They are ``(B or 1, rows, columns)`` along x and along y or, if alike, both as one ``(B or 1, 2, rows, columns)``.
    Differentiable once, to ``x`` and to them.
    """
    if x.dtype == torch.float64:  # values are weighed in the tables' precision
        tables = tuple(table.double() for table in tables)
    if isinstance(layout, Tokens):
        place = (layout.height, layout.width, layout.prefix, True)
    else:
        height, width = x.shape[1:3] if layout == "NHWC" else x.shape[-2:]
        place = (height, width, 0, layout == "NHWC")
    at_once = launched(x, *tables)
    if at_once and torch.is_grad_enabled():
        return _Unscale.apply(x, place, *tables)
    along_x, along_y = _along(tables)
    unscale = launch_unscale if at_once else torch.ops.localscale.unscale
    return unscale(x, along_x, along_y, *place)


def _along(tables: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The table along x, and that along y."""
    along_x, along_y = tables if len(tables) == 2 else tables[0].unbind(1)
    return along_x, along_y


@triton.jit
def _unscale(
    x, out, along_x, along_y, height, width, rows_x, columns_x, rows_y, columns_y,
    x_batch, x_channel, x_row, x_column, out_batch, out_channel, out_row, out_column,
    tx_batch, tx_row, tx_column, ty_batch, ty_row, ty_column,
    PREFIX: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
    ALIKE: tl.constexpr,
):  # fmt: skip
    """A tile of pixels, and their channels in turn.

    Where a pixel lies in its plane is a number of 32 bits: it takes half the instructions that one of 64 does.
    """
    batch = tl.program_id(2).to(tl.int64)
    x, out = x + batch * x_batch, out + batch * out_batch
    row, column, _ = tile_of(tl.program_id(1), tl.program_id(0), height, width, ROWS, COLUMNS)
    if ALIKE:
        rows_y, columns_y, ty_row, ty_column = rows_x, columns_x, tx_row, tx_column
    left, right, top, bottom, s, t, _, _ = corners(
        along_x + batch * tx_batch, along_y + batch * ty_batch, row, column, height, width,
        rows_x, columns_x, rows_y, columns_y, tx_row, tx_column, ty_row, ty_column,
    )  # fmt: skip
    at_a, at_b, at_c, at_d = addresses(left, right, top, bottom, PREFIX * x_column, x_row, x_column)
    where = PREFIX * out_column + row * out_row + column * out_column
    lane = tl.arange(0, ACROSS)
    here, there = (lane * x_channel)[None, :], (lane * out_channel)[None, :]
    at_a, at_b = at_a[:, None] + here, at_b[:, None] + here
    at_c, at_d = at_c[:, None] + here, at_d[:, None] + here
    where, s, t = where[:, None] + there, s[:, None], t[:, None]
    source, target = x, out  # where channels lie from each other may take more than 32 bits
    for start in range(0, CHANNELS, ACROSS):
        mask = None if CHANNELS % ACROSS == 0 else (start + lane < CHANNELS)[None, :]
        value = between(source, at_a, at_b, at_c, at_d, s, t, mask)
        tl.store(target + where, value.to(out.dtype.element_ty), mask=mask)
        source, target = source + ACROSS * x_channel, target + ACROSS * out_channel
    if PREFIX > 0 and tl.program_id(1) == 0:  # prefix tokens stay as they are
        for token in range(tl.program_id(0), PREFIX, tl.num_programs(0)):
            for start in range(0, CHANNELS, ACROSS):
                channel = start + lane
                kept = tl.load(x + token * x_column + channel * x_channel, mask=channel < CHANNELS)
                tl.store(out + token * out_column + channel * out_channel, kept, mask=channel < CHANNELS)


@triton.jit
def _unscale_backward(
    grad, x, to_x, to_flow, along_x, along_y, height, width, rows_x, columns_x, rows_y, columns_y,
    g_batch, g_channel, g_row, g_column, x_batch, x_channel, x_row, x_column,
    tx_batch, tx_row, tx_column, ty_batch, ty_row, ty_column,
    PREFIX: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
    ALIKE: tl.constexpr, WANT_X: tl.constexpr, WANT_MAP: tl.constexpr,
):  # fmt: skip
    """Gradients to the features, in ``to_x`` (laid out as ``x``), and to each pixel's displacement, in ``to_flow``."""
    batch = tl.program_id(2).to(tl.int64)
    grad, x, to_x = grad + batch * g_batch, x + batch * x_batch, to_x + batch * x_batch
    row, column, moved = tile_of(tl.program_id(1), tl.program_id(0), height, width, ROWS, COLUMNS)
    if ALIKE:
        rows_y, columns_y, ty_row, ty_column = rows_x, columns_x, tx_row, tx_column
    left, right, top, bottom, s, t, inside_x, inside_y = corners(
        along_x + batch * tx_batch, along_y + batch * ty_batch, row, column, height, width,
        rows_x, columns_x, rows_y, columns_y, tx_row, tx_column, ty_row, ty_column,
    )  # fmt: skip
    dtype = along_x.dtype.element_ty
    at_a, at_b, at_c, at_d = addresses(left, right, top, bottom, PREFIX * x_column, x_row, x_column)
    at_grad = PREFIX * g_column + row * g_row + column * g_column
    lane = tl.arange(0, ACROSS)
    here = (lane * x_channel)[None, :]
    at_a, at_b = at_a[:, None] + here, at_b[:, None] + here
    at_c, at_d = at_c[:, None] + here, at_d[:, None] + here
    at_grad, s, t = at_grad[:, None] + (lane * g_channel)[None, :], s[:, None], t[:, None]
    slope_x, slope_y = tl.zeros((ROWS * COLUMNS,), dtype), tl.zeros((ROWS * COLUMNS,), dtype)
    given, source, target = grad, x, to_x
    for start in range(0, CHANNELS, ACROSS):
        mask = moved[:, None]
        if CHANNELS % ACROSS != 0:
            mask = mask & (start + lane < CHANNELS)[None, :]
        g = tl.load(given + at_grad, mask=mask, other=0).to(dtype)
        if WANT_MAP:
            a = tl.load(source + at_a, mask=mask, other=0).to(dtype)
            b = tl.load(source + at_b, mask=mask, other=0).to(dtype)
            c = tl.load(source + at_c, mask=mask, other=0).to(dtype)
            d = tl.load(source + at_d, mask=mask, other=0).to(dtype)
            slope_x += tl.sum(g * ((b - a) + t * ((d - c) - (b - a))), axis=1)
            slope_y += tl.sum(g * ((c - a) + s * ((d - b) - (c - a))), axis=1)
        if WANT_X:
            tl.atomic_add(target + at_a, g * (1 - s) * (1 - t), mask=mask, sem="relaxed")
            tl.atomic_add(target + at_b, g * s * (1 - t), mask=mask, sem="relaxed")
            tl.atomic_add(target + at_c, g * (1 - s) * t, mask=mask, sem="relaxed")
            tl.atomic_add(target + at_d, g * s * t, mask=mask, sem="relaxed")
        given, source, target = given + ACROSS * g_channel, source + ACROSS * x_channel, target + ACROSS * x_channel
    if WANT_X and PREFIX > 0 and tl.program_id(1) == 0:  # nobody else looks at prefix tokens
        for token in range(tl.program_id(0), PREFIX, tl.num_programs(0)):
            for start in range(0, CHANNELS, ACROSS):
                channel = start + lane
                kept = tl.load(grad + token * g_column + channel * g_channel, mask=channel < CHANNELS)
                tl.store(to_x + token * x_column + channel * x_channel, kept.to(dtype), mask=channel < CHANNELS)
    if WANT_MAP:
        displacement = to_flow + batch * 2 * height * width + row * width + column
        tl.store(displacement, tl.where(inside_x, slope_x * (width - 1), 0), mask=moved)
        tl.store(displacement + height * width, tl.where(inside_y, slope_y * (height - 1), 0), mask=moved)


@triton.jit
def _to_table(
    displacement, out, height, width, rows, columns, f_batch, f_table,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """One lattice point's gradient, from that of the displacements of the pixels between it and its neighbours."""
    knot, table, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    knot_row, knot_column = knot // columns, knot % columns
    dtype = displacement.dtype.element_ty
    # Knots lie `down` and `across` pixels apart; a single one serves all pixels.
    down, across = tl.maximum(height - 1, 1), tl.maximum(width - 1, 1)
    first_row = tl.maximum((knot_row - 1) * down // tl.maximum(rows - 1, 1), 0)
    last_row = tl.minimum((knot_row + 1) * down // tl.maximum(rows - 1, 1) + 1, height - 1)
    first_column = tl.maximum((knot_column - 1) * across // tl.maximum(columns - 1, 1), 0)
    last_column = tl.minimum((knot_column + 1) * across // tl.maximum(columns - 1, 1) + 1, width - 1)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), dtype)
    for top in range(first_row, last_row + 1, BLOCK_ROWS):
        row = top + tl.arange(0, BLOCK_ROWS)
        by_row = tl.maximum(1 - tl.abs(row.to(dtype) * (rows - 1) / down - knot_row), 0)
        for left in range(first_column, last_column + 1, BLOCK_COLUMNS):
            column = left + tl.arange(0, BLOCK_COLUMNS)
            by_column = tl.maximum(1 - tl.abs(column.to(dtype) * (columns - 1) / across - knot_column), 0)
            at = displacement + batch * f_batch + table * f_table + row[:, None] * width + column[None, :]
            slope = tl.load(at, mask=(row < height)[:, None] & (column < width)[None, :], other=0)
            total += slope * by_row[:, None] * by_column[None, :]
    tables = tl.num_programs(1)
    tl.store(out + (batch * tables + table) * rows * columns + knot, tl.sum(tl.sum(total, axis=1), axis=0))


@functools.lru_cache(maxsize=1024)  # the same ones come again and again
def _numbers(
    shape: Ints, first: Ints, second: Ints, tables: tuple[Ints, Ints, Ints, Ints],
    height: int, width: int, prefix: int, channels_last: bool,
) -> tuple[Grid, Ints]:  # fmt: skip
    """The programs for tensors of ``shape``, and what they take besides tensors: sizes, strides, and blocks of work.

    ``first`` and ``second`` are strides; ``tables`` are shape and strides of the map along x, and along y.
    """
    x_shape, x_strides, y_shape, y_strides = tables
    along_x = [stride if size > 1 else 0 for stride, size in zip(x_strides, x_shape, strict=True)]
    along_y = [stride if size > 1 else 0 for stride, size in zip(y_strides, y_shape, strict=True)]
    alike = x_shape[1:] == y_shape[1:] and along_x == along_y
    view = _places(second, width, channels_last)
    channels = shape[-1] if channels_last else shape[1]
    pixels, across = block_of(channels, contiguous=view[1] == 1)
    columns = min(power_above(width), 32) if across == 1 else min(width & -width, pixels)  # tiles that fit, if they can
    rows = min(power_above(height), pixels // columns)
    sizes = (height, width, *x_shape[1:], *y_shape[1:])
    strides = (*_places(first, width, channels_last), *view, *along_x, *along_y)
    grid = cover(width, columns), cover(height, rows), shape[0]
    return grid, (*sizes, *strides, prefix, channels, rows, columns, across, alike)


def _places(strides: Ints, width: int, channels_last: bool) -> Ints:
    """From one to the next in memory: images, channels, rows, columns."""
    if len(strides) == 3:  # tokens
        return strides[0], strides[2], width * strides[1], strides[1]
    return (strides[0], strides[3], strides[1], strides[2]) if channels_last else strides


@torch.library.custom_op("localscale::unscale", mutates_args=())
def _unscale_op(
    x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int, channels_last: bool
) -> Tensor:
    return launch_unscale(x, along_x, along_y, height, width, prefix, channels_last)


def launch_unscale(
    x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int = 0, channels_last: bool = False
) -> Tensor:
    """The kernel itself, without gradients, for those who are an operator already."""
    out = torch.empty_like(x)
    tables = along_x.shape, along_x.stride(), along_y.shape, along_y.stride()
    grid, numbers = _numbers(x.shape, x.stride(), out.stride(), tables, height, width, prefix, channels_last)
    launch(_unscale, grid, 4, x, out, along_x, along_y, *numbers)
    return out


@_unscale_op.register_fake
def _(x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int, channels_last: bool) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("localscale::unscale_backward", mutates_args=())
def _backward_op(
    grad: Tensor, x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int,
    channels_last: bool, want_x: bool, want_map: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    place = (height, width, prefix, channels_last)
    to_x, to_tables = _launch_backward(grad, x, along_x, along_y, *place, want_x, want_map)
    if not want_map:
        return to_x, to_x.new_empty(0), to_x.new_empty(0)
    to_along_x, to_along_y = _along(to_tables)
    return to_x, to_along_x.clone(), to_along_y.clone()  # an operator's answers share no memory


def _launch_backward(
    grad: Tensor, x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int,
    channels_last: bool, want_x: bool, want_map: bool,
) -> tuple[Tensor, Tensors]:  # fmt: skip
    """Gradients to ``x``, of no elements if not wanted, and to the tables: one if alike, none if not wanted."""
    to_x = torch.zeros_like(x, dtype=along_x.dtype) if want_x else x.new_empty(0, dtype=along_x.dtype)
    displacement = x.new_empty((len(x), 2, height, width) if want_map else (0, 2, height, width), dtype=along_x.dtype)
    if want_x and to_x.stride() != x.stride():  # a part of a larger tensor; its gradient is none
        x = torch.empty_like(x).copy_(x)
    tables = along_x.shape, along_x.stride(), along_y.shape, along_y.stride()
    grid, numbers = _numbers(x.shape, grad.stride(), x.stride(), tables, height, width, prefix, channels_last)
    launch(_unscale_backward, grid, 4, grad, x, to_x, displacement, along_x, along_y, *numbers, want_x, want_map)
    if not want_map:
        return to_x, ()
    if along_x.shape == along_y.shape:
        return to_x, (_table_gradient(displacement, along_x),)
    return to_x, (
        _table_gradient(displacement[:, :1], along_x)[:, 0],
        _table_gradient(displacement[:, 1:], along_y)[:, 0],
    )


@_backward_op.register_fake
def _(
    grad: Tensor, x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int,
    channels_last: bool, want_x: bool, want_map: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    to_x = torch.zeros_like(x, dtype=along_x.dtype) if want_x else x.new_empty(0, dtype=along_x.dtype)
    to_along_x, to_along_y = (table.new_empty(table.shape if want_map else 0) for table in (along_x, along_y))
    return to_x, to_along_x, to_along_y


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, along_x, along_y, *place = inputs
    ctx.place = tuple(place)
    ctx.save_for_backward(x, along_x, along_y)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, along_x, along_y = ctx.saved_tensors
    want_x, want_map = ctx.needs_input_grad[0], ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    to_x, *to_tables = torch.ops.localscale.unscale_backward(grad, x, along_x, along_y, *ctx.place, want_x, want_map)
    return to_x.to(x.dtype) if want_x else None, *(to_tables if want_map else (None, None)), None, None, None, None


def _table_gradient(displacement: Tensor, table: Tensor) -> Tensor:
    """The gradient of tables like ``table``, from that of every pixel's displacements ``(B, tables, H, W)``."""
    maps, rows, columns = table.shape
    batch, tables, height, width = displacement.shape
    if (rows, columns) == (height, width):
        gathered = displacement
    else:
        gathered = torch.empty(batch, tables, rows, columns, dtype=displacement.dtype, device=displacement.device)
        reach = 2 * width // max(columns - 1, 1) + 2  # pixels of a line that a knot has a part in
        across = min(power_above(reach), 64)
        launch(
            _to_table, (rows * columns, tables, batch), 4 if across == 64 else 1, displacement, gathered,
            height, width, rows, columns, displacement.stride(0), displacement.stride(1),
            BLOCK_ROWS=512 // across, BLOCK_COLUMNS=across,
        )  # fmt: skip
    return gathered.sum(dim=0, keepdim=True) if maps == 1 < batch else gathered


torch.library.register_autograd("localscale::unscale", _backward, setup_context=_setup)


class _Unscale(torch.autograd.Function):
    """The operator without an operator's ceremony."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Place, *tables: Tensor) -> Tensor:
        ctx.place = place
        ctx.save_for_backward(x, *tables)
        along_x, along_y = _along(tables)
        return launch_unscale(x, along_x, along_y, *place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, *tables) = gradients, ctx.saved_tensors
        want_x, want_map = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2:])
        inputs = (grad, x, *_along(tables), *ctx.place, want_x, want_map)
        if launched(grad, x) and not torch.is_grad_enabled():
            to_x, to_tables = _launch_backward(*inputs)
        else:  # it says that it has no gradient, to whoever asks for one
            to_x, *apart = torch.ops.localscale.unscale_backward(*inputs)
            to_tables = tuple(apart)
        return to_x.to(x.dtype) if want_x else None, None, *_as_given(to_tables, tables, wanted=want_map)


class _MapGradient(torch.autograd.Function):
    """Passes ``y`` = x(l(p)) on, with its gradient to l."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, place: Place, displacements: Tensor) -> Tensor:
        ctx.place = place
        ctx.save_for_backward(x, displacements)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        (grad,), (x, displacements) = gradients, ctx.saved_tensors
        if not ctx.needs_input_grad[3]:
            return grad, None, None, None
        inputs = (grad, x, *displacements.unbind(1), *ctx.place, False, True)
        _, (to_offsets,) = _launch_backward(*inputs)
        return grad, None, None, to_offsets


def _as_given(gradients: Tensors, tables: Sequence[Tensor], *, wanted: bool) -> tuple[Tensor | None, ...]:
    """Gradients to tables, in one or two as the ``tables`` came."""
    if not wanted:
        return (None,) * len(tables)
    if len(gradients) == len(tables):
        return gradients
    return _along(gradients) if len(tables) == 2 else (torch.stack(gradients, dim=1),)


def unscale_apart(x: Tensor, displacements: Tensor) -> Tensor:
    """``fused_unscale`` of NCHW features, its gradients to them and to the map in two nodes of autograd's graph.

    One node works out all its gradients, whichever are asked for. So asked for the map's alone, as an adjoint does in
    every step, the features' stays undone.
    """
    place = (*x.shape[-2:], 0, False)
    y = _Unscale.apply(x, place, displacements.detach())
    return _MapGradient.apply(y, x.detach(), place, displacements)
