"""Copy the weights of two 3 × 3 convolutions into the layout and precision that the kernels of a solve read.

Input channels come last, so that neighbouring threads read neighbouring numbers. The reference is ``permute`` and
``to(dtype)`` on each weight; one kernel does both weights in one launch. One program instance copies the nine taps of
``CHANNELS`` input channels of one output channel. Not differentiable.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import cover, launch

__all__ = ["lay_out_weights"]

CHANNELS = 64  # input channels per program instance


@triton.jit
def _transpose(weight, out, program, inputs, output_stride, tap_stride, CHANNELS: tl.constexpr):
    """Copy nine taps of a block of input channels of one output channel."""
    blocks = tl.cdiv(inputs, CHANNELS)
    output, channel = program // blocks, program % blocks * CHANNELS + tl.arange(0, CHANNELS)
    tap = tl.arange(0, 16)[None, :]
    mask = (channel < inputs)[:, None] & (tap < 9)
    value = tl.load(weight + (output * inputs + channel[:, None]) * 9 + tap, mask=mask, other=0)
    target = out + output * output_stride + tap * tap_stride + channel[:, None]
    tl.store(target, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _lay_out_weights(
    first, second, first_out, second_out, programs, inputs, first_output, first_tap, wide, CHANNELS: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    if program < programs:
        _transpose(first, first_out, program, inputs, first_output, first_tap, CHANNELS)
    else:
        _transpose(second, second_out, program - programs, wide, 9 * wide, wide, CHANNELS)


def lay_out_weights(first: Tensor, second: Tensor, dtype: torch.dtype, *, taps_first: bool) -> tuple[Tensor, Tensor]:
    """Return weights ``(K, C, 3, 3)`` and ``(L, K, 3, 3)`` of two layers as ``(K, 9, C)`` and ``(L, 9, K)``.

    With ``taps_first`` the first weight comes as ``(9, K, C)``.
    """
    (wide, inputs), last = first.shape[:2], len(second)
    shape = (9, wide, inputs) if taps_first else (wide, 9, inputs)
    first_out = torch.empty(shape, dtype=dtype, device=first.device)
    second_out = torch.empty(last, 9, wide, dtype=dtype, device=second.device)
    programs = wide * cover(inputs, CHANNELS)
    launch(
        _lay_out_weights, (programs + last * cover(wide, CHANNELS), 1, 1), 2,
        first.contiguous(), second.contiguous(), first_out, second_out, programs, inputs,
        inputs if taps_first else 9 * inputs, wide * inputs if taps_first else inputs, wide, CHANNELS=CHANNELS,
    )  # fmt: skip
    return first_out, second_out
