"""Do everything that a fixed-point solver does between two evaluations of f, in one launch.

Given z and f(z), the kernel computes the relative residual ‖f(z) − z‖ / ‖f(z)‖, updates the best estimate so far and
the step count, and writes the next z: Anderson's, or Picard's z + damping · (f(z) − z) if there is no history. The
reference is ``localscale.equilibrium.solver.iterate``, which takes many small launches per step. One program
instance works on one sample. Not differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from localscale.kernels.launch import Launch, power_above

__all__ = ["Iteration", "mix", "split_found"]


@triton.jit
def _row(matrix, index, k):
    """Return row ``k`` of a small matrix."""
    return tl.sum(tl.where(index[:, None] == k, matrix, 0.0), axis=0)


@triton.jit
def _solve(matrix, right, index, used):
    """Solve a linear system by Gauss–Jordan elimination without pivoting.

    The matrix must be positive definite, and diagonal from row ``used`` on.
    """
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
    """Return Anderson's weights for the first ``count`` of the residuals ``(SLOTS, D)``; a zero residual gets none."""
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
    """Return coordinate ``d`` of an evenly spaced lattice: the x of all control points, then the y of all."""
    x, y = (d % columns).to(tl.float32) / (columns - 1), (d // columns % rows).to(tl.float32) / (rows - 1)
    return tl.where(d < rows * columns, x, y)


@triton.jit
def mix(
    sample, point, value, best_point, best_value, best, active, steps, points, errors, step, last,
    size, rows, columns, tolerance, damping, ridge, WIDTH: tl.constexpr, HISTORY: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Read one sample's ``value`` = f(``point``) of step ``step``, update its records, and write its next ``point``.

    The state starts uninitialised, so step 0 reads none of it.
    """
    d = tl.arange(0, WIDTH)
    valid = d < size
    z = tl.load(point + sample * size + d, mask=valid, other=0.0)
    f_z = tl.load(value + sample * size + d, mask=valid, other=0.0)
    error = f_z - z
    scale = f_z
    if columns > 1:
        scale = tl.where(valid, f_z + _even(d, rows, columns), 0.0)
    length = tl.sqrt(tl.sum(scale * scale, axis=0))
    residual = tl.sqrt(tl.sum(error * error, axis=0)) / (length + 1e-12)
    finite = (residual < float("inf")) & (length < float("inf"))  # false for NaN too
    residual = tl.where(finite, residual, float("inf"))
    best_residual = tl.load(best + sample, mask=step > 0, other=float("inf"))
    running = tl.load(active + sample, mask=step > 0, other=1) != 0
    taken = tl.load(steps + sample, mask=step > 0, other=0)
    better = running & (residual < best_residual)
    at = sample * size + d
    kept_point = tl.where(step > 0, tl.load(best_point + at, mask=valid, other=0.0), z)
    kept_point = tl.where(better, z, kept_point)
    kept_value = tl.where(step > 0, tl.load(best_value + at, mask=valid, other=0.0), z)
    kept_value = tl.where(better, f_z, kept_value)
    unfinished = running & (residual > tolerance)
    proposed = z + damping * error
    if HISTORY > 0:
        index, slot = tl.arange(0, SLOTS), step % HISTORY
        inside = (index < HISTORY)[:, None] & valid[None, :]
        slots = sample * HISTORY * size + index[:, None] * size + d[None, :]
        newest = (index == slot)[:, None]
        past = tl.where(newest, tl.where(finite, z, 0.0)[None, :], tl.load(points + slots, mask=inside, other=0.0))
        latest = tl.where(finite, error, 0.0)[None, :]
        residuals = tl.where(newest, latest, tl.load(errors + slots, mask=inside, other=0.0))
        tl.store(points + slots, past, mask=inside & newest)
        tl.store(errors + slots, residuals, mask=inside & newest)
        if unfinished & (step > 0) & (step < last):  # the first step has no history, the last no next point
            weights = _weights(residuals, index, ridge, tl.minimum(step + 1, HISTORY), SLOTS)
            proposed = tl.sum(weights[:, None] * (past + damping * residuals), axis=0)
    not_finite = tl.sum(tl.where(valid & ~(tl.abs(proposed) < float("inf")), 1, 0), axis=0)
    proposed = tl.where(finite & (not_finite == 0), proposed, kept_value)
    tl.debug_barrier()  # all threads must have read before any of them writes
    tl.store(best_point + at, kept_point, mask=valid)
    tl.store(best_value + at, kept_value, mask=valid)
    tl.store(best + sample, tl.where(better, residual, best_residual))
    tl.store(steps + sample, taken + running.to(tl.int64))
    tl.store(active + sample, unfinished.to(tl.int8))
    tl.store(point + at, tl.where(unfinished, proposed, z), mask=valid)


@triton.jit(do_not_specialize=["step", "last"])  # Triton would compile the values 0 and 1 separately
def _mix(
    point, value, best_point, best_value, best, active, steps, points, errors, step, last, size, rows, columns,
    tolerance, damping, ridge, WIDTH: tl.constexpr, HISTORY: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    mix(
        tl.program_id(0).to(tl.int64), point, value, best_point, best_value, best, active, steps, points, errors,
        step, last, size, rows, columns, tolerance, damping, ridge, WIDTH, HISTORY, SLOTS,
    )  # fmt: skip


@dataclass
class Iteration:
    """The state of a solver for a batch ``(B, D)`` in float32; ``advance`` changes it in place, once per step.

    ``point`` starts at zero; set it to start elsewhere. ``lattice`` = (rows, columns) says that the D numbers are the
    displacements of a map's control points; the residual is then relative to the positions of the points. ``(0, 0)``
    says that they are not. ``found`` holds, one after another in memory, the best points, their values and residuals.
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
        self.best_point, self.best_value, self.best = split_found(self.found, *self.point.shape)

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
        """Return the state before the first step, at zero; ``history`` = 0 is Picard iteration."""
        zeros = torch.zeros(1 + 2 * history, batch * size, device=device)  # one launch for three tensors
        point, (points, errors) = zeros[0].view(batch, size), zeros[1:].view(2, batch, history, size).unbind()
        found = torch.empty(batch * (2 * size + 1), device=device)  # this and the rest are first written by step 0
        active = torch.empty(batch, dtype=torch.int8, device=device)
        steps = torch.empty(batch, dtype=torch.int64, device=device)
        return cls(max_steps, tolerance, damping, ridge, lattice, point, points, errors, found, active, steps)

    def advance(self, value: Tensor, step: int) -> None:
        """Update the state with ``value`` = f(point), found in step ``step``, counted from 0."""
        (batch, size), value = value.shape, value.contiguous()
        history = self.points.shape[1]
        mix_all = Launch(
            _mix, (batch, 1, 1), 4, self.point, value, self.best_point, self.best_value, self.best, self.active,
            self.steps, self.points, self.errors, last=self.max_steps - 1,
            size=size, rows=self.lattice[0], columns=self.lattice[1], tolerance=self.tolerance,
            damping=self.damping, ridge=self.ridge, WIDTH=power_above(size), HISTORY=history,
            SLOTS=power_above(max(history, 2)),
        )  # fmt: skip
        mix_all(step)


def split_found(found: Tensor, batch: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split ``Iteration.found`` into the best points ``(B, D)``, their values ``(B, D)`` and residuals ``(B,)``."""
    best_point, best_value = found[: 2 * batch * size].view(2, batch, size)
    return best_point, best_value, found[2 * batch * size :]
