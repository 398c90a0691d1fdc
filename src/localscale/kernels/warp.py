"""Warp features in one pass: S⁻¹(x; l)(p) = x(l(p)), bilinear, with clamped borders, and its gradients.

The reference is ``localscale.sampling.sample_native`` on ``localscale.conventions.pixel_positions``, which stores the
sampling position of every pixel in memory. The kernel computes the positions where it needs them, once for all
channels, so that memory traffic is one read and one write of the features.

The map is given as *lattices*: displacements along x and along y on evenly spaced points, linear in between. For a
grid map these are its control points, both components in one lattice. For a separable map they are a row and a column.
For any other map they are the displacements of all pixels.

Features are read and written in their own layout, prefix tokens included. One program instance works on a tile of
pixels of one image; neighbouring threads take pixels or channels, whichever are contiguous in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.availability import can_launch_directly, refuse_second_derivative
from localscale.kernels.bilinear import block_shape, corner_addresses, interpolate, sampled_corners, tile_pixels
from localscale.kernels.launch import Grid, cover, launch, power_above
from localscale.layouts import Layout, Tokens

__all__ = ["fused_unscale", "launch_unscale", "unscale_with_separate_gradients"]

Ints = tuple[int, ...]
Tensors = tuple[Tensor, ...]
ImageLayout = tuple[int, int, int, bool]  # height, width, prefix tokens, and whether channels are last


def fused_unscale(x: Tensor, lattices: Tensors, layout: Layout) -> Tensor:
    """Return x(l(p)) for ``x`` in ``layout``, where ``lattices`` hold the displacements of l.

    The lattices are two tensors ``(B or 1, rows, columns)``, along x and along y, or, if both have the same points, one
    tensor ``(B or 1, 2, rows, columns)``. Differentiable once, with respect to ``x`` and the lattices.
    """
    if x.dtype == torch.float64:  # the kernel interpolates in the precision of the lattices
        lattices = tuple(lattice.double() for lattice in lattices)
    if isinstance(layout, Tokens):
        image_layout = (layout.height, layout.width, layout.prefix, True)
    else:
        height, width = x.shape[1:3] if layout == "NHWC" else x.shape[-2:]
        image_layout = (height, width, 0, layout == "NHWC")
    direct = can_launch_directly(x, *lattices)
    if direct and torch.is_grad_enabled():
        return _Unscale.apply(x, image_layout, *lattices)
    along_x, along_y = _pair(lattices)
    unscale = launch_unscale if direct else torch.ops.localscale.unscale
    return unscale(x, along_x, along_y, *image_layout)


def _pair(lattices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the lattice along x and the lattice along y."""
    along_x, along_y = lattices if len(lattices) == 2 else lattices[0].unbind(1)
    return along_x, along_y


@triton.jit
def _unscale(
    x, out, along_x, along_y, height, width, rows_x, columns_x, rows_y, columns_y,
    x_batch, x_channel, x_row, x_column, out_batch, out_channel, out_row, out_column,
    lx_batch, lx_row, lx_column, ly_batch, ly_row, ly_column,
    PREFIX: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
    ALIKE: tl.constexpr,
):  # fmt: skip
    """Warp one tile of pixels, ACROSS channels at a time.

    Offsets within a channel are 32-bit integers, which take half the instructions of 64-bit ones.
    """
    batch = tl.program_id(2).to(tl.int64)
    x, out = x + batch * x_batch, out + batch * out_batch
    row, column, _ = tile_pixels(tl.program_id(1), tl.program_id(0), height, width, ROWS, COLUMNS)
    if ALIKE:
        rows_y, columns_y, ly_row, ly_column = rows_x, columns_x, lx_row, lx_column
    left, right, top, bottom, s, t, _, _ = sampled_corners(
        along_x + batch * lx_batch, along_y + batch * ly_batch, row, column, height, width,
        rows_x, columns_x, rows_y, columns_y, lx_row, lx_column, ly_row, ly_column,
    )  # fmt: skip
    at_a, at_b, at_c, at_d = corner_addresses(left, right, top, bottom, PREFIX * x_column, x_row, x_column)
    at_out = PREFIX * out_column + row * out_row + column * out_column
    lane = tl.arange(0, ACROSS)
    x_lane, out_lane = (lane * x_channel)[None, :], (lane * out_channel)[None, :]
    at_a, at_b = at_a[:, None] + x_lane, at_b[:, None] + x_lane
    at_c, at_d = at_c[:, None] + x_lane, at_d[:, None] + x_lane
    at_out, s, t = at_out[:, None] + out_lane, s[:, None], t[:, None]
    source, target = x, out  # offsets between channels may overflow int32, so the pointers advance instead
    for start in range(0, CHANNELS, ACROSS):
        mask = None if CHANNELS % ACROSS == 0 else (start + lane < CHANNELS)[None, :]
        value = interpolate(source, at_a, at_b, at_c, at_d, s, t, mask)
        tl.store(target + at_out, value.to(out.dtype.element_ty), mask=mask)
        source, target = source + ACROSS * x_channel, target + ACROSS * out_channel
    if PREFIX > 0 and tl.program_id(1) == 0:  # copy the prefix tokens
        for token in range(tl.program_id(0), PREFIX, tl.num_programs(0)):
            for start in range(0, CHANNELS, ACROSS):
                channel = start + lane
                kept = tl.load(x + token * x_column + channel * x_channel, mask=channel < CHANNELS)
                tl.store(out + token * out_column + channel * out_channel, kept, mask=channel < CHANNELS)


@triton.jit
def _unscale_backward(
    grad, x, to_x, to_displacement, along_x, along_y, height, width, rows_x, columns_x, rows_y, columns_y,
    g_batch, g_channel, g_row, g_column, x_batch, x_channel, x_row, x_column,
    lx_batch, lx_row, lx_column, ly_batch, ly_row, ly_column,
    PREFIX: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
    ALIKE: tl.constexpr, WANT_X: tl.constexpr, WANT_MAP: tl.constexpr,
):  # fmt: skip
    """Compute the gradients to the features and to every pixel's displacement.

    ``to_x`` has the strides of ``x`` and is added to atomically, since several pixels may read the same corner.
    ``to_displacement`` is ``(B, 2, H, W)``; it is 0 where the position was clamped to the border.
    """
    batch = tl.program_id(2).to(tl.int64)
    grad, x, to_x = grad + batch * g_batch, x + batch * x_batch, to_x + batch * x_batch
    row, column, moved = tile_pixels(tl.program_id(1), tl.program_id(0), height, width, ROWS, COLUMNS)
    if ALIKE:
        rows_y, columns_y, ly_row, ly_column = rows_x, columns_x, lx_row, lx_column
    left, right, top, bottom, s, t, inside_x, inside_y = sampled_corners(
        along_x + batch * lx_batch, along_y + batch * ly_batch, row, column, height, width,
        rows_x, columns_x, rows_y, columns_y, lx_row, lx_column, ly_row, ly_column,
    )  # fmt: skip
    dtype = along_x.dtype.element_ty
    at_a, at_b, at_c, at_d = corner_addresses(left, right, top, bottom, PREFIX * x_column, x_row, x_column)
    at_grad = PREFIX * g_column + row * g_row + column * g_column
    lane = tl.arange(0, ACROSS)
    x_lane = (lane * x_channel)[None, :]
    at_a, at_b = at_a[:, None] + x_lane, at_b[:, None] + x_lane
    at_c, at_d = at_c[:, None] + x_lane, at_d[:, None] + x_lane
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
    if WANT_X and PREFIX > 0 and tl.program_id(1) == 0:  # no pixel reads a prefix token, so a plain store suffices
        for token in range(tl.program_id(0), PREFIX, tl.num_programs(0)):
            for start in range(0, CHANNELS, ACROSS):
                channel = start + lane
                kept = tl.load(grad + token * g_column + channel * g_channel, mask=channel < CHANNELS)
                tl.store(to_x + token * x_column + channel * x_channel, kept.to(dtype), mask=channel < CHANNELS)
    if WANT_MAP:
        displacement = to_displacement + batch * 2 * height * width + row * width + column
        tl.store(displacement, tl.where(inside_x, slope_x * (width - 1), 0), mask=moved)
        tl.store(displacement + height * width, tl.where(inside_y, slope_y * (height - 1), 0), mask=moved)


@triton.jit
def _to_lattice(
    displacement, out, height, width, rows, columns, d_batch, d_lattice,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient to one lattice point from the gradients to the pixels between it and its neighbours."""
    knot, lattice, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    knot_row, knot_column = knot // columns, knot % columns
    dtype = displacement.dtype.element_ty
    # The lattice spans `down` by `across` pixels; a single point serves all pixels.
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
            at = displacement + batch * d_batch + lattice * d_lattice + row[:, None] * width + column[None, :]
            slope = tl.load(at, mask=(row < height)[:, None] & (column < width)[None, :], other=0)
            total += slope * by_row[:, None] * by_column[None, :]
    lattices = tl.num_programs(1)
    tl.store(out + (batch * lattices + lattice) * rows * columns + knot, tl.sum(tl.sum(total, axis=1), axis=0))


@functools.lru_cache(maxsize=1024)  # computing these takes host time, and models repeat few shapes
def _launch_arguments(
    shape: Ints, first: Ints, second: Ints, lattices: tuple[Ints, Ints, Ints, Ints],
    height: int, width: int, prefix: int, channels_last: bool,
) -> tuple[Grid, Ints]:  # fmt: skip
    """Return the launch grid for tensors of ``shape``, and the kernel arguments that are not tensors.

    ``first`` and ``second`` are the strides of the two feature tensors, in the kernel's order; ``lattices`` are shape
    and strides along x, then along y. A lattice axis of size 1 gets stride 0, so that it is shared.
    """
    x_shape, x_strides, y_shape, y_strides = lattices
    along_x = [stride if size > 1 else 0 for stride, size in zip(x_strides, x_shape, strict=True)]
    along_y = [stride if size > 1 else 0 for stride, size in zip(y_strides, y_shape, strict=True)]
    alike = x_shape[1:] == y_shape[1:] and along_x == along_y
    view = _strides(second, width, channels_last)
    channels = shape[-1] if channels_last else shape[1]
    pixels, across = block_shape(channels, contiguous=view[1] == 1)
    # Where several channels are read together, the columns of a tile divide the width, so that no tile is cut off.
    columns = min(power_above(width), 32) if across == 1 else min(width & -width, pixels)
    rows = min(power_above(height), pixels // columns)
    sizes = (height, width, *x_shape[1:], *y_shape[1:])
    strides = (*_strides(first, width, channels_last), *view, *along_x, *along_y)
    grid = cover(width, columns), cover(height, rows), shape[0]
    return grid, (*sizes, *strides, prefix, channels, rows, columns, across, alike)


def _strides(strides: Ints, width: int, channels_last: bool) -> Ints:
    """Return the strides between images, channels, rows and columns."""
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
    """Launch the kernel without autograd; for callers that are custom operators themselves."""
    out = torch.empty_like(x)
    lattices = along_x.shape, along_x.stride(), along_y.shape, along_y.stride()
    layout = (height, width, prefix, channels_last)
    grid, arguments = _launch_arguments(x.shape, x.stride(), out.stride(), lattices, *layout)
    launch(_unscale, grid, 4, x, out, along_x, along_y, *arguments)
    return out


@_unscale_op.register_fake
def _(x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int, channels_last: bool) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("localscale::unscale_backward", mutates_args=())
def _backward_op(
    grad: Tensor, x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int,
    channels_last: bool, want_x: bool, want_map: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    image_layout = (height, width, prefix, channels_last)
    to_x, to_lattices = _launch_backward(grad, x, along_x, along_y, *image_layout, want_x, want_map)
    if not want_map:
        return to_x, to_x.new_empty(0), to_x.new_empty(0)
    to_along_x, to_along_y = _pair(to_lattices)
    return to_x, to_along_x.clone(), to_along_y.clone()  # outputs of a custom operator must not share memory


def _launch_backward(
    grad: Tensor, x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int,
    channels_last: bool, want_x: bool, want_map: bool,
) -> tuple[Tensor, Tensors]:  # fmt: skip
    """Return the gradient to ``x``, empty if not wanted, and those to the lattices.

    The latter are one tensor if both lattices have one shape, two if not, and none if not wanted.
    """
    to_x = torch.zeros_like(x, dtype=along_x.dtype) if want_x else x.new_empty(0, dtype=along_x.dtype)
    displacement = x.new_empty((len(x), 2, height, width) if want_map else (0, 2, height, width), dtype=along_x.dtype)
    if want_x and to_x.stride() != x.stride():  # for example, x is a slice of a larger tensor
        x = torch.empty_like(x).copy_(x)
    lattices = along_x.shape, along_x.stride(), along_y.shape, along_y.stride()
    layout = (height, width, prefix, channels_last)
    grid, arguments = _launch_arguments(x.shape, grad.stride(), x.stride(), lattices, *layout)
    launch(_unscale_backward, grid, 4, grad, x, to_x, displacement, along_x, along_y, *arguments, want_x, want_map)
    if not want_map:
        return to_x, ()
    if along_x.shape == along_y.shape:
        return to_x, (_lattice_gradient(displacement, along_x),)
    return to_x, (
        _lattice_gradient(displacement[:, :1], along_x)[:, 0],
        _lattice_gradient(displacement[:, 1:], along_y)[:, 0],
    )


@_backward_op.register_fake
def _(
    grad: Tensor, x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int, prefix: int,
    channels_last: bool, want_x: bool, want_map: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    to_x = torch.zeros_like(x, dtype=along_x.dtype) if want_x else x.new_empty(0, dtype=along_x.dtype)
    to_along_x, to_along_y = (lattice.new_empty(lattice.shape if want_map else 0) for lattice in (along_x, along_y))
    return to_x, to_along_x, to_along_y


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, along_x, along_y, *image_layout = inputs
    ctx.image_layout = tuple(image_layout)
    ctx.save_for_backward(x, along_x, along_y)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, along_x, along_y = ctx.saved_tensors
    want_x, want_map = ctx.needs_input_grad[0], ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    inputs = (grad, x, along_x, along_y, *ctx.image_layout, want_x, want_map)
    to_x, *to_lattices = torch.ops.localscale.unscale_backward(*inputs)
    return to_x.to(x.dtype) if want_x else None, *(to_lattices if want_map else (None, None)), None, None, None, None


def _lattice_gradient(displacement: Tensor, lattice: Tensor) -> Tensor:
    """Return the gradient to lattices shaped as ``lattice``, given that to pixel displacements ``(B, L, H, W)``."""
    maps, rows, columns = lattice.shape
    batch, lattices, height, width = displacement.shape
    if (rows, columns) == (height, width):
        gathered = displacement
    else:
        gathered = torch.empty(batch, lattices, rows, columns, dtype=displacement.dtype, device=displacement.device)
        reach = 2 * width // max(columns - 1, 1) + 2  # pixels of a row that a lattice point contributes to
        across = min(power_above(reach), 64)
        launch(
            _to_lattice, (rows * columns, lattices, batch), 4 if across == 64 else 1, displacement, gathered,
            height, width, rows, columns, displacement.stride(0), displacement.stride(1),
            BLOCK_ROWS=512 // across, BLOCK_COLUMNS=across,
        )  # fmt: skip
    return gathered.sum(dim=0, keepdim=True) if maps == 1 < batch else gathered


torch.library.register_autograd("localscale::unscale", _backward, setup_context=_setup)


class _Unscale(torch.autograd.Function):
    """The same as the custom operator, with less host time per call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, image_layout: ImageLayout, *lattices: Tensor) -> Tensor:
        ctx.image_layout = image_layout
        ctx.save_for_backward(x, *lattices)
        along_x, along_y = _pair(lattices)
        return launch_unscale(x, along_x, along_y, *image_layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, *lattices) = gradients, ctx.saved_tensors
        want_x, want_map = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2:])
        inputs = (grad, x, *_pair(lattices), *ctx.image_layout, want_x, want_map)
        if can_launch_directly(grad, x) and not torch.is_grad_enabled():
            to_x, to_lattices = _launch_backward(*inputs)
        else:  # the operator has no gradient registered, so a second derivative raises
            to_x, *pair = torch.ops.localscale.unscale_backward(*inputs)
            to_lattices = tuple(pair)
        return to_x.to(x.dtype) if want_x else None, None, *_as_given(to_lattices, lattices, wanted=want_map)


class _MapGradient(torch.autograd.Function):
    """Return ``y`` = x(l(p)) unchanged; its backward pass gives the gradient to l alone."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, image_layout: ImageLayout, displacements: Tensor) -> Tensor:
        ctx.image_layout = image_layout
        ctx.save_for_backward(x, displacements)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (grad,), (x, displacements) = gradients, ctx.saved_tensors
        if not ctx.needs_input_grad[3]:
            return grad, None, None, None
        inputs = (grad, x, *displacements.unbind(1), *ctx.image_layout, False, True)
        _, (to_displacements,) = _launch_backward(*inputs)
        return grad, None, None, to_displacements


def _as_given(gradients: Tensors, lattices: Sequence[Tensor], *, wanted: bool) -> tuple[Tensor | None, ...]:
    """Return the gradients as one or two tensors, as the ``lattices`` were given."""
    if not wanted:
        return (None,) * len(lattices)
    if len(gradients) == len(lattices):
        return gradients
    return _pair(gradients) if len(lattices) == 2 else (torch.stack(gradients, dim=1),)


def unscale_with_separate_gradients(x: Tensor, displacements: Tensor) -> Tensor:
    """Return ``fused_unscale`` of NCHW features, with two autograd nodes: one for the features, one for the map.

    An autograd node computes all of its gradients, even those that are not needed. An implicit gradient needs the
    map's gradient in every step of its adjoint solve and the features' gradient once, so two nodes save work.
    """
    image_layout = (*x.shape[-2:], 0, False)
    y = _Unscale.apply(x, image_layout, displacements.detach())
    return _MapGradient.apply(y, x.detach(), image_layout, displacements)
