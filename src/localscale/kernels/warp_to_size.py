"""Warp images and resize them in one pass: x(l(p)) at the pixels of another size.

The reference is ``localscale.sampling.sample_native`` with ``mode="bicubic"``, then
``localscale.conventions.resize_cubic``. The warped image of full size is never stored: a program instance warps a tile
of it and multiplies the tile by the weights of the filter, along the columns and along the rows, on tensor cores.

Maps are given as lattices, as in ``localscale.kernels.warp``. There are no gradients.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.availability import can_launch_directly
from localscale.kernels.bilinear import FEW_CHANNELS, lattice_value, pixel_interval
from localscale.kernels.launch import cover, launch

__all__ = ["can_unscale_to", "fused_unscale_to"]

SOURCE, OUTPUTS = 64, 32  # sides of a tile of the warped image, and the most outputs that are computed from it
WARPS = 8
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def can_unscale_to(x: Tensor, size: tuple[int, int]) -> bool:
    """Return whether the kernel can warp images ``(B, C, H, W)`` and resize them to ``size``."""
    few = x.shape[1] <= FEW_CHANNELS and x.dtype in DTYPES and x.numel() > 0
    return few and all(old >= 4 and _tile_outputs(old, new) for old, new in zip(x.shape[-2:], size, strict=True))


def fused_unscale_to(x: Tensor, lattices: tuple[Tensor, ...], size: tuple[int, int]) -> Tensor:
    """Return x(l(p)) for ``x`` ``(B, C, H, W)`` at ``size``, where ``lattices`` hold the displacements of l.

    The lattices are two tensors ``(B or 1, rows, columns)``, along x and along y, or one tensor ``(B or 1, 2, rows,
    columns)``.
    """
    along_x, along_y = (each.float() for each in (lattices if len(lattices) == 2 else lattices[0].unbind(1)))
    unscale_to = _launch if can_launch_directly(x, *lattices) else torch.ops.localscale.unscale_to
    return unscale_to(x, along_x, along_y, *size)


def _tile_outputs(old: int, new: int) -> int:
    """Return how many outputs of one axis are computed from a tile; 0 if the filter is too wide for the kernel."""
    spacing = (old - 1) / max(new - 1, 1)
    reach = max(spacing, 1.0)
    if 4 * reach > SOURCE - 1 or math.ceil(2 * reach) > old:  # the image is reflected once at each side
        return 0
    return min(OUTPUTS, int((SOURCE - 1 - 4 * reach) / spacing) + 1)


@triton.jit
def _keys(u):
    """Return Keys' cubic with a = −½."""
    u = tl.minimum(tl.abs(u), 2.0)
    return tl.where(u < 1, (1.5 * u - 2.5) * u * u + 1, ((2.5 - 0.5 * u) * u - 4) * u + 2)


@triton.jit
def _filter(first, start, size, new, SOURCE: tl.constexpr, OUTPUTS: tl.constexpr):
    """Return the weights ``(OUTPUTS, SOURCE)`` of the pixels from ``start`` on, for the outputs from ``first`` on."""
    spacing = (size - 1) * 1.0 / tl.maximum(new - 1, 1)
    reach = tl.maximum(spacing, 1.0)
    centre = ((first + tl.arange(0, OUTPUTS)) * spacing)[:, None]
    pixel = (start + tl.arange(0, SOURCE))[None, :]
    offset = pixel - centre
    weight = _keys(offset / reach)
    total = tl.sum(weight, axis=1)[:, None]
    total = tl.where(total > 0.5, total, 1.0)  # outputs beyond the tile are not stored
    tilt = tl.sum(weight * offset, axis=1)[:, None] / total
    pair = tl.where((offset > -1) & (offset <= 0), 1.0, 0.0) - tl.where((offset > 0) & (offset <= 1), 1.0, 0.0)
    weight = weight / total + tilt * pair
    last = size - 1
    if (start < 0) | (start + SOURCE > size):  # fold what lies beyond the border onto the pixels of the image
        before = tl.sum(tl.where(pixel < 0, weight, 0.0), axis=1)[:, None]
        after = tl.sum(tl.where(pixel > last, weight, 0.0), axis=1)[:, None]
        mirrored = tl.where(pixel > 0, _keys((-pixel - centre) / reach), 0.0)
        mirrored += tl.where(pixel < last, _keys((2 * last - pixel - centre) / reach), 0.0)
        weight = tl.where((pixel >= 0) & (pixel <= last), weight - mirrored / total, 0.0)
        weight += tl.where(pixel == 0, 2 * before, 0.0) + tl.where(pixel == last, 2 * after, 0.0)
    return weight


@triton.jit
def _taps(x, size):
    """Return, along one axis, the first of four pixels around ``x``, and their weights: Keys' cubic with a = −¾.

    Weights of pixels beyond the border are added to those of the border.
    """
    before, _, t, _ = pixel_interval(x, size)
    s = 1 - t
    a, d = ((3.75 - 0.75 * (1 + t)) * (1 + t) - 6) * (1 + t) + 3, ((3.75 - 0.75 * (1 + s)) * (1 + s) - 6) * (1 + s) + 3
    b, c = (1.25 * t - 2.25) * t * t + 1, (1.25 * s - 2.25) * s * s + 1
    first = tl.maximum(tl.minimum(before - 1, size - 4), 0)
    shift = before - 1 - first  # −1 at the first pixel, 1 and 2 at the last two
    even, left, near = shift == 0, shift < 0, shift == 1
    e = tl.where(even, a, tl.where(left, a + b, 0.0))
    f = tl.where(even, b, tl.where(left, c, tl.where(near, a, 0.0)))
    g = tl.where(even, c, tl.where(left, d, tl.where(near, b, a)))
    h = tl.where(even, d, tl.where(left, 0.0, tl.where(near, c + d, b + c + d)))
    return first, e, f, g, h


@triton.jit
def _row_of_taps(at, x_column, a, b, c, d):
    """Return the weighted sum of four neighbouring pixels in a row."""
    value = a * tl.load(at).to(tl.float32) + b * tl.load(at + x_column).to(tl.float32)
    return value + c * tl.load(at + 2 * x_column).to(tl.float32) + d * tl.load(at + 3 * x_column).to(tl.float32)


@triton.jit
def _unscale_to(
    x, out, along_x, along_y, channels, height, width, new_height, new_width, down, across,
    x_batch, x_channel, x_row, x_column, rows_x, columns_x, rows_y, columns_y,
    lx_batch, lx_row, lx_column, ly_batch, ly_row, ly_column,
    SOURCE: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile of ``down`` by ``across`` outputs."""
    batch = tl.program_id(2).to(tl.int64)
    first_row, first_column = tl.program_id(1) * down, tl.program_id(0) * across
    down_spacing = (height - 1) * 1.0 / tl.maximum(new_height - 1, 1)
    across_spacing = (width - 1) * 1.0 / tl.maximum(new_width - 1, 1)
    top = tl.floor(first_row * down_spacing - 2 * tl.maximum(down_spacing, 1.0)).to(tl.int32) + 1
    left = tl.floor(first_column * across_spacing - 2 * tl.maximum(across_spacing, 1.0)).to(tl.int32) + 1
    row = tl.minimum(tl.maximum(top + tl.arange(0, SOURCE), 0), height - 1)[:, None]
    column = tl.minimum(tl.maximum(left + tl.arange(0, SOURCE), 0), width - 1)[None, :]
    moved_x = lattice_value(
        along_x + batch * lx_batch, row, column, height, width, rows_x, columns_x, lx_row, lx_column
    )
    moved_y = lattice_value(
        along_y + batch * ly_batch, row, column, height, width, rows_y, columns_y, ly_row, ly_column
    )
    sampled_left, a, b, c, d = _taps(column.to(tl.float32) + (width - 1) * moved_x, width)
    sampled_top, e, f, g, h = _taps(row.to(tl.float32) + (height - 1) * moved_y, height)
    by_row = _filter(first_row, top, height, new_height, SOURCE, OUTPUTS)
    by_column = tl.trans(_filter(first_column, left, width, new_width, SOURCE, OUTPUTS))
    offset = sampled_top * x_row + sampled_left * x_column
    lane = tl.arange(0, OUTPUTS)
    to_row, to_column = (first_row + lane)[:, None], (first_column + lane)[None, :]
    kept = (lane < down)[:, None] & (lane < across)[None, :] & (to_row < new_height) & (to_column < new_width)
    source = x + batch * x_batch
    target = out + batch * channels * new_height * new_width
    for _ in tl.range(0, channels, num_stages=1):  # pipelined loads of float32 would not fit into shared memory
        at = source + offset
        value = e * _row_of_taps(at, x_column, a, b, c, d)
        value += f * _row_of_taps(at + x_row, x_column, a, b, c, d)
        value += g * _row_of_taps(at + 2 * x_row, x_column, a, b, c, d)
        value += h * _row_of_taps(at + 3 * x_row, x_column, a, b, c, d)
        narrow = tl.dot(value, by_column, input_precision=PRECISION)
        answer = tl.dot(by_row, narrow, input_precision=PRECISION)
        tl.store(target + to_row * new_width + to_column, answer.to(out.dtype.element_ty), mask=kept)
        source, target = source + x_channel, target + new_height * new_width


@torch.library.custom_op("localscale::unscale_to", mutates_args=())
def _unscale_to_op(x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int) -> Tensor:
    return _launch(x, along_x, along_y, height, width)


@_unscale_to_op.register_fake
def _(x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], height, width)


def _launch(x: Tensor, along_x: Tensor, along_y: Tensor, height: int, width: int) -> Tensor:
    batch, channels, old_height, old_width = x.shape
    out = torch.empty(batch, channels, height, width, dtype=x.dtype, device=x.device)
    down, across = _tile_outputs(old_height, height), _tile_outputs(old_width, width)
    strides = [
        stride if size > 1 else 0  # an axis of size 1 is shared
        for lattice in (along_x, along_y)
        for stride, size in zip(lattice.stride(), lattice.shape, strict=True)
    ]
    launch(
        _unscale_to, (cover(width, across), cover(height, down), batch), WARPS,
        x, out, along_x, along_y, channels, old_height, old_width, height, width, down, across, *x.stride(),
        *along_x.shape[1:], *along_y.shape[1:], *strides, SOURCE=SOURCE, OUTPUTS=OUTPUTS,
        PRECISION="tf32" if x.dtype == torch.bfloat16 else "tf32x3",
    )  # fmt: skip
    return out
