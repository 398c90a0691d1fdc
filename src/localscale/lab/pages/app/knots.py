"""A lattice of knots that can be moved one at a time, and never folds.

A knot goes as far towards its new place as the map stays a bijection: rows increase in x, columns in y, and no corner
of a cell has a determinant below ``LEAST``.
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

__all__ = ["LEAST", "Knots", "Together", "even_knots", "move_knot", "random_knots", "way_back_error"]

LEAST = 0.05  # smallest Jacobian determinant
GAP = 0.01  # least distance between neighbours in a row or column, as a fraction of the side
HALVINGS = 24

Together = Literal["one knot", "its row and column"]  # a map of the grid family, or of the separable one


@dataclass(frozen=True, eq=False)
class Knots:
    """Where each knot of an even lattice is, ``(2, Ny, Nx)`` in float64; channel 0 is x, channel 1 is y."""

    places: Tensor

    def map(self, dtype: torch.dtype = torch.float32) -> GridMap:
        """The map that takes every knot of the even lattice to its place."""
        return GridMap((self.places - _even(self.places))[None].to(dtype))


def even_knots(count: int) -> Knots:
    """The identity on ``count`` knots a side.

    >>> even_knots(4).map().mean_displacement()
    tensor([0.])
    """
    return Knots(lattice(count, count, dtype=torch.float64).permute(2, 0, 1).clone())


def random_knots(count: int, seed: int, together: Together = "one knot") -> Knots:
    """A random map of the family that ``together`` moves."""
    generator = torch.Generator().manual_seed(seed)
    family = "grid" if together == "one knot" else "separable"
    m = random_map(1, count, strength=2.0, family=family, generator=generator, guard=2 * LEAST, dtype=torch.float64)
    return Knots(m.displacement_field(count, count)[0].permute(2, 0, 1) + _even(even_knots(count).places))


def move_knot(knots: Knots, row: int, column: int, to: tuple[float, float], together: Together = "one knot") -> Knots:
    """Move a knot towards ``to`` = (x, y), as near as the map stays a bijection.

    Corners stay, and knots on a side stay on it. With ``together="its row and column"`` the knot's column takes its x
    and its row takes its y, and a map that was separable stays so.
    """
    places = knots.places
    _, rows, columns = places.shape
    if not (0 <= row < rows and 0 <= column < columns):
        raise DataError(f"there is no knot {row}, {column} among {rows}×{columns}; press Reset")
    if not all(math.isfinite(value) for value in to):
        raise DataError(f"a knot cannot go to {to[0]}, {to[1]}; expected two numbers")

    def with_knot_at(x: float, y: float) -> Tensor:
        moved = places.clone()
        if 0 < column < columns - 1:
            moved[0, row if together == "one knot" else slice(None), column] = min(max(x, 0.0), 1.0)
        if 0 < row < rows - 1:
            moved[1, row, column if together == "one knot" else slice(None)] = min(max(y, 0.0), 1.0)
        return moved

    wanted = with_knot_at(*to)
    # From where it is, a knot at the end of its room would stick there; from the middle of its neighbours it slides.
    left, right = (places[0, row, min(max(column + step, 0), columns - 1)] for step in (-1, 1))
    above, below = (places[1, min(max(row + step, 0), rows - 1), column] for step in (-1, 1))
    middle = with_knot_at(float(left + right) / 2, float(above + below) / 2)
    return Knots(_as_far_as_it_goes(middle if _is_bijection(middle) else places, wanted))


def way_back_error(m: GridMap, size: int = 65) -> float:
    """The largest distance between l⁻¹(l(p)) and p over a lattice of points, as a fraction of the side."""
    points = lattice(size, size, dtype=m.dtype).reshape(1, -1, 2)
    return float(torch.linalg.vector_norm(m.inverse()(m(points)) - points, dim=-1).max())


def _even(places: Tensor) -> Tensor:
    return lattice(*places.shape[1:], dtype=places.dtype).permute(2, 0, 1)


def _is_bijection(places: Tensor) -> bool:
    apart = min(float(places[0].diff(dim=1).min()), float(places[1].diff(dim=0).min())) >= GAP
    return apart and float(corner_determinants((places - _even(places))[None]).min()) >= LEAST


def _as_far_as_it_goes(start: Tensor, wanted: Tensor) -> Tensor:
    """The last good place on the line from ``start``, which is good, to ``wanted``, by halving."""
    if _is_bijection(wanted):
        return wanted
    good, bad = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (good + bad) / 2
        if _is_bijection(torch.lerp(start, wanted, middle)):
            good = middle
        else:
            bad = middle
    return torch.lerp(start, wanted, good)
