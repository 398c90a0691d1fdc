"""Solve for the balance of a lattice of springs by block elimination: the device function of ``map_from_scales``.

The reference is ``localscale.maps.similarity._LatticeSolve``. One program instance solves one system. Its matrix is
block tridiagonal in the columns of the lattice, and one tile holds the block of one column. Not differentiable.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import launch, power_above

__all__ = ["WARPS", "balance", "solve_lattices"]

WARPS = 4  # that share the tile of a system


@triton.jit
def _invert(matrix, rows, KNOTS: tl.constexpr):
    """Invert a symmetric positive definite matrix by sweeping its pivots; beyond ``rows`` it is a unit matrix."""
    k = tl.arange(0, KNOTS)
    i, j = k[:, None], k[None, :]
    unit = tl.where(i == j, 1.0, 0.0)
    diagonal = matrix * unit
    scale = tl.rsqrt(tl.sum(diagonal, axis=1))[:, None] * tl.rsqrt(tl.sum(diagonal, axis=0))[None, :]
    swept = matrix * scale
    for pivot in range(rows):
        column = tl.sum(tl.where(j == pivot, swept, 0.0), axis=1) - tl.where(k == pivot, 1.0, 0.0)
        row = tl.sum(tl.where(i == pivot, swept, 0.0), axis=0) - tl.where(k == pivot, 1.0, 0.0)
        divisor = 1 + tl.sum(tl.where(k == pivot, row, 0.0), axis=0)
        swept -= column[:, None] * (row / divisor)[None, :]
    return (2 * unit - swept) * scale


@triton.jit
def _substitute(inverses, horizontal, right, out, rows, inner, KNOTS: tl.constexpr):
    """Solve for ``out`` ``(rows, inner)``, given the inverses of the eliminated blocks."""
    k = tl.arange(0, KNOTS)
    i, j, used = k[:, None], k[None, :], k < rows
    pulled = tl.zeros((KNOTS,), tl.float32)
    for c in range(inner):
        link = tl.load(horizontal + k * (inner + 1) + c, mask=used, other=0.0)
        value = tl.load(right + k * inner + c, mask=used, other=0.0) + link * pulled
        tl.store(out + k * inner + c, value, mask=used)
        inverse = tl.load(inverses + (c * KNOTS + i) * KNOTS + j)
        pulled = tl.sum(inverse * value[:, None], axis=0)  # a symmetric matrix
    tl.debug_barrier()
    value = pulled
    tl.store(out + k * inner + inner - 1, value, mask=used)
    for step in range(1, inner):
        c = inner - 1 - step
        link = tl.load(horizontal + k * (inner + 1) + c + 1, mask=used, other=0.0)
        wanted = tl.load(out + k * inner + c, mask=used, other=0.0) + link * value
        inverse = tl.load(inverses + (c * KNOTS + i) * KNOTS + j)
        value = tl.sum(inverse * wanted[:, None], axis=0)
        tl.store(out + k * inner + c, value, mask=used)


@triton.jit
def balance(horizontal, vertical, force, found, inverses, rest, rows, inner, KNOTS: tl.constexpr):
    """Write the displacements ``found`` ``(rows, inner)`` of a lattice of springs in balance.

    ``horizontal`` ``(rows, inner + 1)`` and ``vertical`` ``(rows − 1, inner)`` are stiffnesses, ``force``
    ``(rows, inner)`` pulls at the nodes. ``inverses`` ``(inner, KNOTS, KNOTS)`` and ``rest`` ``(2, rows, inner)`` are
    work space.
    """
    k = tl.arange(0, KNOTS)
    i, j = k[:, None], k[None, :]
    previous = tl.zeros((KNOTS, KNOTS), tl.float32)
    for c in range(inner):
        left_i = tl.load(horizontal + i * (inner + 1) + c, mask=i < rows, other=0.0)
        left_j = tl.load(horizontal + j * (inner + 1) + c, mask=j < rows, other=0.0)
        right = tl.load(horizontal + i * (inner + 1) + c + 1, mask=i < rows, other=0.0)
        below = tl.load(vertical + i * inner + c, mask=i < rows - 1, other=0.0)
        above = tl.load(vertical + (i - 1) * inner + c, mask=(i > 0) & (i < rows), other=0.0)
        diagonal = tl.where(i < rows, left_i + right + below + above, 1.0)
        block = tl.where(i == j, diagonal, 0.0) - tl.where(j == i + 1, below, 0.0) - tl.where(j == i - 1, above, 0.0)
        previous = _invert(block - left_i * previous * left_j, rows, KNOTS)
        tl.store(inverses + (c * KNOTS + i) * KNOTS + j, previous)
    tl.debug_barrier()
    _substitute(inverses, horizontal, force, found, rows, inner, KNOTS)
    tl.debug_barrier()
    # One step of iterative refinement, for the accuracy of float32.
    mask = (i < rows) & (j < inner)
    u = tl.load(found + i * inner + j, mask=mask, other=0.0)
    left = tl.load(found + i * inner + j - 1, mask=mask & (j > 0), other=0.0)
    right_u = tl.load(found + i * inner + j + 1, mask=mask & (j < inner - 1), other=0.0)
    above_u = tl.load(found + (i - 1) * inner + j, mask=mask & (i > 0), other=0.0)
    below_u = tl.load(found + (i + 1) * inner + j, mask=mask & (i < rows - 1), other=0.0)
    pull = tl.load(horizontal + i * (inner + 1) + j, mask=mask, other=0.0) * (left - u)
    pull += tl.load(horizontal + i * (inner + 1) + j + 1, mask=mask, other=0.0) * (right_u - u)
    pull += tl.load(vertical + (i - 1) * inner + j, mask=mask & (i > 0), other=0.0) * (above_u - u)
    pull += tl.load(vertical + i * inner + j, mask=mask & (i < rows - 1), other=0.0) * (below_u - u)
    missing = tl.load(force + i * inner + j, mask=mask, other=0.0) + pull
    tl.store(rest + i * inner + j, missing, mask=mask)
    tl.debug_barrier()
    extra = rest + rows * inner
    _substitute(inverses, horizontal, rest, extra, rows, inner, KNOTS)
    tl.debug_barrier()
    tl.store(found + i * inner + j, u + tl.load(extra + i * inner + j, mask=mask, other=0.0), mask=mask)


@triton.jit
def _solve(horizontal, vertical, force, found, inverses, rest, rows, inner, KNOTS: tl.constexpr):
    system = tl.program_id(0).to(tl.int64)
    balance(
        horizontal + system * rows * (inner + 1), vertical + system * (rows - 1) * inner,
        force + system * rows * inner, found + system * rows * inner, inverses + system * inner * KNOTS * KNOTS,
        rest + system * 2 * rows * inner, rows, inner, KNOTS,
    )  # fmt: skip


def solve_lattices(horizontal: Tensor, vertical: Tensor, force: Tensor) -> Tensor:
    """Return the displacements ``(B, r, n)`` for stiffnesses ``(B, r, n + 1)`` and ``(B, r − 1, n)`` and ``force``."""
    batch, rows, inner = force.shape
    knots = power_above(max(rows, inner + 2))
    found, rest = force.new_empty(batch, rows, inner), force.new_empty(batch, 2, rows, inner)
    launch(
        _solve, (batch, 1, 1), WARPS, horizontal.contiguous(), vertical.contiguous(), force.contiguous(),
        found, force.new_empty(batch, inner, knots, knots), rest, rows, inner, KNOTS=knots,
    )  # fmt: skip
    return found
