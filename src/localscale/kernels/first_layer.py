"""S⁻¹(x; l) and the first convolution of a canonicalizer with its GELU, in one launch.

Its twin is ``fused_unscale`` followed by ``localscale.canonicalizer.network.convolutions``. Two ways, and what lies
between warp and convolution is never stored in either:

- An image has few channels: each pixel the convolution asks for is interpolated where it is needed.
- A feature has many: what the nine taps make of its channels depends on no neighbour, and so commutes with moving
  pixels about. ``project_taps`` does it once, before the first step of a solve; each step then reads the nine results
  where the map says, and adds them up.

Nothing here is differentiable.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.warp import as_tables, between, corners

__all__ = ["MOST_CHANNELS", "WIDEST", "first_layer", "project_taps"]

MOST_CHANNELS = 4  # of an image
WIDEST = 128  # channels that one program can hold for its pixels


@triton.jit
def _first_layer(
    x, out, along_x, along_y, weight, bias, height, width, out_height, out_width, channels,
    rows_x, columns_x, rows_y, columns_y, x_batch, x_channel, x_row, x_column,
    tx_batch, tx_row, tx_column, ty_batch, ty_row, ty_column,
    STRIDE: tl.constexpr, IMAGE: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """``IMAGE`` is how many channels to convolve, or 0 where ``x`` has the taps' results already."""
    batch = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    there = place < out_height * out_width
    channel = tl.arange(0, CHANNELS)
    wanted = channel < channels
    source = x + batch * x_batch
    total = tl.zeros((PIXELS, CHANNELS), tl.float32) + tl.load(bias + channel, mask=wanted, other=0.0)[None, :]
    for tap in tl.static_range(9):
        row = place // out_width * STRIDE + tap // 3 - 1
        column = place % out_width * STRIDE + tap % 3 - 1
        inside = there & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        left, right, top, bottom, s, t, _, _ = corners(
            along_x + batch * tx_batch, along_y + batch * ty_batch, tl.where(inside, row * width + column, 0),
            height, width, rows_x, columns_x, rows_y, columns_y, tx_row, tx_column, ty_row, ty_column,
        )  # fmt: skip
        at_a, at_b = top * x_row + left * x_column, top * x_row + right * x_column
        at_c, at_d = bottom * x_row + left * x_column, bottom * x_row + right * x_column
        if IMAGE == 0:
            mask = inside[:, None] & wanted[None, :]
            shift = (tap * channels + channel)[None, :] * x_channel
            total += between(
                source + shift, at_a[:, None], at_b[:, None], at_c[:, None], at_d[:, None], s[:, None], t[:, None], mask
            )
        else:
            for one in tl.static_range(IMAGE):
                value = between(source + one * x_channel, at_a, at_b, at_c, at_d, s, t, inside)
                factor = tl.load(weight + (channel * IMAGE + one) * 9 + tap, mask=wanted, other=0.0)
                total += value[:, None] * factor[None, :]
    answer = 0.5 * total * (1 + tl.erf(0.7071067811865476 * total))  # GELU
    target = out + (batch * out_height * out_width + place)[:, None] * channels + channel[None, :]
    tl.store(target, answer, mask=there[:, None] & wanted[None, :])


def first_layer(
    x: Tensor, along_x: Tensor, along_y: Tensor, weight: Tensor, bias: Tensor, *, stride: int, projected: bool = False
) -> Tensor:
    """GELU(conv(S⁻¹(x; l))) ``(B, K, h′, w′)``, channels last, of float32 ``x`` ``(B, C, h, w)``.

    Args:
        x: an image of at most ``MOST_CHANNELS`` channels, or what ``project_taps`` made of a feature.
        along_x: l's displacements along x on an even lattice, ``(B, rows, columns)``.
        along_y: the same along y.
        weight: of a 3 × 3 convolution, ``(K, C, 3, 3)``, with K at most ``WIDEST``.
        bias: ``(K,)``.
        stride: the convolution's, 1 or 2; its padding is 1.
        projected: whether ``x`` has been through ``project_taps``.
    """
    batch, channels, height, width = x.shape
    wide = len(bias)
    out_height, out_width = -(-height // stride), -(-width // stride)
    out = torch.empty(batch, out_height, out_width, wide, dtype=x.dtype, device=x.device)
    sizes, strides = as_tables(along_x, along_y)
    across = triton.next_power_of_2(max(wide, 16))
    pixels = max(1, 2048 // across // (2 if projected else 1))
    grid = (triton.cdiv(out_height * out_width, pixels), batch)
    _first_layer[grid](
        x, out, along_x, along_y, weight.contiguous(), bias, height, width, out_height, out_width, wide,
        *sizes, *x.stride(), *strides,
        STRIDE=stride, IMAGE=0 if projected else channels, PIXELS=pixels, CHANNELS=across, num_warps=4,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def project_taps(x: Tensor, weight: Tensor) -> Tensor:
    """What each of the nine taps makes of the channels of ``x``, ``(B, 9·K, h, w)``, channels last."""
    taps = weight.permute(2, 3, 0, 1).reshape(-1, weight.shape[1], 1, 1)
    return F.conv2d(x, taps).contiguous(memory_format=torch.channels_last)
