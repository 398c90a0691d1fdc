"""Build a pyramid of the source and sample looks at full resolution from it.

The references are ``localscale.canonicalizer.looks.pyramid`` and ``Looks``. The levels of the pyramid lie one after
another in memory, ``(B, pixels of all levels, C)``. Up to eight channels are padded to a power of two, so that a thread
reads all channels of a pixel at once. One program instance makes a block of pixels of one image. Not differentiable.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.bilinear import FEW_CHANNELS, block_shape, lattice_value
from localscale.kernels.launch import Launch, cover, launch, power_above
from localscale.kernels.working_copy import shrink_into

__all__ = ["build_levels", "look_launch"]


@triton.jit
def _position(point, row, column, height, width, rows, columns):
    """Return where pixels (row, column) of a look are sampled, in [0,1]²."""
    x = lattice_value(point, row, column, height, width, rows, columns, columns, 1)
    y = lattice_value(point + rows * columns, row, column, height, width, rows, columns, columns, 1)
    return x + column * (1.0 / tl.maximum(width - 1, 1)), y + row * (1.0 / tl.maximum(height - 1, 1))


@triton.jit
def _level_shape(level, height, width, LEVELS: tl.constexpr):
    """Return the first pixel, the height and the width of a level of the pyramid, for each of ``level``."""
    first, level_height, level_width = level * 0, level * 0 + height, level * 0 + width
    start = 0
    for number in tl.static_range(1, LEVELS):
        start += height * width
        height, width = (height + 1) // 2, (width + 1) // 2
        first = tl.where(level == number, start, first)
        level_height = tl.where(level == number, height, level_height)
        level_width = tl.where(level == number, width, level_width)
    return first, level_height, level_width


@triton.jit
def _corners(x, y, level, height, width, LEVELS: tl.constexpr):
    """Return the four pixels of a level around (x, y) in [0,1]², and the fractions between them."""
    first, level_height, level_width = _level_shape(level, height, width, LEVELS)
    column = tl.minimum(tl.maximum(x * (level_width - 1), 0.0), (level_width - 1).to(tl.float32))
    row = tl.minimum(tl.maximum(y * (level_height - 1), 0.0), (level_height - 1).to(tl.float32))
    left, top = column.to(tl.int32), row.to(tl.int32)
    right, bottom = tl.minimum(left + 1, level_width - 1), tl.minimum(top + 1, level_height - 1)
    upper, lower = first + top * level_width, first + bottom * level_width
    return upper + left, upper + right, lower + left, lower + right, column - left, row - top


@triton.jit
def _read(levels, a, b, c, d, s, t, mask, HELD: tl.constexpr):
    other: tl.constexpr = None if mask is None else 0
    top = tl.load(levels + a * HELD, mask=mask, other=other).to(tl.float32) * (1 - s)
    top += tl.load(levels + b * HELD, mask=mask, other=other).to(tl.float32) * s
    bottom = tl.load(levels + c * HELD, mask=mask, other=other).to(tl.float32) * (1 - s)
    bottom += tl.load(levels + d * HELD, mask=mask, other=other).to(tl.float32) * s
    return top * (1 - t) + bottom * t


@triton.jit(do_not_specialize=["step"])
def _look(
    levels, looks, point, active, step, height, width, source_height, source_width, pixels, rows, columns,
    LEVELS: tl.constexpr, CHANNELS: tl.constexpr, HELD: tl.constexpr, PIXELS: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        valid = pixel < height * width
        row, column = tl.where(valid, pixel // width, 0), pixel % width
        point += sample * 2 * rows * columns
        x, y = _position(point, row, column, height, width, rows, columns)
        # Source pixels per look pixel, from the area between neighbouring positions.
        aside = tl.where((column < width - 1) | (width == 1), 1, -1)
        beside_x, beside_y = _position(point, row, column + aside, height, width, rows, columns)
        down = tl.where((row < height - 1) | (height == 1), 1, -1)
        below_x, below_y = _position(point, row + down, column, height, width, rows, columns)
        area = ((beside_x - x) * (below_y - y) - (beside_y - y) * (below_x - x)) * (aside * down)
        area *= (source_width - 1) * (source_height - 1)
        level = tl.minimum(tl.maximum(0.5 * tl.log2(tl.maximum(area, 1e-6)), 0.0), LEVELS - 1.0)
        fine = level.to(tl.int32)
        fraction, coarse = (level - fine)[:, None], tl.minimum(fine + 1, LEVELS - 1)
        a, b, c, d, s, t = _corners(x, y, fine, source_height, source_width, LEVELS)
        e, f, g, h, p, q = _corners(x, y, coarse, source_height, source_width, LEVELS)
        a, b, c, d, s, t = a[:, None], b[:, None], c[:, None], d[:, None], s[:, None], t[:, None]
        e, f, g, h, p, q = e[:, None], f[:, None], g[:, None], h[:, None], p[:, None], q[:, None]
        for start in tl.static_range(0, CHANNELS, ACROSS):
            channel = (start + tl.arange(0, ACROSS))[None, :]
            source = levels + sample * pixels * HELD + channel
            held = None if HELD % ACROSS == 0 else channel < HELD
            value = (1 - fraction) * _read(source, a, b, c, d, s, t, held, HELD)
            value += fraction * _read(source, e, f, g, h, p, q, held, HELD)
            target = looks + (sample * height * width + pixel[:, None]) * CHANNELS + channel
            tl.store(target, value.to(looks.dtype.element_ty), mask=valid[:, None] & (channel < CHANNELS))


@triton.jit
def _write_source(
    x, levels, pixels, width, all_pixels, x_batch, x_channel, x_row, x_column,
    CHANNELS: tl.constexpr, HELD: tl.constexpr, ACROSS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(1).to(tl.int64)
    pixel, channel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None], tl.arange(0, ACROSS)[None, :]
    at = x + sample * x_batch + channel * x_channel + pixel // width * x_row + pixel % width * x_column
    value = tl.load(at, mask=(pixel < pixels) & (channel < CHANNELS), other=0).to(levels.dtype.element_ty)
    tl.store(levels + (sample * all_pixels + pixel) * HELD + channel, value, mask=(pixel < pixels) & (channel < HELD))


def build_levels(source: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return the ``count`` levels of the pyramid of ``source`` ``(B, C, H, W)``, as ``(B, pixels, C)`` in ``dtype``.

    Up to eight channels are padded with zeros to a power of two.
    """
    batch, channels, height, width = source.shape
    sizes = [(height, width)]
    for _ in range(count - 1):
        sizes.append((cover(sizes[-1][0], 2), cover(sizes[-1][1], 2)))
    counts = [height * width for height, width in sizes]
    across = power_above(channels)
    held = across if channels <= FEW_CHANNELS else channels
    levels = torch.empty(batch, sum(counts), held, dtype=dtype, device=source.device)
    block = max(1, 2048 // across)
    launch(
        _write_source, (cover(counts[0], block), batch, 1), 4, source, levels, counts[0], width, levels.shape[1],
        *source.stride(), CHANNELS=channels, HELD=held, ACROSS=across, PIXELS=block,
    )  # fmt: skip
    parts = levels.split(counts, dim=1)
    for number in range(1, count):
        before = parts[number - 1].unflatten(1, sizes[number - 1]).permute(0, 3, 1, 2)
        shrink_into(before, parts[number], *sizes[number])
    return levels


def look_launch(
    levels: Tensor, looks: Tensor, source_size: tuple[int, int], count: int, state: dict[str, Any]
) -> Launch:
    """Return the launch that writes ``looks`` ``(B, h, w, C)``; ``state`` has the arguments of the iteration."""
    batch, height, width, channels = looks.shape
    held = levels.shape[2]
    block, across = block_shape(channels, contiguous=True) if channels > FEW_CHANNELS else (256, held)
    return Launch(
        _look, (cover(height * width, block), batch, 1), 4, **state, levels=levels, looks=looks,
        height=height, width=width, source_height=source_size[0], source_width=source_size[1],
        pixels=levels.shape[1], LEVELS=count, CHANNELS=channels, HELD=held, PIXELS=block, ACROSS=across,
    )  # fmt: skip
