"""Decide whether to use a Triton kernel or the plain PyTorch implementation."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor
from torch.nn import Parameter

from localscale.errors import GradientError

__all__ = ["available", "can_launch_directly", "refuse_second_derivative"]

# Read once, so that torch.compile sees a constant. ROCm is left out: there a compiled program depends on more than
# the key by which ``launch`` looks it up.
ENABLED = (
    os.environ.get("LOCALSCALE_KERNELS", "1") != "0"
    and importlib.util.find_spec("triton") is not None
    and torch.version.hip is None
)


def available(*tensors: Tensor) -> bool:
    """Return whether kernels can work on ``tensors``: all on a CUDA device, and not inside ``torch.export``."""
    # Up to PyTorch 2.11, is_exporting() is true while torch.compile traces, too.
    exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    return ENABLED and all(tensor.is_cuda for tensor in tensors) and not exporting


def can_launch_directly(*tensors: Tensor) -> bool:
    """Return whether kernels can be launched without a custom operator.

    A custom operator can be traced by ``torch.compile`` and functorch, but calling one costs more host time. Tensor
    subclasses need the operator as well.
    """
    plain = all(type(tensor) in (Tensor, Parameter) for tensor in tensors)
    return plain and not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def refuse_second_derivative() -> None:
    """Raise ``GradientError`` if the running backward pass is itself being differentiated."""
    if torch.is_grad_enabled():
        raise GradientError(
            "kernels give first derivatives only; set LOCALSCALE_KERNELS=0 in the environment where a gradient is "
            "differentiated again (create_graph=True)"
        )
