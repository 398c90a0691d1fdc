"""Make the working copy of a solve: features at a smaller size and, for latent features, normalised across channels.

``shrink`` resizes with an anti-aliasing tent filter; its reference is ``localscale.conventions.resize``. ``normalise``
does the same and then subtracts the mean and divides by the standard deviation of each pixel's channels; its reference
adds ``layer_norm`` without weights. Both read any strides and write channels last ``(B, h, w, C)``, in one or two
passes over memory. Not differentiable.

Four kernels share the work:

- ``_shrink``: any strides. One program instance makes ``ROWS`` rows of one channel of one image.
- ``_shrink_last``: contiguous channels. One program instance makes a tile of pixels and channels.
- ``_shrink_band``: contiguous channels in half precision, normalised in the same pass. One program instance makes a
  band of rows of one image, all columns and channels.
- ``_normalise``: no resizing. One program instance works on a block of pixels with all their channels.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.bilinear import FEW_CHANNELS, tile_pixels
from localscale.kernels.launch import cover, launch, power_above

__all__ = ["normalise", "shrink", "shrink_into", "tent_weights", "tents"]

EPSILON = 1e-5  # added to the variance, as in layer_norm
ROWS = 8  # output rows per program instance of _shrink
TILE = (4, 2, 32)  # rows, columns and channels per program instance of _shrink_last, which has one warp
MAX_TAPS = 9  # _shrink_last unrolls its loops over the pixels under a tent; with more taps, _shrink is used
BAND, WIDE_BAND, NARROW = (7, 4), (14, 8), 128  # output rows and warps of _shrink_band: up to 128 channels, and above
HELD = (64, 32, 256)  # input columns, output columns and channels that fit into the shared memory of every GPU


@triton.jit
def tents(output, size, new, taps):
    """Return the tent filters of the given outputs along one axis: centre, slope, first pixel, level and tilt.

    Level and tilt correct the weights of a tent so that they sum to one and their mean position is the centre, also
    where the border cuts the tent off. See ``localscale.conventions.resize_matrix``.
    """
    spacing = (size - 1) * 1.0 / tl.maximum(new - 1, 1)
    slope = 1 / tl.maximum(spacing, 1.0)
    centre = output * spacing
    start = tl.ceil(centre - tl.maximum(spacing, 1.0)).to(tl.int32)
    total, first, second = centre * 0, centre * 0, centre * 0
    for t in range(taps):
        pixel = start + t
        offset = pixel - centre
        tent = tl.where((pixel >= 0) & (pixel < size), tl.maximum(1 - tl.abs(offset) * slope, 0.0), 0.0)
        total, first, second = total + tent, first + tent * offset, second + tent * offset * offset
    spread = total * second - first * first
    alone = spread <= 1.1920929e-07 * total * total  # only one pixel lies under the tent
    total = tl.where(total > 0, total, 1.0)  # outputs beyond the last have no pixels
    spread = tl.where(alone, 1.0, spread)
    level, tilt = tl.where(alone, 1 / total, second / spread), tl.where(alone, 0.0, first / spread)
    return centre, slope, start, level, tilt


@triton.jit
def tent_weights(pixel, centre, slope, level, tilt):
    """Return the weight of each pixel in each output, from the tents of the outputs; pixels lie inside the image."""
    offset = pixel - centre
    return tl.maximum(1 - tl.abs(offset) * slope, 0.0) * (level - tilt * offset)


@triton.jit
def _shrink(
    x, intermediate, out, channels, height, width, new_height, new_width, x_batch, x_channel, x_row, x_column, taps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, NEW_WIDTH: tl.constexpr,
):  # fmt: skip
    """Resize a few rows of one channel: first along the columns, into ``intermediate``, then along the rows."""
    channel, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column, new_column = tl.arange(0, WIDTH)[None, :], tl.arange(0, NEW_WIDTH)
    centre, slope, start, level, tilt = tents(rows, height, new_height, taps)
    source = x + batch * x_batch + channel * x_channel + column * x_column
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    for t in tl.range(0, taps, loop_unroll_factor=4):
        row = start + t
        inside = (rows < new_height) & (row >= 0) & (row < height)
        weight = tent_weights(row, centre, slope, level, tilt)
        value = tl.load(source + row[:, None] * x_row, mask=inside[:, None] & (column < width), other=0)
        sums += weight[:, None] * value.to(tl.float32)
    line = (batch * channels + channel) * new_height + rows
    tl.store(intermediate + line[:, None] * width + column, sums, mask=(rows < new_height)[:, None] & (column < width))
    tl.debug_barrier()
    centre, slope, start, level, tilt = tents(new_column, width, new_width, taps)
    answer = tl.zeros((ROWS, NEW_WIDTH), tl.float32)
    for t in tl.range(0, taps, loop_unroll_factor=4):
        at = start + t
        weight = tent_weights(at, centre, slope, level, tilt)
        valid = ((rows < new_height)[:, None]) & ((at >= 0) & (at < width))[None, :]
        value = tl.load(intermediate + line[:, None] * width + at[None, :], mask=valid, other=0.0)
        answer += weight[None, :] * value
    target = out + ((batch * new_height + rows[:, None]) * new_width + new_column[None, :]) * channels + channel
    tl.store(target, answer, mask=(rows < new_height)[:, None] & (new_column < new_width)[None, :])


@triton.jit
def _shrink_last(
    x, out, height, width, new_height, new_width, x_batch, x_row, x_column, out_batch,
    CHANNELS: tl.constexpr, ALIGNED: tl.constexpr, TAPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ACROSS: tl.constexpr,
):  # fmt: skip
    """Resize a tile of pixels and channels in one pass, from all pixels under the tents of both axes.

    All strides are multiples of ALIGNED, which allows wide loads and stores.
    """
    batch, blocks = tl.program_id(2).to(tl.int64), tl.cdiv(CHANNELS, ACROSS)
    channel = tl.program_id(0) % blocks * ACROSS + tl.arange(0, ACROSS)[None, :]
    across = tl.program_id(0) // blocks
    new_row, new_column, _ = tile_pixels(tl.program_id(1), across, new_height, new_width, ROWS, COLUMNS)
    new_row, new_column = new_row[:, None], new_column[:, None]
    middle, steep, top, level, tilt = tents(new_row, height, new_height, TAPS)
    centre, slope, left, even, lean = tents(new_column, width, new_width, TAPS)
    exists = None if CHANNELS % ACROSS == 0 else channel < CHANNELS
    other: tl.constexpr = None if CHANNELS % ACROSS == 0 else 0
    source = x + tl.multiple_of(batch * x_batch, ALIGNED) + channel
    answer = tl.zeros((ROWS * COLUMNS, ACROSS), tl.float32)
    for down in tl.static_range(TAPS):
        row, sums = top + down, tl.zeros((ROWS * COLUMNS, ACROSS), tl.float32)
        line = source + tl.multiple_of(tl.minimum(tl.maximum(row, 0), height - 1) * x_row, [1, ALIGNED])
        for right in tl.static_range(TAPS):
            column = left + right
            weight = tl.where((column >= 0) & (column < width), tent_weights(column, centre, slope, even, lean), 0.0)
            at = tl.multiple_of(tl.minimum(tl.maximum(column, 0), width - 1) * x_column, [1, ALIGNED])
            sums += weight * tl.load(line + at, mask=exists, other=other).to(tl.float32)
        answer += tl.where((row >= 0) & (row < height), tent_weights(row, middle, steep, level, tilt), 0.0) * sums
    target = out + tl.multiple_of(batch * out_batch, ALIGNED) + (new_row * new_width + new_column) * CHANNELS + channel
    tl.store(target, answer.to(out.dtype.element_ty), mask=exists)


@triton.jit
def _normalised(value, channels, epsilon):
    """Normalise ``value`` (pixels, channels) to mean 0 and variance 1 across channels; padding channels stay 0."""
    valid = tl.arange(0, value.shape[1])[None, :] < channels
    value = tl.where(valid, value - (tl.sum(value, axis=1) / channels)[:, None], 0.0)
    return value / tl.sqrt(tl.sum(value * value, axis=1) / channels + epsilon)[:, None]


@triton.jit
def _pick(values, index, k):
    """Return element ``k`` of ``values``."""
    return tl.sum(tl.where(index == k, values, 0.0), axis=0)


@triton.jit
def _shrink_band(
    x, out, channels, height, width, new_height, new_width, x_batch, x_row, x_column, taps, epsilon,
    ROWS: tl.constexpr, TENTS: tl.constexpr, WIDTH: tl.constexpr, NEW_WIDTH: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """Resize and normalise a band of output rows, reading each input row once.

    Along a row, the resizing is a matrix product on tensor cores. Its weights are split into two half-precision parts,
    ``high`` and ``low``, which together have twice the digits. Down the columns, an input row lies under the tents of
    two output rows: ``before`` and ``after`` accumulate them.
    """
    batch, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS
    column, new_column, channel = tl.arange(0, WIDTH), tl.arange(0, NEW_WIDTH), tl.arange(0, ACROSS)[None, :]
    centre, slope, _, even, lean = tents(new_column, width, new_width, taps)
    along = tent_weights(column[None, :], centre[:, None], slope, even[:, None], lean[:, None])
    along = tl.where(column[None, :] < width, along, 0.0)
    high = along.to(x.dtype.element_ty)
    low = (along - high.to(tl.float32)).to(x.dtype.element_ty)
    index = tl.arange(0, TENTS)  # tents of the row before the band, then of its rows
    _, steep, _, levels, tilts = tents(first - 1 + index, height, new_height, taps)
    spacing = (height - 1) * 1.0 / tl.maximum(new_height - 1, 1)
    source = x + batch * x_batch + column[:, None] * x_column + channel
    mask = (column < width)[:, None] & (channel < channels)
    target = out + batch * new_height * new_width * channels + new_column[:, None] * channels + channel
    valid = (new_column < new_width)[:, None] & (channel < channels)
    before, after = tl.zeros((NEW_WIDTH, ACROSS), tl.float32), tl.zeros((NEW_WIDTH, ACROSS), tl.float32)
    new_row, past = first, tl.minimum(first + ROWS, new_height)
    middle, level, tilt = (first - 1) * spacing, _pick(levels, index, 0), _pick(tilts, index, 0)
    next_middle, next_level, next_tilt = first * spacing, _pick(levels, index, 1), _pick(tilts, index, 1)
    begin = tl.where(first > 0, tl.floor(middle).to(tl.int32) + 1, 0)
    end = tl.maximum(tl.minimum(tl.ceil(past * spacing).to(tl.int32), height), 1)
    for row in tl.range(begin, end, num_stages=3):
        value = tl.load(source + row * x_row, mask=mask, other=0)
        value = tl.dot(low, value, tl.dot(high, value))
        if row > next_middle:
            if new_row > first:
                answer = _normalised(before, channels, epsilon).to(out.dtype.element_ty)
                tl.store(target + (new_row - 1) * new_width * channels, answer, mask=valid)
            before, middle, level, tilt = after, next_middle, next_level, next_tilt
            new_row += 1
            after, next_middle = tl.zeros((NEW_WIDTH, ACROSS), tl.float32), new_row * spacing
            next_level, next_tilt = _pick(levels, index, new_row - first + 1), _pick(tilts, index, new_row - first + 1)
        before += tent_weights(row, middle, steep, level, tilt) * value
        after += tent_weights(row, next_middle, steep, next_level, next_tilt) * value
    if new_row > first:
        answer = _normalised(before, channels, epsilon).to(out.dtype.element_ty)
        tl.store(target + (new_row - 1) * new_width * channels, answer, mask=valid)
    if new_row < past:  # the input ends at the centre of the last output row
        answer = _normalised(after, channels, epsilon).to(out.dtype.element_ty)
        tl.store(target + new_row * new_width * channels, answer, mask=valid)


@triton.jit
def _normalise(
    x, out, pixels, channels, width, x_batch, x_channel, x_row, x_column, epsilon,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.arange(0, CHANNELS)
    mask = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    at = (pixel // width * x_row + pixel % width * x_column)[:, None] + channel[None, :] * x_channel
    value = _normalised(tl.load(x + batch * x_batch + at, mask=mask, other=0).to(tl.float32), channels, epsilon)
    target = out + (batch * pixels + pixel[:, None]) * channels + channel[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=mask)


def shrink(x: Tensor, height: int, width: int) -> Tensor:
    """Resize ``x`` ``(B, C, H, W)``; return ``(B, height, width, C)`` in float32."""
    batch, channels, old_height, old_width = x.shape
    out = torch.empty(batch, height, width, channels, dtype=torch.float32, device=x.device)
    taps = _taps(x, height, width)
    if _channels_contiguous(x) and taps <= MAX_TAPS:
        shrink_into(x, out.flatten(1, 2), height, width)
        return out
    intermediate = torch.empty(batch, channels, height, old_width, dtype=torch.float32, device=x.device)
    launch(
        _shrink, (cover(height, ROWS), channels, batch), 4,
        x, intermediate, out, channels, old_height, old_width, height, width, *x.stride(), taps,
        ROWS=ROWS, WIDTH=power_above(old_width), NEW_WIDTH=power_above(width),
    )  # fmt: skip
    return out


def shrink_into(x: Tensor, out: Tensor, height: int, width: int) -> None:
    """Resize ``x`` ``(B, C, H, W)``, whose channels are contiguous, into ``out`` ``(B, height · width, C)``.

    Each axis becomes at most about four times as small; the pixels of an image in ``out`` are contiguous.
    """
    batch, channels, old_height, old_width = x.shape
    rows, columns, across = TILE if channels > FEW_CHANNELS else (4, 32, power_above(channels))
    aligned = math.gcd(16, channels, x.stride(0), x.stride(2), x.stride(3), out.stride(0))
    launch(
        _shrink_last, (cover(width, columns) * cover(channels, across), cover(height, rows), batch),
        1 if channels > FEW_CHANNELS else 4,
        x, out, old_height, old_width, height, width, x.stride(0), x.stride(2), x.stride(3), out.stride(0),
        CHANNELS=channels, ALIGNED=aligned, TAPS=_taps(x, height, width), ROWS=rows, COLUMNS=columns, ACROSS=across,
    )  # fmt: skip


def normalise(x: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """Resize ``x`` ``(B, C, H, W)`` to a size no larger, and normalise the channels of every pixel.

    Return ``(B, height, width, C)`` with mean 0 and variance 1 across channels.
    """
    batch, channels, old_height, old_width = x.shape
    out = torch.empty(batch, height, width, channels, dtype=dtype, device=x.device)
    if (old_height, old_width) == (height, width):
        _normalise_all(x, out)
        return out
    columns, across = max(power_above(old_width), 16), max(power_above(channels), 16)
    held = old_width <= HELD[0] and width <= HELD[1] and channels <= HELD[2]
    if not (held and _channels_contiguous(x) and _has_matrix_product(x)):
        _normalise_all(shrink(x, height, width).permute(0, 3, 1, 2), out)
        return out
    rows, warps = BAND if across <= NARROW else WIDE_BAND
    launch(
        _shrink_band, (cover(height, rows), batch, 1), warps,
        x, out, channels, old_height, old_width, height, width, x.stride(0), x.stride(2), x.stride(3),
        _taps(x, height, width), EPSILON, ROWS=rows, TENTS=power_above(rows + 1), WIDTH=columns,
        NEW_WIDTH=max(power_above(width), 16), ACROSS=across,
    )  # fmt: skip
    return out


def _normalise_all(x: Tensor, out: Tensor) -> None:
    batch, channels, height, width = x.shape
    across = power_above(channels)
    pixels = max(1, 2048 // across)
    launch(
        _normalise, (cover(height * width, pixels), batch, 1), 4,
        x, out, height * width, channels, width, *x.stride(), EPSILON, PIXELS=pixels, CHANNELS=across,
    )  # fmt: skip


def _channels_contiguous(x: Tensor) -> bool:
    """Return whether channels are contiguous in memory, and enough of them to be read together."""
    return x.stride(1) == 1 and x.shape[1] > FEW_CHANNELS


def _has_matrix_product(x: Tensor) -> bool:
    """Return whether ``tl.dot`` takes this dtype; Triton's interpreter cannot multiply bfloat16."""
    return x.dtype == torch.float16 or (x.dtype == torch.bfloat16 and x.is_cuda)


def _taps(x: Tensor, height: int, width: int) -> int:
    """Return the largest number of pixels that lie under a tent, along either axis."""
    old_height, old_width = x.shape[2:]
    return int(2 * max((old_height - 1) / max(height - 1, 1), (old_width - 1) / max(width - 1, 1), 1)) + 1
