"""Device functions that every warping kernel shares: find where a pixel is sampled from, and interpolate there.

A map l is given by its displacements on two lattices, one along x and one along y. For output pixel p the functions
interpolate both displacements linearly, add them to p, and read the features bilinearly at the position found.
Positions outside the image are clamped to its border. The references are ``localscale.conventions.pixel_positions``
and ``localscale.sampling.sample_native``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from localscale.kernels.launch import power_above

__all__ = [
    "FEW_CHANNELS", "block_shape", "corner_addresses", "interpolate", "lattice_value", "pixel_interval",
    "sampled_corners", "tile_pixels",
]  # fmt: skip

FEW_CHANNELS = 8  # with at most this many channels, a program reads one channel of many pixels at a time


def block_shape(channels: int, contiguous: bool) -> tuple[int, int]:
    """Return how many pixels and channels a program reads at a time.

    Channels that are contiguous in memory are read together. The number of channels in a block divides ``channels``
    where a large enough power of two does, so that no thread is masked out.
    """
    if not contiguous or channels <= FEW_CHANNELS:
        return 256, 1
    divisor = channels & -channels
    across = min(divisor if divisor >= 32 else power_above(channels), 256)
    return 1024 // across, across


@triton.jit
def tile_pixels(down, across, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the rows and columns of the pixels in tile (down, across) of an image, and which of them exist.

    A pixel beyond the image is replaced by the last one, so that loads need no mask; such pixels store the same value
    again.
    """
    lane = tl.arange(0, ROWS * COLUMNS)  # one axis, so that neighbouring threads take neighbouring pixels
    row, column = down * ROWS + lane // COLUMNS, across * COLUMNS + lane % COLUMNS
    valid = (row < height) & (column < width)
    return tl.minimum(row, height - 1), tl.minimum(column, width - 1), valid


@triton.jit
def _lattice_interval(pixel, size, knots, stride, dtype: tl.constexpr):
    """Return, along one axis, the offsets of the lattice points before and after a pixel, and its fraction between."""
    if dtype == tl.float64:  # a quotient of two scalars would be computed in float32
        x = pixel.to(dtype) * (knots - 1) / tl.maximum(size - 1, 1)
    else:
        x = pixel.to(dtype) * ((knots - 1) / tl.maximum(size - 1, 1))
    before = tl.maximum(tl.minimum(x.to(tl.int32), knots - 2), 0)
    return before * stride, tl.minimum(before + 1, knots - 1) * stride, x - before.to(dtype)


@triton.jit
def lattice_value(lattice, row, column, height, width, rows, columns, stride_row, stride_column):
    """Return a lattice's value, interpolated bilinearly, at pixels (row, column) of an image."""
    dtype: tl.constexpr = lattice.dtype.element_ty
    left, right, s = _lattice_interval(column, width, columns, stride_column, dtype)
    top, bottom, t = _lattice_interval(row, height, rows, stride_row, dtype)
    a, b = tl.load(lattice + (top + left)), tl.load(lattice + (top + right))
    c, d = tl.load(lattice + (bottom + left)), tl.load(lattice + (bottom + right))
    upper, lower = a + s * (b - a), c + s * (d - c)
    return upper + t * (lower - upper)


@triton.jit
def pixel_interval(x, size):
    """Return, along one axis, the pixels before and after ``x``, its fraction between, and whether it is inside."""
    inside = (x >= 0) & (x <= size - 1)
    x = tl.minimum(x, size - 1, propagate_nan=tl.PropagateNan.ALL)
    x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    before = tl.maximum(x, 0.0).to(tl.int32)  # a NaN position reads pixel 0; its NaN fraction makes the value NaN
    return before, tl.minimum(before + 1, size - 1), x - before.to(x.dtype), inside


@triton.jit
def sampled_corners(
    along_x, along_y, row, column, height, width, rows_x, columns_x, rows_y, columns_y,
    lx_row, lx_column, ly_row, ly_column,
):  # fmt: skip
    """Return the four pixels around the position that pixels (row, column) are sampled from.

    The answer is left, right, top, bottom, the fractions (s, t) between them, and whether x and y are inside the image.
    """
    dtype = along_x.dtype.element_ty
    x = column.to(dtype) + (width - 1) * lattice_value(
        along_x, row, column, height, width, rows_x, columns_x, lx_row, lx_column
    )
    y = row.to(dtype) + (height - 1) * lattice_value(
        along_y, row, column, height, width, rows_y, columns_y, ly_row, ly_column
    )
    left, right, s, inside_x = pixel_interval(x, width)
    top, bottom, t, inside_y = pixel_interval(y, height)
    return left, right, top, bottom, s, t, inside_x, inside_y


@triton.jit
def corner_addresses(left, right, top, bottom, first, row_stride, column_stride):
    """Return the memory offsets of the four corners: top left, top right, bottom left, bottom right."""
    left, right = left * column_stride, right * column_stride
    top, bottom = first + top * row_stride, first + bottom * row_stride
    return top + left, top + right, bottom + left, bottom + right


@triton.jit
def interpolate(source, at_a, at_b, at_c, at_d, s, t, mask=None):
    """Return values interpolated bilinearly between four corners, in the dtype of (s, t); 0 where masked out."""
    other: tl.constexpr = None if mask is None else 0
    a = tl.load(source + at_a, mask=mask, other=other).to(s.dtype)
    b = tl.load(source + at_b, mask=mask, other=other).to(s.dtype)
    c = tl.load(source + at_c, mask=mask, other=other).to(s.dtype)
    d = tl.load(source + at_d, mask=mask, other=other).to(s.dtype)
    upper, lower = a + s * (b - a), c + s * (d - c)
    return upper + t * (lower - upper)
