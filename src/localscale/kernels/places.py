"""Where a pixel looks, and what it sees there: what every kernel that moves features by a map shares.

Its twins are ``localscale.conventions.pixel_positions`` and ``localscale.sampling.sample_native``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from localscale.kernels.launch import power_above

__all__ = ["addresses", "between", "block_of", "corners", "pixels_of"]

FEW = 8  # channels, up to which they are read one after the other, each for many pixels


def block_of(channels: int, contiguous: bool) -> tuple[int, int]:
    """How many pixels and channels to read at a time: contiguous ones together, and none in vain if it can be."""
    if not contiguous or channels <= FEW:
        return 256, 1
    divisor = channels & -channels
    across = min(divisor if divisor >= 32 else power_above(channels), 256)
    return 1024 // across, across


@triton.jit
def pixels_of(program, prefix, height, width, PIXELS: tl.constexpr, TILE: tl.constexpr):
    """A program's places in memory, their rows and columns, and which of them are pixels, not prefix nor beyond.

    The pixels are a piece of a line, or as many in a tile of this width, which saves dividing by the image's.
    """
    lane = tl.arange(0, PIXELS)
    if TILE > 0:
        tiles = tl.cdiv(width, TILE)
        row = program // tiles * (PIXELS // TILE) + lane // TILE
        column = program % tiles * TILE + lane % TILE
        there = (row < height) & (column < width)
        row, column = tl.where(there, row, 0), tl.where(there, column, 0)
        return row * width + column, row, column, there
    else:
        place = program * PIXELS + lane
        pixel = place - prefix
        there = (pixel >= 0) & (pixel < height * width)
        pixel = tl.where(there, pixel, 0)
        row = pixel // width
        return place, row, pixel - row * width, there


@triton.jit
def _look_up(table, row, column, height, width, rows, columns, stride_row, stride_column):
    """A table's value at pixels (row, column) of an image, between its lattice points."""
    dtype = table.dtype.element_ty
    if dtype == tl.float64:  # of scalars a quotient is in float32
        x = column.to(dtype) * (columns - 1) / tl.maximum(width - 1, 1)
        y = row.to(dtype) * (rows - 1) / tl.maximum(height - 1, 1)
    else:
        x = column.to(dtype) * ((columns - 1) / tl.maximum(width - 1, 1))
        y = row.to(dtype) * ((rows - 1) / tl.maximum(height - 1, 1))
    left = tl.maximum(tl.minimum(x.to(tl.int32), columns - 2), 0)
    top = tl.maximum(tl.minimum(y.to(tl.int32), rows - 2), 0)
    s, t = x - left.to(dtype), y - top.to(dtype)
    right, bottom = tl.minimum(left + 1, columns - 1), tl.minimum(top + 1, rows - 1)
    a = tl.load(table + top * stride_row + left * stride_column)
    b = tl.load(table + top * stride_row + right * stride_column)
    c = tl.load(table + bottom * stride_row + left * stride_column)
    d = tl.load(table + bottom * stride_row + right * stride_column)
    upper, lower = a + s * (b - a), c + s * (d - c)
    return upper + t * (lower - upper)


@triton.jit
def corners(
    along_x, along_y, row, column, height, width, rows_x, columns_x, rows_y, columns_y,
    tx_row, tx_column, ty_row, ty_column,
):  # fmt: skip
    """Where pixels (row, column) look: the four pixels around, and the place between them."""
    dtype = along_x.dtype.element_ty
    x = column.to(dtype) + (width - 1) * _look_up(
        along_x, row, column, height, width, rows_x, columns_x, tx_row, tx_column
    )
    y = row.to(dtype) + (height - 1) * _look_up(
        along_y, row, column, height, width, rows_y, columns_y, ty_row, ty_column
    )
    inside_x, inside_y = (x >= 0) & (x <= width - 1), (y >= 0) & (y <= height - 1)
    x = tl.where(x < 0, 0, tl.where(x > width - 1, width - 1, x))
    y = tl.where(y < 0, 0, tl.where(y > height - 1, height - 1, y))
    # A position that is NaN reads the first pixel, and gives NaN by its place.
    left, top = tl.where(x == x, x, 0).to(tl.int32), tl.where(y == y, y, 0).to(tl.int32)
    s, t = x - left.to(dtype), y - top.to(dtype)
    right, bottom = tl.minimum(left + 1, width - 1), tl.minimum(top + 1, height - 1)
    return left, right, top, bottom, s, t, inside_x, inside_y


@triton.jit
def addresses(left, right, top, bottom, first, row_stride, column_stride):
    """Where in memory the four pixels lie, for a block of pixels and channels."""
    at_a, at_b = first + top * row_stride + left * column_stride, first + top * row_stride + right * column_stride
    at_c, at_d = first + bottom * row_stride + left * column_stride, first + bottom * row_stride + right * column_stride
    return at_a[:, None], at_b[:, None], at_c[:, None], at_d[:, None]


@triton.jit
def between(source, at_a, at_b, at_c, at_d, s, t, mask):
    """Values between four pixels, in the precision of the place (s, t) between them; 0 where there is no mask."""
    a = tl.load(source + at_a, mask=mask, other=0).to(s.dtype)
    b = tl.load(source + at_b, mask=mask, other=0).to(s.dtype)
    c = tl.load(source + at_c, mask=mask, other=0).to(s.dtype)
    d = tl.load(source + at_d, mask=mask, other=0).to(s.dtype)
    upper, lower = a + s * (b - a), c + s * (d - c)
    return upper + t * (lower - upper)
