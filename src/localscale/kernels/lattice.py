"""Solve for the balance of a lattice of springs by block elimination: the device function of ``map_from_scales``.

The reference is ``localscale.maps.similarity._LatticeSolve``. One program instance solves one system. Its matrix is
block tridiagonal in the columns of the lattice. The columns are eliminated from both sides towards the middle one, two
at a time, so that the chain of dependent steps is half as long. One tile holds the blocks of both columns. Not
differentiable.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import launch, power_above

__all__ = ["WARPS", "balance", "solve_lattices"]

WARPS = 4  # that share the tile of a system


@triton.jit
def _invert(matrices, rows, KNOTS: tl.constexpr):
    """Invert two symmetric positive definite matrices by sweeping pivots; beyond ``rows`` they are unit matrices."""
    k = tl.arange(0, KNOTS)
    i, j, index = k[None, :, None], k[None, None, :], k[None, :]
    unit = tl.where(i == j, 1.0, 0.0)
    diagonal = matrices * unit
    scale = tl.rsqrt(tl.sum(diagonal, axis=2))[:, :, None] * tl.rsqrt(tl.sum(diagonal, axis=1))[:, None, :]
    swept = matrices * scale
    for pivot in range(rows):
        column = tl.sum(tl.where(j == pivot, swept, 0.0), axis=2) - tl.where(index == pivot, 1.0, 0.0)
        row = tl.sum(tl.where(i == pivot, swept, 0.0), axis=1) - tl.where(index == pivot, 1.0, 0.0)
        divisor = 1 + tl.sum(tl.where(index == pivot, row, 0.0), axis=1)
        swept -= column[:, :, None] * (row / divisor[:, None])[:, None, :]
    return (2 * unit - swept) * scale


@triton.jit
def _middle(inner):
    """Return the middle column: the columns before it are eliminated from the left, those after it from the right."""
    return inner // 2


@triton.jit
def _columns(step, inner):
    """Return the columns eliminated in ``step`` from the left and from the right ``(2,)``, and which of them exist."""
    side = tl.arange(0, 2)
    column = tl.where(side == 0, step, inner - 1 - step)
    exists = (side == 0) | (column > _middle(inner))
    return tl.where(exists, column, _middle(inner)), exists


@triton.jit
def _block(horizontal, vertical, column, rows, inner, KNOTS: tl.constexpr):
    """Return the diagonal blocks ``(2, KNOTS, KNOTS)`` of two columns of the lattice."""
    k = tl.arange(0, KNOTS)
    i, j, c = k[None, :, None], k[None, None, :], column[:, None, None]
    left = tl.load(horizontal + i * (inner + 1) + c, mask=i < rows, other=0.0)
    right = tl.load(horizontal + i * (inner + 1) + c + 1, mask=i < rows, other=0.0)
    below = tl.load(vertical + i * inner + c, mask=i < rows - 1, other=0.0)
    above = tl.load(vertical + (i - 1) * inner + c, mask=(i > 0) & (i < rows), other=0.0)
    diagonal = tl.where(i < rows, left + right + below + above, 1.0)
    return tl.where(i == j, diagonal, 0.0) - tl.where(j == i + 1, below, 0.0) - tl.where(j == i - 1, above, 0.0)


@triton.jit
def _outer_links(horizontal, column, rows, inner, KNOTS: tl.constexpr):
    """Return the springs ``(2, KNOTS)`` between two columns and those eliminated just before them."""
    k = tl.arange(0, KNOTS)[None, :]
    at = column[:, None] + tl.arange(0, 2)[:, None]
    return tl.load(horizontal + k * (inner + 1) + at, mask=k < rows, other=0.0)


@triton.jit
def _substitute(inverses, horizontal, right, out, rows, inner, KNOTS: tl.constexpr):
    """Solve for ``out`` ``(rows, inner)``, given the inverses of the eliminated blocks."""
    k = tl.arange(0, KNOTS)
    i, j, used, middle = k[None, :, None], k[None, None, :], (k < rows)[None, :], _middle(inner)
    pulled = tl.zeros((2, KNOTS), tl.float32)
    for step in range(middle):
        column, exists = _columns(step, inner)
        mask, c = used & exists[:, None], column[:, None]
        link = _outer_links(horizontal, column, rows, inner, KNOTS)
        value = tl.load(right + k[None, :] * inner + c, mask=mask, other=0.0) + link * pulled
        tl.store(out + k[None, :] * inner + c, value, mask=mask)
        inverse = tl.load(inverses + (column[:, None, None] * KNOTS + i) * KNOTS + j)
        found = tl.sum(inverse * value[:, :, None], axis=1)  # symmetric matrices
        pulled = tl.where(exists[:, None], found, pulled)
    both = tl.zeros((2,), tl.int32) + middle
    link = _outer_links(horizontal, both, rows, inner, KNOTS)
    last = tl.load(right + k * inner + middle, mask=k < rows, other=0.0) + tl.sum(link * pulled, axis=0)
    kept = tl.load(inverses + (middle * KNOTS + k[:, None]) * KNOTS + k[None, :])
    centre = tl.sum(kept * last[:, None], axis=0)
    tl.store(out + k * inner + middle, centre, mask=k < rows)
    tl.debug_barrier()
    solved = tl.zeros((2, KNOTS), tl.float32) + centre[None, :]
    for back in range(middle):
        column, exists = _columns(middle - 1 - back, inner)
        mask, c = used & exists[:, None], column[:, None]
        towards = c + 1 - tl.arange(0, 2)[:, None]  # the springs to the column eliminated next
        link = tl.load(horizontal + k[None, :] * (inner + 1) + towards, mask=mask, other=0.0)
        wanted = tl.load(out + k[None, :] * inner + c, mask=mask, other=0.0) + link * solved
        inverse = tl.load(inverses + (column[:, None, None] * KNOTS + i) * KNOTS + j)
        solved = tl.where(exists[:, None], tl.sum(inverse * wanted[:, :, None], axis=1), solved)
        tl.store(out + k[None, :] * inner + c, solved, mask=mask)


@triton.jit
def balance(
    horizontal, vertical, force, found, inverses, rest, rows, inner, KNOTS: tl.constexpr, REFINE: tl.constexpr
):  # fmt: skip
    """Write the displacements ``found`` ``(rows, inner)`` of a lattice of springs in balance.

    ``horizontal`` ``(rows, inner + 1)`` and ``vertical`` ``(rows − 1, inner)`` are stiffnesses, ``force``
    ``(rows, inner)`` pulls at the nodes. ``inverses`` ``(inner, KNOTS, KNOTS)`` and ``rest`` ``(2, rows, inner)`` are
    work space. REFINE adds a step of iterative refinement, which brings the error of float32 below 1e-6.
    """
    k = tl.arange(0, KNOTS)
    row, line, middle = k[None, :, None], k[None, None, :], _middle(inner)
    previous = tl.zeros((2, KNOTS, KNOTS), tl.float32)
    for step in range(middle):
        column, exists = _columns(step, inner)
        link = _outer_links(horizontal, column, rows, inner, KNOTS)
        block = _block(horizontal, vertical, column, rows, inner, KNOTS)
        inverse = _invert(block - link[:, :, None] * previous * link[:, None, :], rows, KNOTS)
        at = inverses + (column[:, None, None] * KNOTS + row) * KNOTS + line
        tl.store(at, inverse, mask=exists[:, None, None])
        previous = tl.where(exists[:, None, None], inverse, previous)
    both = tl.zeros((2,), tl.int32) + middle
    link = _outer_links(horizontal, both, rows, inner, KNOTS)
    pulls = tl.sum(link[:, :, None] * previous * link[:, None, :], axis=0)
    inverse = _invert(_block(horizontal, vertical, both, rows, inner, KNOTS) - pulls[None, :, :], rows, KNOTS)
    one = tl.sum(tl.where((tl.arange(0, 2) == 0)[:, None, None], inverse, 0.0), axis=0)  # both are the same
    tl.store(inverses + (middle * KNOTS + k[:, None]) * KNOTS + k[None, :], one)
    tl.debug_barrier()
    _substitute(inverses, horizontal, force, found, rows, inner, KNOTS)
    tl.debug_barrier()
    if REFINE:
        i, j = k[:, None], k[None, :]
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
def _solve(
    horizontal, vertical, force, found, inverses, rest, rows, inner, KNOTS: tl.constexpr, REFINE: tl.constexpr
):  # fmt: skip
    system = tl.program_id(0).to(tl.int64)
    balance(
        horizontal + system * rows * (inner + 1), vertical + system * (rows - 1) * inner,
        force + system * rows * inner, found + system * rows * inner, inverses + system * inner * KNOTS * KNOTS,
        rest + system * 2 * rows * inner, rows, inner, KNOTS, REFINE,
    )  # fmt: skip


def solve_lattices(horizontal: Tensor, vertical: Tensor, force: Tensor, *, refine: bool = True) -> Tensor:
    """Return the displacements ``(B, r, n)`` for stiffnesses ``(B, r, n + 1)`` and ``(B, r − 1, n)`` and ``force``.

    Without ``refine`` it takes less time, and errors grow from about 1e-7 to at most 2e-4 of the largest displacement.
    """
    batch, rows, inner = force.shape
    knots = power_above(max(rows, inner + 2))
    found, rest = force.new_empty(batch, rows, inner), force.new_empty(batch, 2, rows, inner)
    launch(
        _solve, (batch, 1, 1), WARPS, horizontal.contiguous(), vertical.contiguous(), force.contiguous(),
        found, force.new_empty(batch, inner, knots, knots), rest, rows, inner, KNOTS=knots, REFINE=refine,
    )  # fmt: skip
    return found
