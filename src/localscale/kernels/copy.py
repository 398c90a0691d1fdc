"""What a solve looks at, in one or two passes over the features: at a small size, and normalised across channels.

Their twins are ``localscale.conventions.resize`` and a layer norm without weights. Both write channels last, whatever
the strides they read. Nothing here is differentiable.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import cover, launch, power_above
from localscale.kernels.places import FEW, tile_of

__all__ = ["normalise", "shrink"]

EPSILON = 1e-5  # of a layer norm
ROWS = 8  # of an output, in one program
TILE = (4, 2, 32)  # rows, columns and channels of one, in a program of one warp
MOST_TAPS = 9  # along an axis, which are spelled out in a program
BAND, WIDE_BAND, NARROW = (7, 4), (14, 8), 128  # rows of a band and warps of a program, for so many channels or more
HELD = (64, 32, 256)  # pixels of a line, of one of the copy, and channels, that a program can hold on every GPU


@triton.jit
def _tents(output, size, new, used):
    """The tents of outputs along one axis: centre, slope and first pixel, and how their weights are levelled.

    See ``localscale.conventions._resize_matrix``.
    """
    spacing = (size - 1) * 1.0 / tl.maximum(new - 1, 1)
    slope = 1 / tl.maximum(spacing, 1.0)
    centre = output * spacing
    start = tl.ceil(centre - tl.maximum(spacing, 1.0)).to(tl.int32)
    total, first, second = centre * 0, centre * 0, centre * 0
    for t in range(used):
        pixel = start + t
        offset = pixel - centre
        tent = tl.where((pixel >= 0) & (pixel < size), tl.maximum(1 - tl.abs(offset) * slope, 0.0), 0.0)
        total, first, second = total + tent, first + tent * offset, second + tent * offset * offset
    spread = total * second - first * first
    alone = spread <= 1.1920929e-07 * total * total  # a single pixel under the tent
    total = tl.where(total > 0, total, 1.0)  # of outputs that are not there
    spread = tl.where(alone, 1.0, spread)
    level, tilt = tl.where(alone, 1 / total, second / spread), tl.where(alone, 0.0, first / spread)
    return centre, slope, start, level, tilt


@triton.jit
def _weights(pixel, centre, slope, level, tilt):
    """What pixels inside weigh in the outputs with these tents: the weights sum to one and balance about the centre."""
    offset = pixel - centre
    return tl.maximum(1 - tl.abs(offset) * slope, 0.0) * (level - tilt * offset)


@triton.jit
def _shrink(
    x, between, out, channels, height, width, new_height, new_width, x_batch, x_channel, x_row, x_column, used,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, NEW_WIDTH: tl.constexpr,
):  # fmt: skip
    """A few rows of one channel of one output: first down its columns, to ``between``, then along its rows."""
    channel, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column, new_column = tl.arange(0, WIDTH)[None, :], tl.arange(0, NEW_WIDTH)
    centre, slope, start, level, tilt = _tents(rows, height, new_height, used)
    source = x + batch * x_batch + channel * x_channel + column * x_column
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    for t in tl.range(0, used, loop_unroll_factor=4):
        row = start + t
        inside = (rows < new_height) & (row >= 0) & (row < height)
        weight = _weights(row, centre, slope, level, tilt)
        value = tl.load(source + row[:, None] * x_row, mask=inside[:, None] & (column < width), other=0)
        sums += weight[:, None] * value.to(tl.float32)
    line = (batch * channels + channel) * new_height + rows
    tl.store(between + line[:, None] * width + column, sums, mask=(rows < new_height)[:, None] & (column < width))
    tl.debug_barrier()
    centre, slope, start, level, tilt = _tents(new_column, width, new_width, used)
    answer = tl.zeros((ROWS, NEW_WIDTH), tl.float32)
    for t in tl.range(0, used, loop_unroll_factor=4):
        at = start + t
        weight = _weights(at, centre, slope, level, tilt)
        there = ((rows < new_height)[:, None]) & ((at >= 0) & (at < width))[None, :]
        value = tl.load(between + line[:, None] * width + at[None, :], mask=there, other=0.0)
        answer += weight[None, :] * value
    target = out + ((batch * new_height + rows[:, None]) * new_width + new_column[None, :]) * channels + channel
    tl.store(target, answer, mask=(rows < new_height)[:, None] & (new_column < new_width)[None, :])


@triton.jit
def _shrink_last(
    x, out, channels, height, width, new_height, new_width, x_batch, x_row, x_column,
    USED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """A tile of an output whose channels lie side by side, some of them, from all that lies under both tents."""
    batch, blocks = tl.program_id(2).to(tl.int64), tl.cdiv(channels, ACROSS)
    channel = tl.program_id(0) % blocks * ACROSS + tl.arange(0, ACROSS)[None, :]
    across = tl.program_id(0) // blocks
    new_row, new_column, _ = tile_of(tl.program_id(1), across, new_height, new_width, ROWS, COLUMNS)
    new_row, new_column = new_row[:, None], new_column[:, None]
    middle, steep, top, level, tilt = _tents(new_row, height, new_height, USED)
    centre, slope, left, even, lean = _tents(new_column, width, new_width, USED)
    source = x + batch * x_batch + channel
    answer = tl.zeros((ROWS * COLUMNS, ACROSS), tl.float32)
    for down in tl.static_range(USED):
        row, sums = top + down, tl.zeros((ROWS * COLUMNS, ACROSS), tl.float32)
        line = source + tl.minimum(tl.maximum(row, 0), height - 1) * x_row
        for right in tl.static_range(USED):
            column = left + right
            weight = tl.where((column >= 0) & (column < width), _weights(column, centre, slope, even, lean), 0.0)
            at = tl.minimum(tl.maximum(column, 0), width - 1) * x_column
            sums += weight * tl.load(line + at, mask=channel < channels, other=0).to(tl.float32)
        answer += tl.where((row >= 0) & (row < height), _weights(row, middle, steep, level, tilt), 0.0) * sums
    target = out + ((batch * new_height + new_row) * new_width + new_column) * channels + channel
    tl.store(target, answer, mask=channel < channels)


@triton.jit
def _level(value, channels, epsilon):
    """``value`` (pixels, channels) with mean 0 and variance 1 across channels; it is 0 at those that are not there."""
    there = tl.arange(0, value.shape[1])[None, :] < channels
    value = tl.where(there, value - (tl.sum(value, axis=1) / channels)[:, None], 0.0)
    return value / tl.sqrt(tl.sum(value * value, axis=1) / channels + epsilon)[:, None]


@triton.jit
def _pick(values, index, k):
    """Number ``k`` of the ``values``."""
    return tl.sum(tl.where(index == k, values, 0.0), axis=0)


@triton.jit
def _shrink_band(
    x, out, channels, height, width, new_height, new_width, x_batch, x_row, x_column, used, epsilon,
    ROWS: tl.constexpr, TENTS: tl.constexpr, WIDTH: tl.constexpr, NEW_WIDTH: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """A few rows of an output in half precision whose channels lie side by side, normalised.

    Each row of ``x`` is read once. A matrix unit shrinks it along, by weights in two parts whose digits add up; down,
    it lies under the tents of two of the output's rows, one before it and one after.
    """
    batch, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS
    column, new_column, channel = tl.arange(0, WIDTH), tl.arange(0, NEW_WIDTH), tl.arange(0, ACROSS)[None, :]
    centre, slope, _, even, lean = _tents(new_column, width, new_width, used)
    along = _weights(column[None, :], centre[:, None], slope, even[:, None], lean[:, None])
    along = tl.where(column[None, :] < width, along, 0.0)
    high = along.to(x.dtype.element_ty)
    low = (along - high.to(tl.float32)).to(x.dtype.element_ty)
    index = tl.arange(0, TENTS)  # from the row before the first on
    _, steep, _, levels, tilts = _tents(first - 1 + index, height, new_height, used)
    spacing = (height - 1) * 1.0 / tl.maximum(new_height - 1, 1)
    source = x + batch * x_batch + column[:, None] * x_column + channel
    mask = (column < width)[:, None] & (channel < channels)
    target = out + batch * new_height * new_width * channels + new_column[:, None] * channels + channel
    there = (new_column < new_width)[:, None] & (channel < channels)
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
                answer = _level(before, channels, epsilon).to(out.dtype.element_ty)
                tl.store(target + (new_row - 1) * new_width * channels, answer, mask=there)
            before, middle, level, tilt = after, next_middle, next_level, next_tilt
            new_row += 1
            after, next_middle = tl.zeros((NEW_WIDTH, ACROSS), tl.float32), new_row * spacing
            next_level, next_tilt = _pick(levels, index, new_row - first + 1), _pick(tilts, index, new_row - first + 1)
        before += _weights(row, middle, steep, level, tilt) * value
        after += _weights(row, next_middle, steep, next_level, next_tilt) * value
    if new_row > first:
        answer = _level(before, channels, epsilon).to(out.dtype.element_ty)
        tl.store(target + (new_row - 1) * new_width * channels, answer, mask=there)
    if new_row < past:  # it ends on the middle of its last row
        answer = _level(after, channels, epsilon).to(out.dtype.element_ty)
        tl.store(target + new_row * new_width * channels, answer, mask=there)


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
    value = _level(tl.load(x + batch * x_batch + at, mask=mask, other=0).to(tl.float32), channels, epsilon)
    target = out + (batch * pixels + pixel[:, None]) * channels + channel[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=mask)


def shrink(x: Tensor, height: int, width: int) -> Tensor:
    """``x`` ``(B, C, H, W)`` at another size, ``(B, height, width, C)`` in float32."""
    batch, channels, old_height, old_width = x.shape
    out = torch.empty(batch, height, width, channels, dtype=torch.float32, device=x.device)
    taps = _taps(x, height, width)
    if _side_by_side(x) and taps <= MOST_TAPS:
        rows, columns, across = TILE
        launch(
            _shrink_last, (cover(width, columns) * cover(channels, across), cover(height, rows), batch), 1,
            x, out, channels, old_height, old_width, height, width, x.stride(0), x.stride(2), x.stride(3),
            USED=taps, ROWS=rows, COLUMNS=columns, ACROSS=across,
        )  # fmt: skip
        return out
    between = torch.empty(batch, channels, height, old_width, dtype=torch.float32, device=x.device)
    launch(
        _shrink, (cover(height, ROWS), channels, batch), 4,
        x, between, out, channels, old_height, old_width, height, width, *x.stride(), taps,
        ROWS=ROWS, WIDTH=power_above(old_width), NEW_WIDTH=power_above(width),
    )  # fmt: skip
    return out


def normalise(x: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """``x`` ``(B, C, H, W)`` at a size no larger, with mean 0 and variance 1 across the channels of every pixel.

    It comes as ``(B, height, width, C)``.
    """
    batch, channels, old_height, old_width = x.shape
    out = torch.empty(batch, height, width, channels, dtype=dtype, device=x.device)
    if (old_height, old_width) == (height, width):
        _normalise_all(x, out)
        return out
    columns, across = max(power_above(old_width), 16), max(power_above(channels), 16)
    held = old_width <= HELD[0] and width <= HELD[1] and channels <= HELD[2]
    if not (held and _side_by_side(x) and _is_multiplied(x)):
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


def _side_by_side(x: Tensor) -> bool:
    """Whether channels are, and enough of them to be read together."""
    return x.stride(1) == 1 and x.shape[1] > FEW


def _is_multiplied(x: Tensor) -> bool:
    """Whether matrix units take it as it is; Triton's interpreter has no products of bfloat16."""
    return x.dtype == torch.float16 or (x.dtype == torch.bfloat16 and x.is_cuda)


def _taps(x: Tensor, height: int, width: int) -> int:
    """How many pixels along an axis may lie under a tent."""
    old_height, old_width = x.shape[2:]
    return int(2 * max((old_height - 1) / max(height - 1, 1), (old_width - 1) / max(width - 1, 1), 1)) + 1
