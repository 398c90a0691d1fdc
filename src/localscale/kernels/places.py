"""Where a pixel looks, and what it sees there: what every kernel that moves features by a map shares.

Its twins are ``localscale.conventions.pixel_positions`` and ``localscale.sampling.sample_native``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from localscale.kernels.launch import power_above

__all__ = ["FEW", "addresses", "between", "block_of", "corners", "tile_of"]

FEW = 8  # channels, up to which they are read one after the other, each for many pixels


def block_of(channels: int, contiguous: bool) -> tuple[int, int]:
    """How many pixels and channels to read at a time: contiguous ones together, and none in vain if it can be."""
    if not contiguous or channels <= FEW:
        return 256, 1
    divisor = channels & -channels
    across = min(divisor if divisor >= 32 else power_above(channels), 256)
    return 1024 // across, across


@triton.jit
def tile_of(down, across, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows and columns of the pixels in the tile (down, across) of an image, line by line, and which of them exist.

    One beyond the image is its last instead. So there is always something to read, and what is written there, twice.
    """
    lane = tl.arange(0, ROWS * COLUMNS)  # one axis, so that neighbouring threads take neighbouring pixels
    row, column = down * ROWS + lane // COLUMNS, across * COLUMNS + lane % COLUMNS
    there = (row < height) & (column < width)
    return tl.minimum(row, height - 1), tl.minimum(column, width - 1), there


@triton.jit
def _knots(pixel, size, knots, stride, dtype: tl.constexpr):
    """Along one axis: where in memory the lattice points before and after a pixel lie, and its place between them."""
    if dtype == tl.float64:  # of scalars a quotient is in float32
        x = pixel.to(dtype) * (knots - 1) / tl.maximum(size - 1, 1)
    else:
        x = pixel.to(dtype) * ((knots - 1) / tl.maximum(size - 1, 1))
    before = tl.maximum(tl.minimum(x.to(tl.int32), knots - 2), 0)
    return before * stride, tl.minimum(before + 1, knots - 1) * stride, x - before.to(dtype)


@triton.jit
def _look_up(table, row, column, height, width, rows, columns, stride_row, stride_column):
    """A table's value at pixels (row, column) of an image, between its lattice points."""
    dtype: tl.constexpr = table.dtype.element_ty
    left, right, s = _knots(column, width, columns, stride_column, dtype)
    top, bottom, t = _knots(row, height, rows, stride_row, dtype)
    a, b = tl.load(table + (top + left)), tl.load(table + (top + right))
    c, d = tl.load(table + (bottom + left)), tl.load(table + (bottom + right))
    upper, lower = a + s * (b - a), c + s * (d - c)
    return upper + t * (lower - upper)


@triton.jit
def _ends(x, size):
    """Pixels before and after ``x`` along one axis, its place between them, and whether it is inside the image."""
    inside = (x >= 0) & (x <= size - 1)
    x = tl.minimum(x, size - 1, propagate_nan=tl.PropagateNan.ALL)
    x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    before = tl.maximum(x, 0.0).to(tl.int32)  # a position that is NaN reads the first pixel, and gives NaN by its place
    return before, tl.minimum(before + 1, size - 1), x - before.to(x.dtype), inside


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
    left, right, s, inside_x = _ends(x, width)
    top, bottom, t, inside_y = _ends(y, height)
    return left, right, top, bottom, s, t, inside_x, inside_y


@triton.jit
def addresses(left, right, top, bottom, first, row_stride, column_stride):
    """Where in memory the four pixels lie."""
    left, right = left * column_stride, right * column_stride
    top, bottom = first + top * row_stride, first + bottom * row_stride
    return top + left, top + right, bottom + left, bottom + right


@triton.jit
def between(source, at_a, at_b, at_c, at_d, s, t, mask=None):
    """Values between four pixels, in the precision of the place (s, t) between them; 0 where a mask says no."""
    other: tl.constexpr = None if mask is None else 0
    a = tl.load(source + at_a, mask=mask, other=other).to(s.dtype)
    b = tl.load(source + at_b, mask=mask, other=other).to(s.dtype)
    c = tl.load(source + at_c, mask=mask, other=other).to(s.dtype)
    d = tl.load(source + at_d, mask=mask, other=other).to(s.dtype)
    upper, lower = a + s * (b - a), c + s * (d - c)
    return upper + t * (lower - upper)
