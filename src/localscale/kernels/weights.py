"""Convolutions' weights as the kernels of a solve read them, input channels last and in their precision: one launch.

Its twin is ``permute`` and a copy, once for each. Nothing here is differentiable.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import cover, launch

__all__ = ["lay_out"]

CHANNELS = 64  # of one output's input channels, in one program


@triton.jit
def _turn(weight, out, program, inputs, output_stride, tap_stride, CHANNELS: tl.constexpr):
    """Nine taps of some of the input channels of one output channel."""
    blocks = tl.cdiv(inputs, CHANNELS)
    output, channel = program // blocks, program % blocks * CHANNELS + tl.arange(0, CHANNELS)
    tap = tl.arange(0, 16)[None, :]
    mask = (channel < inputs)[:, None] & (tap < 9)
    value = tl.load(weight + (output * inputs + channel[:, None]) * 9 + tap, mask=mask, other=0)
    target = out + output * output_stride + tap * tap_stride + channel[:, None]
    tl.store(target, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _lay_out(
    first, second, first_out, second_out, programs, inputs, first_output, first_tap, wide, CHANNELS: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    if program < programs:
        _turn(first, first_out, program, inputs, first_output, first_tap, CHANNELS)
    else:
        _turn(second, second_out, program - programs, wide, 9 * wide, wide, CHANNELS)


def lay_out(first: Tensor, second: Tensor, dtype: torch.dtype, *, taps_first: bool) -> tuple[Tensor, Tensor]:
    """Weights ``(K, C, 3, 3)`` and ``(L, K, 3, 3)`` of two layers as ``(K, 9, C)`` and ``(L, 9, K)``.

    With ``taps_first`` the first are ``(9, K, C)``.
    """
    (wide, inputs), last = first.shape[:2], len(second)
    shape = (9, wide, inputs) if taps_first else (wide, 9, inputs)
    first_out = torch.empty(shape, dtype=dtype, device=first.device)
    second_out = torch.empty(last, 9, wide, dtype=dtype, device=second.device)
    programs = wide * cover(inputs, CHANNELS)
    launch(
        _lay_out, (programs + last * cover(wide, CHANNELS), 1, 1), 2,
        first.contiguous(), second.contiguous(), first_out, second_out, programs, inputs,
        inputs if taps_first else 9 * inputs, wide * inputs if taps_first else inputs, wide, CHANNELS=CHANNELS,
    )  # fmt: skip
    return first_out, second_out
