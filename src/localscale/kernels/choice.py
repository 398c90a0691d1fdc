"""When a kernel of our own is used."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

__all__ = ["usable"]


@functools.cache
def _installed() -> bool:
    return os.environ.get("LOCALSCALE_KERNELS", "1") != "0" and importlib.util.find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can work on these: on a GPU, with Triton, and not in a program that is exported elsewhere."""
    on_gpu = all(tensor.is_cuda for tensor in tensors)
    return on_gpu and _installed() and not torch.compiler.is_exporting()
