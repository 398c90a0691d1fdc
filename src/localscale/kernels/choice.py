"""When a kernel of our own is used."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor
from torch.nn import Parameter

from localscale.errors import GradientError

__all__ = ["launched", "only_once", "usable"]

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


def launched(*tensors: Tensor) -> bool:
    """Whether kernels are launched at once, and not by an operator, which takes longer but can be traced."""
    plain = all(type(tensor) in (Tensor, Parameter) for tensor in tensors)  # none stands for another
    return plain and not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def only_once() -> None:
    """Refuse, in a backward pass, to be differentiated again."""
    if torch.is_grad_enabled():
        raise GradientError(
            "kernels give first derivatives only; set LOCALSCALE_KERNELS=0 in the environment where a gradient is "
            "differentiated again (create_graph=True)"
        )
