"""Estimate log sizes and edge weights in looks, in five launches.

The reference is ``localscale.canonicalizer.sizes.SizeEstimator.sizes``. Each of the first three convolutions is a
launch of ``_layer``. ``_blocks`` runs all residual blocks, the norm and the head; one program instance works on one
image, so that the means of a group norm need no other program. ``_edges`` makes a row of weights of one image. Not
differentiable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.equilibrium import convolve, depth_of, gelu, product_dtype
from localscale.kernels.launch import Launch, cover, power_above
from localscale.kernels.working_copy import tent_weights, tents

__all__ = ["SizeWeights", "launches", "supports"]

GROUPS, EPSILON = 8, 1e-5  # of the group norms
MAX_PIXELS = 1024  # of the coarse grid: a program instance holds all its pixels
LAYER = (128, 8)  # output pixels and warps of a program instance of _layer
BLOCKS = (256, 16)  # pixels per matrix product and warps of _blocks
EDGE_WARPS = 4


@dataclass(frozen=True)
class SizeWeights:
    """The weights of a size network as the kernels read them.

    ``down`` are the weights ``(K, 9, C)`` and biases of three strided convolutions. ``convolutions`` ``(2n, K, 9, K)``,
    ``biases`` ``(2n, K)`` and ``norms`` ``(2, 2n + 1, K)`` are those of n residual blocks and of the last norm.
    ``head`` ``(K,)`` and its bias give the log size.
    """

    down: tuple[Tensor, ...]
    convolutions: Tensor
    biases: Tensor
    norms: Tensor
    head: Tensor
    head_bias: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors in one tuple, which ``of`` takes."""
        return (*self.down, self.convolutions, self.biases, self.norms, self.head, self.head_bias)

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> SizeWeights:
        """Build the weights from what ``tensors`` returned."""
        return SizeWeights(tuple(tensors[:6]), *tensors[6:])


@triton.jit(do_not_specialize=["step"])
def _layer(
    x, out, weight, bias, active, step, height, width, out_height, out_width, STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Apply a strided 3 × 3 convolution, bias and GELU; a program instance makes all channels of a block of pixels."""
    sample = tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        pixel, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)[None, :]
        valid = pixel < out_height * out_width
        total = convolve(
            x + sample * height * width * CHANNELS, weight, pixel, valid, height, width, out_width,
            STRIDE, CHANNELS, WIDE, BLOCK, DEPTH,
        )  # fmt: skip
        answer = gelu(total + tl.load(bias + channel).to(tl.float32), out.dtype.element_ty)
        target = out + (sample * out_height * out_width + pixel)[:, None] * WIDE + channel
        tl.store(target, answer.to(out.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _normalised(x, weight, bias, pixels, PIXELS: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr, eps):
    """Return all pixels ``(PIXELS, WIDE)`` of an image after the group norm, before the GELU."""
    pixel, channel = tl.arange(0, PIXELS)[:, None], tl.arange(0, WIDE)
    valid = pixel < pixels
    value = tl.load(x + pixel * WIDE + channel[None, :], mask=valid, other=0).to(tl.float32)
    size: tl.constexpr = WIDE // GROUPS
    same = (channel[:, None] // size) == (channel[None, :] // size)
    mean = tl.sum(tl.where(same, tl.sum(value, axis=0)[None, :], 0.0), axis=1) / (pixels * size)
    centred = tl.where(valid, value - mean[None, :], 0.0)
    square = tl.sum(centred * centred, axis=0)
    variance = tl.sum(tl.where(same, square[None, :], 0.0), axis=1) / (pixels * size)
    factor = tl.rsqrt(variance + eps) * tl.load(weight + channel).to(tl.float32)
    return centred * factor[None, :] + tl.load(bias + channel).to(tl.float32)[None, :]


@triton.jit
def _norm_and_activate(
    x, out, weight, bias, pixels, PIXELS: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr, eps
):  # fmt: skip
    value = gelu(_normalised(x, weight, bias, pixels, PIXELS, WIDE, GROUPS, eps), out.dtype.element_ty)
    at = tl.arange(0, PIXELS)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    tl.store(out + at, value.to(out.dtype.element_ty), mask=tl.arange(0, PIXELS)[:, None] < pixels)
    tl.debug_barrier()


@triton.jit
def _convolve_image(
    source, weight, bias, out, height, width, ADD: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Convolve a whole image, block by block; with ADD, add to ``out`` instead of replacing it."""
    channel = tl.arange(0, WIDE)[None, :]
    for start in range(0, height * width, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        valid = pixel < height * width
        total = convolve(source, weight, pixel, valid, height, width, width, 1, WIDE, WIDE, BLOCK, DEPTH)
        total += tl.load(bias + channel).to(tl.float32)
        at = out + pixel[:, None] * WIDE + channel
        if ADD:
            total += tl.load(at, mask=valid[:, None], other=0).to(tl.float32)
        tl.store(at, total.to(out.dtype.element_ty), mask=valid[:, None])
    tl.debug_barrier()


@triton.jit(do_not_specialize=["step"])
def _blocks(
    x, middle, activated, raw, sizes, weights, biases, norms, head, head_bias, active, step, height, width,
    spacing, side_down, side_across, eps, largest, BLOCKS: tl.constexpr, PIXELS: tl.constexpr, WIDE: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        pixels = height * width
        first = sample * pixels * WIDE
        x, middle, activated = x + first, middle + first, activated + first
        shift = norms + (2 * BLOCKS + 1) * WIDE  # norms holds all weights, then all biases
        for block in range(BLOCKS):
            at = 2 * block * WIDE
            kernel = weights + at * 9 * WIDE
            _norm_and_activate(x, activated, norms + at, shift + at, pixels, PIXELS, WIDE, GROUPS, eps)
            _convolve_image(activated, kernel, biases + at, middle, height, width, False, WIDE, BLOCK, DEPTH)
            at += WIDE
            kernel += WIDE * 9 * WIDE
            _norm_and_activate(middle, activated, norms + at, shift + at, pixels, PIXELS, WIDE, GROUPS, eps)
            _convolve_image(activated, kernel, biases + at, x, height, width, True, WIDE, BLOCK, DEPTH)
        at = 2 * BLOCKS * WIDE
        value = gelu(_normalised(x, norms + at, shift + at, pixels, PIXELS, WIDE, GROUPS, eps), tl.float32)
        factor = tl.load(head + tl.arange(0, WIDE)).to(tl.float32)
        score = tl.sum(value * factor[None, :], axis=1) + tl.load(head_bias).to(tl.float32)
        pixel = tl.arange(0, PIXELS)
        raw, sizes = raw + sample * pixels, sizes + sample * pixels
        tl.store(raw + pixel, score, mask=pixel < pixels)
        tl.debug_barrier()
        # The scores lie ``spacing`` look pixels apart from the first pixel on; sizes lie evenly from corner to corner.
        row, column = tl.where(pixel < pixels, pixel // width, 0), pixel % width
        y = row * ((side_down - 1) * 1.0 / (spacing * tl.maximum(height - 1, 1)))
        x_at = column * ((side_across - 1) * 1.0 / (spacing * tl.maximum(width - 1, 1)))
        y, x_at = tl.minimum(y, height - 1.0), tl.minimum(x_at, width - 1.0)
        top, left = y.to(tl.int32), x_at.to(tl.int32)
        bottom, right, t, s = tl.minimum(top + 1, height - 1), tl.minimum(left + 1, width - 1), y - top, x_at - left
        upper = tl.load(raw + top * width + left) * (1 - s) + tl.load(raw + top * width + right) * s
        lower = tl.load(raw + bottom * width + left) * (1 - s) + tl.load(raw + bottom * width + right) * s
        score = (upper * (1 - t) + lower * t) / largest
        tl.store(sizes + pixel, largest * (2 * tl.sigmoid(2 * score) - 1), mask=pixel < pixels)


@triton.jit(do_not_specialize=["step"])
def _edges(
    looks, weights, active, step, height, width, new_height, new_width, half, taps,
    CHANNELS: tl.constexpr, TALL: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write one row of g / (g + half), where g is the mean strength of a look's edges on the coarse grid."""
    new_row, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(active + sample, mask=step > 0, other=1) != 0:
        looks += sample * height * width * CHANNELS
        column, new_column = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
        middle, steep, top, level, tilt = tents(new_row, height, new_height, taps)
        row = top + tl.arange(0, TALL)  # all rows under the tent
        inside = (row >= 0) & (row < height)
        mask = inside[:, None] & (column < width)[None, :]
        last_row, last_column = (row >= height - 1)[:, None], (column >= width - 1)[None, :]
        at = looks + (row[:, None] * width + column[None, :]) * CHANNELS
        energy = tl.zeros((TALL, WIDTH), tl.float32)
        for channel in tl.range(0, CHANNELS, loop_unroll_factor=4):
            here = tl.load(at + channel, mask=mask, other=0).to(tl.float32)
            across = tl.load(at + channel + CHANNELS, mask=mask & ~last_column, other=0).to(tl.float32)
            down = tl.load(at + channel + width * CHANNELS, mask=mask & ~last_row, other=0).to(tl.float32)
            across, down = tl.where(last_column, 0.0, across - here), tl.where(last_row, 0.0, down - here)
            energy += across * across + down * down
        strength = tl.where(mask, tl.sqrt(energy / CHANNELS + 1e-12) - 1e-6, 0.0)
        share = tl.where(inside, tent_weights(row, middle, steep, level, tilt), 0.0)
        total = tl.sum(strength * share[:, None], axis=0)
        centre, slope, _, even, lean = tents(new_column, width, new_width, taps)
        share = tent_weights(column[:, None], centre[None, :], slope, even[None, :], lean[None, :])
        mean = tl.sum(tl.where((column < width)[:, None], share, 0.0) * total[:, None], axis=0)
        mean = tl.maximum(mean, 0.0)
        target = weights + (sample * new_height + new_row) * new_width + new_column
        tl.store(target, mean / (mean + half), mask=new_column < new_width)


def supports(widths: Sequence[int], channels: int, grid: tuple[int, int]) -> bool:
    """Return whether these kernels can run a size network with convolutions of ``widths`` on a coarse ``grid``."""
    powers = all(16 <= width <= 128 and width & (width - 1) == 0 for width in widths)
    return powers and channels <= 128 and grid[0] * grid[1] <= MAX_PIXELS


def launches(
    looks: Tensor,
    weights: SizeWeights,
    strides: Sequence[int],
    active: Tensor,
    *,
    largest: float,
    half: float,
) -> tuple[list[Launch], Tensor, Tensor]:
    """Return the launches for ``looks`` ``(B, h, w, C)``, and the log sizes and weights ``(B, h′, w′)`` they write."""
    batch, height, width, channels = looks.shape
    dtype, device = product_dtype(), looks.device
    found: list[Launch] = []
    x, side = looks, (height, width)
    spacing = 1
    for number, stride in enumerate(strides):
        weight, bias = weights.down[2 * number], weights.down[2 * number + 1]
        size, before, wide = (cover(side[0], stride), cover(side[1], stride)), x.shape[-1], len(bias)
        out = torch.empty(batch, *size, wide, dtype=dtype, device=device)
        found.append(
            Launch(
                _layer, (cover(size[0] * size[1], LAYER[0]), batch, 1), LAYER[1] if wide > 32 else 4,
                x, out, weight, bias, active=active, height=side[0], width=side[1],
                out_height=size[0], out_width=size[1], STRIDE=stride,
                CHANNELS=before, WIDE=wide, BLOCK=LAYER[0], DEPTH=depth_of(before, dtype),
            )
        )  # fmt: skip
        x, side, spacing = out, size, spacing * stride
    wide = x.shape[-1]
    sizes, importance, raw = torch.empty(3, batch, *side, dtype=torch.float32, device=device).unbind()
    settings: dict[str, Any] = {"largest": largest, "eps": EPSILON, "spacing": spacing}
    found.append(
        Launch(
            _blocks, (batch, 1, 1), BLOCKS[1], x, torch.empty_like(x), torch.empty_like(x), raw, sizes,
            weights.convolutions, weights.biases, weights.norms, weights.head, weights.head_bias, active=active,
            height=side[0], width=side[1], side_down=height, side_across=width, **settings,
            BLOCKS=len(weights.biases) // 2, PIXELS=max(16, power_above(side[0] * side[1])), WIDE=wide, GROUPS=GROUPS,
            BLOCK=BLOCKS[0], DEPTH=depth_of(wide, dtype),
        )
    )  # fmt: skip
    down, across = (max((old - 1) / max(new - 1, 1), 1) for old, new in zip((height, width), side, strict=True))
    found.append(
        Launch(
            _edges, (side[0], batch, 1), EDGE_WARPS, looks, importance, active=active, height=height, width=width,
            new_height=side[0], new_width=side[1], half=half, taps=int(2 * max(down, across)) + 1, CHANNELS=channels,
            TALL=power_above(math.ceil(2 * down)), WIDTH=power_above(width), COLUMNS=power_above(side[1]),
        )
    )  # fmt: skip
    return found, sizes, importance
