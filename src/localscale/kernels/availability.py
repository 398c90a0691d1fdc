"""Decide whether to use a Triton kernel or the plain PyTorch implementation."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings

import torch
from torch import Tensor
from torch.nn import Parameter

from localscale.errors import GradientError

__all__ = ["available", "can_launch_directly", "refuse_second_derivative", "triton_works"]

# Read once, so that torch.compile sees a constant. ROCm is left out: there a compiled program depends on more than
# the key by which ``launch`` looks it up.
ENABLED = (
    os.environ.get("LOCALSCALE_KERNELS", "1") != "0"
    and importlib.util.find_spec("triton") is not None
    and torch.version.hip is None
)


def available(*tensors: Tensor) -> bool:
    """Return whether kernels can work on ``tensors``: all on a CUDA device, and not inside ``torch.export``.

    The first call for a device tries whether Triton works there. Where real kernels cannot be launched now, because a
    graph is traced or recorded, it counts as working, as it must for ``torch.compile`` anyway.
    """
    # Up to PyTorch 2.11, is_exporting() is true while torch.compile traces, too.
    exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    if not ENABLED or exporting or not all(tensor.is_cuda for tensor in tensors):
        return False
    traced = torch.compiler.is_compiling() or not can_launch_directly(*tensors)
    if traced or torch.cuda.is_current_stream_capturing():
        return True
    return all(triton_works(tensor.get_device()) for tensor in tensors)


@functools.cache
def triton_works(device: int) -> bool:
    """Return whether Triton can compile and launch kernels for a CUDA device; warn once if it cannot.

    Triton fails without a C compiler or Python's headers, which many container images lack, with a cache folder that
    cannot be written, and on GPUs that it does not support.
    """
    try:
        from localscale.kernels.trial import launch_trial

        launch_trial(torch.device("cuda", device))
    except Exception as error:
        cause = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
        warnings.warn(
            f"Triton cannot run kernels on cuda:{device} ({cause}), so plain PyTorch takes their place, which is "
            "slower. Triton needs a C compiler and Python's headers (Debian: gcc and python3-dev), a cache folder that "
            "it can write (TRITON_CACHE_DIR) and a GPU of compute capability 7.0 or more; LOCALSCALE_KERNELS=0 turns "
            "kernels off",
            stacklevel=2,
        )
        return False
    return True


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
