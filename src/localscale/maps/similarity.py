"""Build the grid map whose local scale is nearest to a given field, by least squares.

With the sides of the square held in place, the x-coordinate δₓ of the map minimises

    Σ (w + κ) [(∂ₓδₓ − T)² + β (∂ᵧδₓ)²]

over the edges of the lattice, and δᵧ minimises the same with the axes exchanged. T is the wanted scale and w its
weight; T is 1 where w is 0. κ is the stiffness of the background. The term with β prevents shear.

Each axis is one symmetric positive definite system of Ny·(Nx − 2) unknowns per map, block tridiagonal in the columns of
the lattice. It is eliminated block by block, without a library call and without host synchronisation, so it can be
compiled, exported and recorded as a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale import kernels
from localscale.conventions import coordinates, full_precision
from localscale.errors import MapError
from localscale.maps.base import knot_pair
from localscale.maps.grid import GridMap

__all__ = ["map_from_scales"]

MOST_KNOTS = 32  # of the kernel, along an axis
MOST = 1e6  # larger scales and weights count as this, so that products of two stay finite in float32
SOFTEST, STIFFEST = 1e-9, 1e4  # background and shear for which the systems can be solved
UNSEEN = 1e-4  # where the weight is far below this, the wanted scale counts as 1


def map_from_scales(
    scale: Tensor,
    weight: Tensor,
    *,
    knots: int | tuple[int, int] = 14,
    background: float = 0.02,
    shear: float = 1.0,
    guard: float | None = 0.1,
) -> GridMap:
    """Return the grid maps whose local scale is nearest to ``scale`` where ``weight`` is large.

    The sides of the square stay in place, so a map that enlarges one part of an image shrinks the parts around it.
    Zero weights give the identity, and so does a constant scale with a constant weight. Where ``scale`` is not a
    positive finite number, or ``weight`` is negative or not finite, the weight counts as 0; values above 10⁶ count as
    10⁶. The result is differentiable in both arguments.

    The fields are read at the edges of the lattice, by linear interpolation. Average fields that are much finer than
    the lattice first, because things between its edges have no effect; ``docs/maps.md`` shows how.

    Convention: the fields cover the image as pixels do, corners on corners; see ``localscale.conventions``.

    Args:
        scale: the wanted local scale √det ∂l/∂p, ``(B, h, w)``, float32 or float64.
        weight: how much each value matters, ``(B, h, w)``, usually between 0 and 1.
        knots: control points along an axis, or a pair (along x, along y).
        background: κ, the stiffness where the weight is 0; larger values give gentler maps.
        shear: β, the weight of keeping lines straight.
        guard: smallest Jacobian determinant to allow; ``None`` lets the maps fold.

    >>> weight = torch.zeros(1, 14, 14)
    >>> weight[:, 5:9, 5:9] = 1
    >>> m = map_from_scales(torch.full_like(weight, 0.5), weight)
    >>> bool((m.local_scale(torch.tensor([[[0.5, 0.5]]])) - 0.5).abs() < 0.05)
    True
    """
    columns, rows = knot_pair(knots)
    _check(scale, weight, background, shear)
    seen = torch.isfinite(scale) & (scale > 0) & torch.isfinite(weight) & (weight > 0)
    scale, weight = torch.where(seen, scale, 1).clamp_max(MOST), torch.where(seen, weight, 0).clamp_max(MOST)
    turned = scale.transpose(1, 2), weight.transpose(1, 2)
    with full_precision(scale.device.type):
        if rows == columns and scale.shape[1] == scale.shape[2]:  # both axes at once: half as many kernel launches
            scales, weights = (torch.cat(pair) for pair in zip((scale, weight), turned, strict=True))
            both = _solve_axis(scales, weights, rows, columns, background, shear)
            along_x, along_y = both[: scale.shape[0]], both[scale.shape[0] :]  # chunk fixes the batch of an export
        else:
            along_x = _solve_axis(scale, weight, rows, columns, background, shear)
            along_y = _solve_axis(*turned, columns, rows, background, shear)
    return GridMap(torch.stack((along_x, along_y.transpose(1, 2)), dim=1)).guarded(guard)


def _check(scale: Tensor, weight: Tensor, background: float, shear: float) -> None:
    if scale.dim() != 3 or scale.shape != weight.shape or 0 in scale.shape:
        raise MapError(
            f"scale has shape {tuple(scale.shape)} and weight {tuple(weight.shape)}; "
            "expected (batch, height, width), each at least 1, for both"
        )
    if scale.dtype not in (torch.float32, torch.float64) or weight.dtype != scale.dtype:
        raise MapError(f"scale is {scale.dtype} and weight {weight.dtype}; expected float32 or float64 for both")
    if scale.device != weight.device:
        raise MapError(f"scale is on {scale.device} and weight on {weight.device}; move one with .to(device)")
    for name, value in (("background", background), ("shear", shear)):
        if not SOFTEST <= value <= STIFFEST:
            raise MapError(f"{name} is {value}; expected a positive number from {SOFTEST:g} to {STIFFEST:g}")


def _solve_axis(scale: Tensor, weight: Tensor, rows: int, columns: int, background: float, shear: float) -> Tensor:
    """Return the displacements of the control points along the last axis, ``(B, rows, columns)``."""
    along, across = columns - 1, rows - 1
    if along == 1:  # the two knots of each line are its ends, which stay in place
        return scale.new_zeros(scale.shape[0], rows, columns)
    options: dict[str, Any] = {"dtype": scale.dtype, "device": scale.device}
    knots_x, knots_y = coordinates(columns, **options), coordinates(rows, **options)
    middle_x, middle_y = (knots_x[1:] + knots_x[:-1]) / 2, (knots_y[1:] + knots_y[:-1]) / 2
    # Horizontal edges pull towards the wanted scale, which is averaged by weight; vertical edges resist shear.
    strength = _read(weight, knots_y, middle_x)
    excess = _read(weight * (scale - 1), knots_y, middle_x)
    stiffness = strength + background
    force = along * stiffness * excess / (strength + UNSEEN)
    vertical = shear * across**2 * (_read(weight, middle_y, knots_x[1:-1]) + background)
    inner, _ = _LatticeSolve.apply(along**2 * stiffness, vertical, force[..., :-1] - force[..., 1:])
    return F.pad(inner, (1, 1))


def _read(field: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Interpolate a field ``(B, h, w)`` at every pair of ``y`` and ``x`` in [0,1], to ``(B, len(y), len(x))``."""
    return _interpolation(y, field.shape[1]) @ field @ _interpolation(x, field.shape[2]).T


def _interpolation(places: Tensor, size: int) -> Tensor:
    """Return a matrix whose row k interpolates linearly at ``places[k]`` between ``size`` samples."""
    samples = torch.arange(size, dtype=places.dtype, device=places.device)
    return (1 - (places[:, None] * (size - 1) - samples).abs()).clamp_min(0)


class _LatticeSolve(torch.autograd.Function):
    """Find the displacements u ``(B, r, n)`` of a lattice of springs in balance, held at its left and right sides.

    ``horizontal`` ``(B, r, n + 1)`` and ``vertical`` ``(B, r − 1, n)`` are the springs' stiffnesses and ``force``
    ``(B, r, n)`` pulls at the nodes: u solves A u = force, where A sums stiffness · e eᵀ over the edges e.
    """

    @staticmethod
    def forward(horizontal: Tensor, vertical: Tensor, force: Tensor) -> tuple[Tensor, Tensor]:
        if _has_kernel(force):
            return _solve_with_kernel(horizontal, vertical, force), force.new_empty(0)
        inverses = _block_inverses(horizontal, vertical)
        return _solve(inverses, horizontal, vertical, force), inverses

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save the inverses of the elimination for the backward pass; the kernel eliminates again instead."""
        horizontal, vertical, _ = inputs
        found, inverses = output
        ctx.mark_non_differentiable(inverses)
        ctx.save_for_backward(horizontal, vertical, found, inverses)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Solve A v = gradient for the adjoint v, since A is symmetric; then ∂/∂stiffness = −(eᵀu)(eᵀv)."""
        horizontal, vertical, found, inverses = ctx.saved_tensors
        if inverses.dim() > 1:
            adjoint = _solve(inverses, horizontal, vertical, gradient)
        elif torch.is_grad_enabled():  # this gradient is differentiated again, and the kernel has no derivative
            adjoint = _solve(_block_inverses(horizontal, vertical), horizontal, vertical, gradient)
        else:
            adjoint = _solve_with_kernel(horizontal, vertical, gradient)
        return -_differences(found) * _differences(adjoint), -found.diff(dim=1) * adjoint.diff(dim=1), adjoint


def _has_kernel(force: Tensor) -> bool:
    """Return whether a kernel can find the balance of ``force`` ``(B, r, n)``."""
    small = max(force.shape[1], force.shape[2] + 2) <= MOST_KNOTS and force.shape[0] > 0
    return small and force.dtype == torch.float32 and kernels.available(force) and kernels.can_launch_directly(force)


def _solve_with_kernel(horizontal: Tensor, vertical: Tensor, force: Tensor) -> Tensor:
    from localscale.kernels.lattice import solve_lattices

    return solve_lattices(horizontal, vertical, force)


def _differences(u: Tensor) -> Tensor:
    """Return differences along the last axis, from ``(B, r, n)`` to ``(B, r, n + 1)``; the ends of a line are 0."""
    return F.pad(u, (1, 1)).diff(dim=2)


def _apply(horizontal: Tensor, vertical: Tensor, u: Tensor) -> Tensor:
    """Return A u."""
    along, across = horizontal * _differences(u), F.pad(vertical * u.diff(dim=1), (0, 0, 1, 1))
    return -along.diff(dim=2) - across.diff(dim=1)


def _block_inverses(horizontal: Tensor, vertical: Tensor) -> Tensor:
    """Return the inverse of each column's diagonal block after the columns outside it are eliminated, ``(B, n, r, r)``.

    Columns are eliminated from both sides towards the middle, the left and the right one of a pair at once. That takes
    half as many operations as going from left to right.
    """
    around = F.pad(vertical, (0, 0, 1, 1))
    diagonal = horizontal[..., :-1] + horizontal[..., 1:] + around[:, :-1] + around[:, 1:]
    springs = vertical.mT
    blocks = torch.diag_embed(diagonal.mT) - torch.diag_embed(springs, 1) - torch.diag_embed(springs, -1)
    links = horizontal.mT[..., :, None] * horizontal.mT[..., None, :]
    half = (blocks.shape[1] - 1) // 2
    pairs, pulls = _pairs(blocks, half), _pairs(links, half + 1)
    outer: list[Tensor] = []
    for block, pull in zip(pairs, pulls[:-1], strict=True):
        outer.append(_invert(block - pull * outer[-1] if outer else block))
    from_left, from_right = (pulls[-1] * outer[-1]).unbind(dim=1) if outer else (0, 0)
    if blocks.shape[1] % 2:
        middle = [_invert(blocks[:, half] - from_left - from_right)]
    else:
        middle = [_invert(blocks[:, half] - from_left)]
        middle.append(_invert(blocks[:, half + 1] - links[:, half + 1] * middle[0] - from_right))
    return _unfold(outer, middle)


def _pairs(columns: Tensor, count: int) -> list[Tensor]:
    """Return the first ``count`` columns of ``(B, n, …)`` beside the last ones, each ``(B, 2, …)``, outermost first."""
    both = torch.stack((columns[:, :count], columns.flip(1)[:, :count]), dim=2)
    return list(both.unbind(dim=1))


def _unfold(outer: list[Tensor], middle: list[Tensor]) -> Tensor:
    """Return all columns in order, ``(B, n, …)``: the left ones of the pairs, the middle, the right ones."""
    return torch.stack((*(pair[:, 0] for pair in outer), *middle, *(pair[:, 1] for pair in outer[::-1])), dim=1)


def _invert(matrix: Tensor) -> Tensor:
    """Invert symmetric positive definite matrices ``(…, r, r)`` by sweeping their pivots, scaled to a unit diagonal."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt()
    scale = scale[..., :, None] * scale[..., None, :]
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    swept = matrix * scale - unit
    for pivot in range(matrix.shape[-1]):
        line = swept[..., pivot : pivot + 1]
        swept = swept - line * (line / (1 + line[..., pivot : pivot + 1, :])).mT
    return (unit - swept) * scale


def _solve(inverses: Tensor, horizontal: Tensor, vertical: Tensor, force: Tensor) -> Tensor:
    """Return A⁻¹ force, with one step of iterative refinement for the accuracy of float32."""
    found = _substitute(inverses, horizontal, force)
    return found + _substitute(inverses, horizontal, force - _apply(horizontal, vertical, found))


def _substitute(inverses: Tensor, horizontal: Tensor, force: Tensor) -> Tensor:
    """Solve by substitution, column by column: from both sides to the middle, and back."""
    columns, links = force.mT.unsqueeze(-1), horizontal.mT.unsqueeze(-1)
    half = (columns.shape[1] - 1) // 2
    pairs, pulls, pushes = _pairs(inverses, half), _pairs(links, half + 1), _pairs(columns, half)
    outer: list[Tensor] = []
    for inverse, pull, push in zip(pairs, pulls[:-1], pushes, strict=True):
        outer.append(inverse @ (push + pull * outer[-1] if outer else push))
    from_left, from_right = (pulls[-1] * outer[-1]).unbind(dim=1) if outer else (0, 0)
    if columns.shape[1] % 2:
        middle = [inverses[:, half] @ (columns[:, half] + from_left + from_right)]
    else:
        link = links[:, half + 1]
        first = inverses[:, half] @ (columns[:, half] + from_left)
        second = inverses[:, half + 1] @ (columns[:, half + 1] + link * first + from_right)
        middle = [first + inverses[:, half] @ (link * second), second]
    inner = torch.stack((middle[0], middle[-1]), dim=1)
    for index in range(half - 1, -1, -1):
        inner = outer[index] + pairs[index] @ (pulls[index + 1] * inner)
        outer[index] = inner
    return _unfold(outer, middle).squeeze(-1).mT
