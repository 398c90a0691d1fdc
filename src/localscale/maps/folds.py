"""Where a bilinear lattice map folds, and how to stop it.

Inside a cell of a bilinear map the Jacobian determinant is affine in the cell's coordinates (the xy terms cancel), so
its extremes sit on the four corners: a finite check decides whether the map is a bijection.
"""

import torch
from torch import Tensor

__all__ = ["corner_determinants", "guard_factor"]


def _corner_gradients(displacements: Tensor) -> tuple[Tensor, Tensor]:
    """∂(l − p)/∂x and ∂(l − p)/∂y on the four corners of each cell, both ``(B, 2, 4, Ny − 1, Nx − 1)``."""
    _, _, rows, columns = displacements.shape
    along_x = displacements.diff(dim=3) * (columns - 1)  # one per horizontal edge
    along_y = displacements.diff(dim=2) * (rows - 1)  # one per vertical edge
    top, bottom = along_x[:, :, :-1], along_x[:, :, 1:]
    left, right = along_y[..., :-1], along_y[..., 1:]
    return torch.stack((top, top, bottom, bottom), dim=2), torch.stack((left, right, left, right), dim=2)


def _trace_and_determinant(displacements: Tensor) -> tuple[Tensor, Tensor]:
    dx, dy = _corner_gradients(displacements)
    return dx[:, 0] + dy[:, 1], dx[:, 0] * dy[:, 1] - dy[:, 0] * dx[:, 1]


def corner_determinants(displacements: Tensor) -> Tensor:
    """det ∂l/∂p on the corners of each cell, ``(B, 2, Ny, Nx)`` displacements to ``(B, 4, Ny − 1, Nx − 1)``."""
    trace, determinant = _trace_and_determinant(displacements)
    return 1 + trace + determinant


def guard_factor(displacements: Tensor, epsilon: float) -> Tensor:
    """The factor t in (0, 1], one per map ``(B,)``, at which id + t·(l − id) has all determinants ≥ ``epsilon``.

    On a corner with gradient I + tK the determinant is 1 + t·tr K + t²·det K. Its first crossing of ε has the closed
    form 2c / (−tr K + √(tr² K − 4c·det K)) with c = 1 − ε. Where it never crosses, the root of the square is taken as
    zero: a little cautious, and continuous in the map.
    """
    trace, determinant = _trace_and_determinant(displacements)
    c = 1 - epsilon
    discriminant = (trace.square() - 4 * c * determinant).clamp_min(torch.finfo(displacements.dtype).eps)
    need = (discriminant.sqrt() - trace) / (2 * c)  # 1 / t of each corner, if positive
    return 1 / need.flatten(1).amax(dim=1).clamp_min(1)
