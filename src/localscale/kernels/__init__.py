"""Triton kernels for the warp and the equilibrium solve on a GPU.

Each kernel replaces a sequence of PyTorch operations by one or two launches, and each is tested against the plain
PyTorch implementation that its module names. ``availability`` is the one place that decides between the two: Triton
must be installed (PyTorch brings it on Linux with CUDA) and work, and all tensors must be on a CUDA device. Setting
``LOCALSCALE_KERNELS=0`` in the environment turns the kernels off.
"""

from localscale.kernels.availability import available, can_launch_directly

__all__ = ["available", "can_launch_directly"]
