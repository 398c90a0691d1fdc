"""Kernels of our own, for what PyTorch does in many passes; each has a plain twin elsewhere that it is tested against.

They need Triton, which PyTorch brings on Linux with CUDA; where it is absent the twins are used. The environment
variable ``LOCALSCALE_KERNELS=0`` turns them off.
"""

from localscale.kernels.choice import launched, usable

__all__ = ["launched", "usable"]
