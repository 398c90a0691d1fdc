"""A kernel that only shows whether Triton can compile and launch kernels here."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import launch

__all__ = ["launch_trial"]


@triton.jit
def _write_one(out):
    tl.store(out, 1)


def launch_trial(device: torch.device) -> Tensor:
    """Launch the kernel on ``device``; return the tensor in which it writes a one. The host does not wait for it."""
    out = torch.zeros(1, dtype=torch.int32, device=device)
    launch(_write_one, (1, 1, 1), 1, out)
    return out
