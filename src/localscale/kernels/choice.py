"""When a kernel of our own is used."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

__all__ = ["usable"]

# Read once, so that ``torch.compile`` sees a constant.
WANTED = (
    os.environ.get("LOCALSCALE_KERNELS", "1") != "0"
    and importlib.util.find_spec("triton") is not None
    and torch.version.hip is None  # where programs depend on more than a launch is looked up by
)


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can work on these: on a GPU, with Triton, and not in a program that is exported elsewhere."""
    # Up to PyTorch 2.11 a program that is only compiled is said to be exported too.
    exported = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    return WANTED and all(tensor.is_cuda for tensor in tensors) and not exported
