"""Find and prevent folds of grid maps.

Inside a cell of a bilinear map the Jacobian determinant is affine in the cell's coordinates (the xy terms cancel), so
its extremes are at the four corners. The map is a bijection if all corner determinants are positive.
"""

import torch
from torch import Tensor

__all__ = ["corner_determinants", "guard_factor"]


def _corner_gradients(displacements: Tensor) -> tuple[Tensor, Tensor]:
    """Return ∂(l − p)/∂x and ∂(l − p)/∂y at the four corners of each cell, both ``(B, 2, 4, Ny − 1, Nx − 1)``."""
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
    """Return det ∂l/∂p at the corners of each cell, from ``(B, 2, Ny, Nx)`` to ``(B, 4, Ny − 1, Nx − 1)``."""
    trace, determinant = _trace_and_determinant(displacements)
    return 1 + trace + determinant


def guard_factor(displacements: Tensor, epsilon: float) -> Tensor:
    """Return the factor t in (0, 1], one per map ``(B,)``, at which id + t·(l − id) has all determinants ≥ ``epsilon``.

    On a corner with gradient I + tK the determinant is 1 + t·tr K + t²·det K. Its first crossing of ε has the closed
    form 2c / (−tr K + √(tr² K − 4c·det K)) with c = 1 − ε. Where it never crosses ε, the discriminant is clamped to
    zero: the factor is then smaller than necessary, but continuous in the map.
    """
    trace, determinant = _trace_and_determinant(displacements)
    c = 1 - epsilon
    discriminant = (trace.square() - 4 * c * determinant).clamp_min(torch.finfo(displacements.dtype).eps)
    need = (discriminant.sqrt() - trace) / (2 * c)  # 1 / t of each corner, if positive
    return 1 / need.flatten(1).amax(dim=1).clamp_min(1)
