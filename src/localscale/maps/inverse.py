"""Inverses of grid maps: exact, and the paper's row-and-column approximation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from localscale.conventions import coordinates, stretch, xy_pair
from localscale.maps.base import InverseMethod, Map
from localscale.maps.monotone import interpolate

if TYPE_CHECKING:
    from localscale.maps.grid import GridMap

__all__ = ["ExactInverse", "RowwiseInverse"]


class _GridInverse(Map):
    """The properties that both inverses take from their forward map."""

    def __init__(self, forward: GridMap) -> None:
        self.forward = forward

    @property
    def batch(self) -> int:
        return self.forward.batch

    @property
    def dtype(self) -> torch.dtype:
        return self.forward.dtype

    @property
    def device(self) -> torch.device:
        return self.forward.device


class ExactInverse(_GridInverse):
    """The inverse of a grid map without folds (determinants above √eps): find the cell, solve its 2×2 bilinear system.

    Gradients come from the implicit function theorem: a Newton step p + J⁻¹·(q − l(p; θ)) with p and J held fixed has
    the derivative J⁻¹·(dq − ∂l/∂θ dθ). A second Newton step makes second derivatives exact too, as each step doubles
    the order of the error. The result is written in displacements,
    −D + (J⁻¹ − 1)·r with D = l(p) − p and r = q − l(p), so that the inverse of the identity is exactly the identity.
    """

    def displacement(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            cell = _find_cell(self.forward.control_points, points)
            place = _solve_bilinear(_bilinear_terms(self._corners(cell)), self._to_cell(points, cell))
        terms, target = _bilinear_terms(self._corners(cell)), self._to_cell(points, cell)
        _, residual, first = _newton_step(terms, place, target, fixed=True)
        displaced, residual, second = _newton_step(terms, place + first, target)
        return (second - residual - displaced) / self._cells()

    def jacobian(self, points: Tensor) -> Tensor:
        return torch.linalg.inv(self.forward.jacobian(self(points)))

    def min_determinant(self) -> Tensor:
        return 1 / self.forward.max_determinant()

    def _invert(self, method: InverseMethod) -> Map:
        return self.forward

    def _cells(self) -> Tensor:
        """Return the number of cells along x and y."""
        columns, rows = self.forward.knots
        return xy_pair(columns - 1, rows - 1, self.forward.displacements)

    def _to_cell(self, points: Tensor, cell: Tensor) -> Tensor:
        """Return points relative to the top left of a cell, in cell widths."""
        return (points - cell / self._cells()) * self._cells()

    def _corners(self, cell: Tensor) -> Tensor:
        """Return the displacements of a cell's corners, in cell widths, ``(B, P, 2, 2, 2)``."""
        return self.forward.cell_corners(cell[..., 0], cell[..., 1]) * self._cells()


class RowwiseInverse(_GridInverse):
    """The paper's approximate inverse: every row and every column is inverted on its own (App. A2.2).

    On a pixel grid the map is first sampled at the pixels and the sampled rows and columns are inverted, as in the
    published code. At other points the row and the column through the point are inverted.
    """

    def displacement(self, points: Tensor) -> Tensor:
        x, y = self.forward.control_points.unbind(dim=1)
        columns, rows = self.forward.knots
        row_through = _rows_at(x, points[..., 1])  # (B, P, Nx): the row at each point's own height
        column_through = _rows_at(y.transpose(1, 2), points[..., 0])
        even_x = coordinates(columns, dtype=self.dtype, device=self.device).expand_as(row_through)
        even_y = coordinates(rows, dtype=self.dtype, device=self.device).expand_as(column_through)
        inverse_x = interpolate(points[..., :1], row_through, even_x)
        inverse_y = interpolate(points[..., 1:], column_through, even_y)
        return torch.cat((inverse_x, inverse_y), dim=-1) - points

    def displacement_field(self, height: int, width: int) -> Tensor:
        if min(height, width) == 1:  # there is no sampled line to invert along a side of one pixel
            return super().displacement_field(height, width)
        sampled = stretch(self.forward.control_points, height, width)
        columns = coordinates(width, dtype=self.dtype, device=self.device).expand(self.batch, height, -1)
        rows = coordinates(height, dtype=self.dtype, device=self.device).expand(self.batch, width, -1)
        inverse_x = interpolate(columns, sampled[:, 0], columns) - columns
        inverse_y = interpolate(rows, sampled[:, 1].transpose(1, 2), rows) - rows
        return torch.stack((inverse_x, inverse_y.transpose(1, 2)), dim=-1)

    def jacobian(self, points: Tensor) -> Tensor:
        """Return the Jacobian by automatic differentiation; it carries no gradient itself."""
        points = self._checked(points).detach().requires_grad_()
        with torch.enable_grad():
            moved = points + self.displacement(points)
            rows = [torch.autograd.grad(moved[..., k].sum(), points, retain_graph=True)[0] for k in (0, 1)]
        return torch.stack(rows, dim=-2)

    def min_determinant(self) -> Tensor:
        """Return the minimum over a 64 × 64 grid, an estimate: this map is not piecewise bilinear."""
        centres = (torch.arange(64, dtype=self.dtype, device=self.device) + 0.5) / 64
        points = torch.cartesian_prod(centres, centres).expand(self.batch, -1, -1)
        return torch.linalg.det(self.jacobian(points)).amin(dim=1)

    def _invert(self, method: InverseMethod) -> Map:
        """Return the forward map, of which this is only an approximate inverse."""
        return self.forward


def _rows_at(rows: Tensor, y: Tensor) -> Tensor:
    """Interpolate linearly between rows ``(B, M, N)`` at heights ``y`` ``(B, P)``, giving ``(B, P, N)``."""
    place = y * (rows.shape[1] - 1)
    above = place.detach().nan_to_num(0).floor().clamp(0, rows.shape[1] - 2)
    t = (place - above).unsqueeze(-1)
    index = above.long().unsqueeze(-1).expand(-1, -1, rows.shape[2])
    return rows.gather(1, index) * (1 - t) + rows.gather(1, index + 1) * t


def _find_cell(control: Tensor, points: Tensor) -> Tensor:
    """Return the (column, row) of the cell that l maps onto each point, integers ``(B, P, 2)``.

    The image of lattice row j crosses the point's x once, at some height. These heights increase with j, because rows
    increase and the determinant is positive. The number of interior rows whose height is at most the point's y is the
    point's row of cells. Columns work alike. This needs no iterative search.
    """
    x, y = control.unbind(dim=1)
    row = _count_lines_before(x, y, points[..., 0], points[..., 1])
    column = _count_lines_before(y.transpose(1, 2), x.transpose(1, 2), points[..., 1], points[..., 0])
    return torch.stack((column, row), dim=-1)


def _count_lines_before(along: Tensor, across: Tensor, position: Tensor, level: Tensor) -> Tensor:
    """Count the interior lines ``(B, M, N)`` that are not beyond ``level`` at ``position``, both ``(B, P)``."""
    count = torch.zeros_like(position, dtype=torch.long)
    for line in range(1, along.shape[1] - 1):
        count = count + (interpolate(position, along[:, line], across[:, line]) <= level)
    return count


Terms = tuple[Tensor, Tensor, Tensor, Tensor]


def _bilinear_terms(corners: Tensor) -> Terms:
    """Convert corner displacements ``(B, P, 2, 2, 2)`` to the terms of c + d_s·s + d_t·t + g·st, each ``(B, P, 2)``."""
    top_left, top_right = corners[..., 0, 0, :], corners[..., 0, 1, :]
    bottom_left, bottom_right = corners[..., 1, 0, :], corners[..., 1, 1, :]
    return (
        top_left,
        top_right - top_left,
        bottom_left - top_left,
        bottom_right - bottom_left - top_right + top_left,
    )


def _newton_step(terms: Terms, place: Tensor, target: Tensor, *, fixed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return the displacement D at ``place``, the residual target − place − D, and the step J⁻¹·residual.

    ``fixed`` excludes J from the gradient.
    """
    constant, by_s, by_t, by_st = terms
    s, t = place[..., :1], place[..., 1:]
    x, y = torch.eye(2, dtype=place.dtype, device=place.device)
    displaced = constant + by_s * s + by_t * t + by_st * s * t
    residual = target - place - displaced
    columns = x + by_s + by_st * t, y + by_t + by_st * s
    if fixed:
        columns = columns[0].detach(), columns[1].detach()
    return displaced, residual, _solve_2x2(*columns, residual)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :1] * b[..., 1:] - a[..., 1:] * b[..., :1]


def _solve_2x2(first: Tensor, second: Tensor, right: Tensor) -> Tensor:
    """Solve [first, second]·z = right by Cramer's rule, clamped to one cell; 0 where the map folds."""
    determinant = _cross(first, second)
    usable = determinant > torch.finfo(right.dtype).eps ** 0.5
    safe = torch.where(usable, determinant, 1)
    solution = torch.cat((_cross(right, second), _cross(first, right)), dim=-1) / safe
    return torch.where(usable, solution.clamp(-1, 1), 0)


def _solve_bilinear(terms: Terms, target: Tensor) -> Tensor:
    """Return (s, t) with (s, t) + c + d_s·s + d_t·t + g·st = target: the root of a quadratic in t.

    With e = (1,0) + d_s, f = (0,1) + d_t and h = target − c, eliminating s leaves
    −(f×g)·t² + (h×g + e×f)·t + h×e = 0. At a solution its derivative is the Jacobian determinant, so without folds the
    right root is the one with the positive square root.
    """
    constant, by_s, by_t, g = terms
    x, y = torch.eye(2, dtype=target.dtype, device=target.device)
    e, f, h = x + by_s, y + by_t, target - constant
    a, b, c = -_cross(f, g), _cross(h, g) + _cross(e, f), _cross(h, e)
    root = (b.square() - 4 * a * c).clamp_min(0).sqrt()
    tiny = torch.finfo(target.dtype).eps
    stable = -2 * c / torch.where(b + root > tiny, b + root, tiny)
    other = (root - b) / torch.where(a.abs() > tiny, 2 * a, 1)
    t = torch.where((b >= 0) | (a.abs() <= tiny), stable, other).clamp(0, 1)
    direction, rest = e + g * t, h - f * t
    s = (rest * direction).sum(-1, keepdim=True) / direction.square().sum(-1, keepdim=True).clamp_min(tiny)
    return torch.cat((s.clamp(0, 1), t), dim=-1)
