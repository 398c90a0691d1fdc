"""Run the convolutions of a trunk on channels-last images in half precision, each in one launch.

The reference is ``localscale.canonicalizer.trunks.FoldedConvolution``. A launch reads its input once, adds the bias and
a residual, bounds the result, and writes it once: the cost of these layers is reading and writing. Weights are read as
they are stored, in any precision. Not differentiable.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import cover, launch, power_above

__all__ = ["LARGEST", "bounded_depthwise", "bounded_pointwise"]

LARGEST = 2**31  # elements of a tensor at which int32 offsets overflow
PIXELS, BEFORE, AFTER, WARPS = 128, 64, 128, 4  # of a program instance: pixels, channels at most, warps
TILE, ACROSS = (4, 8), 64  # (rows, columns) and channels, at most, of a program instance of _depthwise


@triton.jit
def _pointwise(
    x, weight, bias, residual, out, pixels, before, after, BOUNDED: tl.constexpr, RESIDUAL: tl.constexpr,
    PIXELS: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(after, AFTER)  # neighbouring programs share their pixels, which then come from the cache
    pixel = (tl.program_id(0) // blocks * PIXELS + tl.arange(0, PIXELS))[:, None]
    channel = tl.program_id(0) % blocks * AFTER + tl.arange(0, AFTER)[None, :]
    total = tl.zeros((PIXELS, AFTER), tl.float32)
    for first in range(0, before, BEFORE):
        inner = first + tl.arange(0, BEFORE)
        value = tl.load(x + pixel * before + inner[None, :], mask=(pixel < pixels) & (inner < before)[None, :], other=0)
        mask = (channel < after) & (inner < before)[:, None]
        factor = tl.load(weight + channel * before + inner[:, None], mask=mask, other=0)
        total = tl.dot(value, factor.to(value.dtype), total)
    total += tl.load(bias + channel, mask=channel < after, other=0).to(tl.float32)
    at, mask = pixel * after + channel, (pixel < pixels) & (channel < after)
    if RESIDUAL:
        total += tl.load(residual + at, mask=mask, other=0).to(tl.float32)
    if BOUNDED:
        total = tl.minimum(tl.maximum(total, 0.0), 6.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _depthwise(
    x, weight, bias, out, channels, height, width, new_height, new_width, top, left, KERNEL: tl.constexpr,
    STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    blocks, tiles = tl.cdiv(channels, ACROSS), tl.cdiv(new_width, COLUMNS)
    channel = tl.program_id(0) % blocks * ACROSS + tl.arange(0, ACROSS)[None, :]
    place, image = tl.arange(0, ROWS * COLUMNS)[:, None], tl.program_id(2)
    new_row = tl.program_id(1) * ROWS + place // COLUMNS
    new_column = tl.program_id(0) // blocks % tiles * COLUMNS + place % COLUMNS
    known = channel < channels
    total = tl.zeros((ROWS * COLUMNS, ACROSS), tl.float32)
    for down in tl.static_range(KERNEL):
        row = new_row * STRIDE - top + down
        for across in tl.static_range(KERNEL):
            column = new_column * STRIDE - left + across
            mask = known & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            value = tl.load(x + ((image * height + row) * width + column) * channels + channel, mask=mask, other=0)
            factor = tl.load(weight + channel * (KERNEL * KERNEL) + down * KERNEL + across, mask=known, other=0)
            total += value.to(tl.float32) * factor.to(tl.float32)
    total += tl.load(bias + channel, mask=known, other=0).to(tl.float32)
    total = tl.minimum(tl.maximum(total, 0.0), 6.0)
    at = ((image * new_height + new_row) * new_width + new_column) * channels + channel
    tl.store(out + at, total.to(out.dtype.element_ty), mask=known & (new_row < new_height) & (new_column < new_width))


def bounded_pointwise(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, *, bounded: bool) -> Tensor:
    """Return the 1 × 1 convolution of channels-last ``x`` ``(B, C, H, W)``, plus ``residual``, also channels-last.

    With ``bounded`` the result lies in [0, 6].
    """
    count, before, height, width = x.shape
    after, pixels = len(weight), count * height * width
    out = x.new_empty(count, height, width, after)
    across, deep = (max(16, min(most, power_above(number))) for most, number in ((AFTER, after), (BEFORE, before)))
    launch(
        _pointwise, (cover(pixels, PIXELS) * cover(after, across), 1, 1), WARPS,
        x, weight, bias, out if residual is None else residual, out, pixels, before, after,
        BOUNDED=bounded, RESIDUAL=residual is not None, PIXELS=PIXELS, BEFORE=deep, AFTER=across,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def bounded_depthwise(x: Tensor, weight: Tensor, bias: Tensor, stride: int, before: tuple[int, int]) -> Tensor:
    """Return the depthwise convolution of channels-last ``x`` ``(B, C, H, W)``, in [0, 6] and channels-last.

    ``before`` is the padding above and to the left; below and to the right it is as much as ⌈side / stride⌉ outputs
    need.
    """
    count, channels, height, width = x.shape
    new_height, new_width = cover(height, stride), cover(width, stride)
    out = x.new_empty(count, new_height, new_width, channels)
    across, (rows, columns) = min(ACROSS, power_above(channels)), TILE
    launch(
        _depthwise, (cover(new_width, columns) * cover(channels, across), cover(new_height, rows), count), WARPS,
        x, weight, bias, out, channels, height, width, new_height, new_width, *before,
        KERNEL=weight.shape[-1], STRIDE=stride, ROWS=rows, COLUMNS=columns, ACROSS=across,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)
