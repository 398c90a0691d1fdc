"""What a solver does between two evaluations, in one launch: residual, the best so far, and the next point.

Its twin is ``localscale.equilibrium.solvers._iterate`` with ``Anderson`` or, without history, ``Picard``. One program
works on one sample. Nothing here is differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import Launch, power_above

__all__ = ["Iteration", "mix", "parts_of"]


@triton.jit
def _row(matrix, index, k):
    """Row ``k`` of a small matrix."""
    return tl.sum(tl.where(index[:, None] == k, matrix, 0.0), axis=0)


@triton.jit
def _solve(matrix, right, index, used):
    """Gauss–Jordan elimination without pivots, for a positive definite matrix that is diagonal from ``used`` on."""
    for k in range(used):
        row = _row(matrix, index, k)
        pivot = tl.sum(tl.where(index == k, row, 0.0), axis=0)
        column = tl.sum(tl.where(index[None, :] == k, matrix, 0.0), axis=1)
        factor = column - tl.where(index == k, 1.0, 0.0)
        right -= factor * (tl.sum(tl.where(index == k, right, 0.0), axis=0) / pivot)
        matrix -= factor[:, None] * (row / pivot)[None, :]
    return right


@triton.jit
def _weights(errors, index, ridge, count, SLOTS: tl.constexpr):
    """Anderson's weights for residuals ``(SLOTS, D)``, ``count`` of them; one that is all zero is not used."""
    norms = tl.sqrt(tl.sum(errors * errors, axis=1))
    used = norms > 0
    safe = tl.where(used, norms, 1.0)
    unit = errors / safe[:, None]
    gram = tl.where(index[:, None] == index[None, :], ridge, 0.0) + tl.zeros((SLOTS, SLOTS), tl.float32)
    for k in range(count):
        products = tl.sum(unit * _row(unit, index, k)[None, :], axis=1)
        gram += tl.where(index[None, :] == k, products[:, None], 0.0)
    smallest = tl.min(tl.where(used, norms, float("inf")), axis=0)
    inverse = tl.where(used, smallest / safe, 0.0)
    weights = _solve(gram, inverse, index, count) * inverse
    total = tl.sum(weights, axis=0)
    return weights / tl.where(total > 0, total, 1.0)


@triton.jit
def _even(d, rows, columns):
    """Where number ``d`` of a lattice's coordinates lies: first every control point's x, then every one's y."""
    x, y = (d % columns).to(tl.float32) / (columns - 1), (d // columns % rows).to(tl.float32) / (rows - 1)
    return tl.where(d < rows * columns, x, y)


@triton.jit
def mix(
    sample, point, value, best_point, best_value, best, active, steps, points, errors, number, last,
    size, rows, columns, tolerance, damping, ridge, WIDTH: tl.constexpr, HISTORY: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Take in one sample's ``value``, that of its evaluation ``number``, and put the next ``point`` in place."""
    d = tl.arange(0, WIDTH)
    there = d < size
    here = tl.load(point + sample * size + d, mask=there, other=0.0)
    there_to = tl.load(value + sample * size + d, mask=there, other=0.0)
    error = there_to - here
    measured = there_to
    if columns > 1:
        measured = tl.where(there, there_to + _even(d, rows, columns), 0.0)
    length = tl.sqrt(tl.sum(measured * measured, axis=0))
    residual = tl.sqrt(tl.sum(error * error, axis=0)) / (length + 1e-12)
    finite = (residual < float("inf")) & (length < float("inf"))  # false for NaN too
    residual = tl.where(finite, residual, float("inf"))
    so_far = tl.load(best + sample, mask=number > 0, other=float("inf"))
    going = tl.load(active + sample, mask=number > 0, other=1) != 0
    taken = tl.load(steps + sample, mask=number > 0, other=0)
    better = going & (residual < so_far)
    place = sample * size + d
    kept = tl.where(number > 0, tl.load(best_point + place, mask=there, other=0.0), here)
    kept = tl.where(better, here, kept)
    fallback = tl.where(number > 0, tl.load(best_value + place, mask=there, other=0.0), here)
    fallback = tl.where(better, there_to, fallback)
    going_on = going & (residual > tolerance)
    proposed = here + damping * error
    if HISTORY > 0:
        index, slot = tl.arange(0, SLOTS), number % HISTORY
        inside = (index < HISTORY)[:, None] & there[None, :]
        slots = sample * HISTORY * size + index[:, None] * size + d[None, :]
        newest = (index == slot)[:, None]
        past = tl.where(newest, tl.where(finite, here, 0.0)[None, :], tl.load(points + slots, mask=inside, other=0.0))
        wrong = tl.where(newest, tl.where(finite, error, 0.0)[None, :], tl.load(errors + slots, mask=inside, other=0.0))
        tl.store(points + slots, past, mask=inside & newest)
        tl.store(errors + slots, wrong, mask=inside & newest)
        if going_on & (number > 0) & (number < last):  # else there is nothing to mix it with, or no next point
            weights = _weights(wrong, index, ridge, tl.minimum(number + 1, HISTORY), SLOTS)
            proposed = tl.sum(weights[:, None] * (past + damping * wrong), axis=0)
    lost = tl.sum(tl.where(there & ~(tl.abs(proposed) < float("inf")), 1, 0), axis=0)
    proposed = tl.where(finite & (lost == 0), proposed, fallback)
    tl.debug_barrier()  # all have read what is now written
    tl.store(best_point + place, kept, mask=there)
    tl.store(best_value + place, fallback, mask=there)
    tl.store(best + sample, tl.where(better, residual, so_far))
    tl.store(steps + sample, taken + going.to(tl.int64))
    tl.store(active + sample, going_on.to(tl.int8))
    tl.store(point + place, tl.where(going_on, proposed, here), mask=there)


@triton.jit(do_not_specialize=["number", "last"])  # or 0 and 1 would be compiled apart
def _mix(
    point, value, best_point, best_value, best, active, steps, points, errors, number, last, size, rows, columns,
    tolerance, damping, ridge, WIDTH: tl.constexpr, HISTORY: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    mix(
        tl.program_id(0).to(tl.int64), point, value, best_point, best_value, best, active, steps, points, errors,
        number, last, size, rows, columns, tolerance, damping, ridge, WIDTH, HISTORY, SLOTS,
    )  # fmt: skip


@dataclass
class Iteration:
    """A solver's state ``(B, D)`` in float32, changed in place by ``advance``, once per evaluation.

    It starts at zero, unless ``point`` is set before, and has no next point after ``max_steps``. ``lattice`` = (rows,
    columns) says that the numbers are displacements of a map's control points, whose residual is relative to where
    the points are. What is ``found`` lies side by side: the best points, their images and their residuals.
    """

    max_steps: int
    tolerance: float
    damping: float
    ridge: float
    lattice: tuple[int, int]
    point: Tensor
    points: Tensor
    errors: Tensor
    found: Tensor
    active: Tensor
    steps: Tensor

    def __post_init__(self) -> None:
        self.best_point, self.best_value, self.best = parts_of(self.found, *self.point.shape)

    @classmethod
    def begin(
        cls,
        batch: int,
        size: int,
        device: torch.device | str,
        *,
        history: int,
        max_steps: int,
        tolerance: float,
        damping: float = 1.0,
        ridge: float = 1e-6,
        lattice: tuple[int, int] = (0, 0),
    ) -> Iteration:
        """At zero; a history of 0 mixes nothing."""
        zeros = torch.zeros(1 + 2 * history, batch * size, device=device)  # one launch
        point, (points, errors) = zeros[0].view(batch, size), zeros[1:].view(2, batch, history, size).unbind()
        found = torch.empty(batch * (2 * size + 1), device=device)  # from here on first written by the first advance
        active = torch.empty(batch, dtype=torch.int8, device=device)
        steps = torch.empty(batch, dtype=torch.int64, device=device)
        return cls(max_steps, tolerance, damping, ridge, lattice, point, points, errors, found, active, steps)

    def advance(self, value: Tensor, number: int) -> None:
        """Take in f(point), the evaluation ``number``, and move on."""
        (batch, size), value = value.shape, value.contiguous()
        history = self.points.shape[1]
        mix_all = Launch(
            _mix, (batch, 1, 1), 4, self.point, value, self.best_point, self.best_value, self.best, self.active,
            self.steps, self.points, self.errors, last=self.max_steps - 1,
            size=size, rows=self.lattice[0], columns=self.lattice[1], tolerance=self.tolerance,
            damping=self.damping, ridge=self.ridge, WIDTH=power_above(size), HISTORY=history,
            SLOTS=power_above(max(history, 2)),
        )  # fmt: skip
        mix_all(number)


def parts_of(found: Tensor, batch: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """An iteration's best points ``(B, D)``, their images and their residuals ``(B,)``."""
    best_point, best_value = found[: 2 * batch * size].view(2, batch, size)
    return best_point, best_value, found[2 * batch * size :]
