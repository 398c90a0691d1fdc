"""A lattice of knots that a visitor can drag one at a time, without ever folding the map.

A knot moves towards the pointer for as long as the map stays a bijection: x increases along every row, y along every
column, and the Jacobian determinant stays above ``LEAST_DETERMINANT`` at every corner of every cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from localscale.conventions import lattice
from localscale.errors import DataError
from localscale.maps import GridMap, random_map
from localscale.maps.folds import corner_determinants

__all__ = ["LEAST_DETERMINANT", "Knots", "Moving", "even_knots", "inverse_error", "move_knot", "random_knots"]

LEAST_DETERMINANT = 0.05
LEAST_GAP = 0.01  # between neighbours in a row or column, as a fraction of the image's side
BISECTIONS = 24

Moving = Literal["one knot", "its row and column"]  # a map of the grid family, or of the separable one


@dataclass(frozen=True, eq=False)
class Knots:
    """The positions ``(2, Ny, Nx)`` of the knots, in float64; channel 0 is x, channel 1 is y."""

    positions: Tensor

    def map(self, dtype: torch.dtype = torch.float32) -> GridMap:
        """Return the map that takes each knot from its place in an even lattice to its position."""
        return GridMap(_displacement(self.positions)[None].to(dtype))


def even_knots(count: int) -> Knots:
    """Return the identity on ``count`` knots per side.

    >>> even_knots(4).map().mean_displacement()
    tensor([0.])
    """
    return Knots(lattice(count, count, dtype=torch.float64).permute(2, 0, 1).clone())


def random_knots(count: int, seed: int, moving: Moving = "one knot") -> Knots:
    """Return the knots of a random map, which is separable if a knot moves with its row and column."""
    generator = torch.Generator().manual_seed(seed)
    family, guard = "grid" if moving == "one knot" else "separable", 2 * LEAST_DETERMINANT
    m = random_map(1, count, strength=2.0, family=family, generator=generator, guard=guard, dtype=torch.float64)
    return Knots(m.displacement_field(count, count)[0].permute(2, 0, 1) + even_knots(count).positions)


def move_knot(knots: Knots, row: int, column: int, to: tuple[float, float], moving: Moving = "one knot") -> Knots:
    """Move a knot towards ``to`` = (x, y), as far as the map stays a bijection.

    Corners stay, and knots on a side of the image stay on that side. With ``moving="its row and column"`` the whole
    column takes the knot's x and the whole row its y, so a separable map stays separable.
    """
    positions = knots.positions
    _, rows, columns = positions.shape
    if not (0 <= row < rows and 0 <= column < columns):
        raise DataError(f"there is no knot {row}, {column} among {rows}×{columns}; press Reset")
    if not all(math.isfinite(value) for value in to):
        raise DataError(f"a knot cannot go to {to[0]}, {to[1]}; expected two finite numbers")

    def with_knot_at(x: float, y: float) -> Tensor:
        moved = positions.clone()
        if 0 < column < columns - 1:
            moved[0, row if moving == "one knot" else slice(None), column] = min(max(x, 0.0), 1.0)
        if 0 < row < rows - 1:
            moved[1, row, column if moving == "one knot" else slice(None)] = min(max(y, 0.0), 1.0)
        return moved

    # The search starts midway between the knot's neighbours: a search from its present position could not move a knot
    # that already touches its limit, whereas this one lets it slide along the limit.
    left, right = (positions[0, row, min(max(column + step, 0), columns - 1)] for step in (-1, 1))
    above, below = (positions[1, min(max(row + step, 0), rows - 1), column] for step in (-1, 1))
    middle = with_knot_at(float(left + right) / 2, float(above + below) / 2)
    return Knots(_move_towards(with_knot_at(*to), middle if _is_bijection(middle) else positions))


def inverse_error(m: GridMap, size: int = 65) -> float:
    """Return the largest distance between l⁻¹(l(p)) and p over a lattice of points, as a fraction of the side."""
    points = lattice(size, size, dtype=m.dtype).reshape(1, -1, 2)
    return float(torch.linalg.vector_norm(m.inverse()(m(points)) - points, dim=-1).max())


def _displacement(positions: Tensor) -> Tensor:
    return positions - lattice(*positions.shape[1:], dtype=positions.dtype).permute(2, 0, 1)


def _is_bijection(positions: Tensor) -> bool:
    apart = min(float(positions[0].diff(dim=1).min()), float(positions[1].diff(dim=0).min())) >= LEAST_GAP
    return apart and float(corner_determinants(_displacement(positions)[None]).min()) >= LEAST_DETERMINANT


def _move_towards(wanted: Tensor, start: Tensor) -> Tensor:
    """Move from ``start``, a bijection, towards ``wanted`` as far as the map stays a bijection, by bisection."""
    if _is_bijection(wanted):
        return wanted
    good, bad = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if _is_bijection(torch.lerp(start, wanted, middle)) else (good, middle)
    return torch.lerp(start, wanted, good)
