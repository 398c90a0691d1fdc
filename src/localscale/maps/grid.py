"""Bilinear lattice maps: the parameterization of the paper's App. A2.2."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.conventions import coordinates, lattice, xy_pair
from localscale.errors import MapError
from localscale.maps.base import Composition, FamilyMap, InverseMethod, Map, knot_pair
from localscale.maps.folds import corner_determinants, guard_factor
from localscale.maps.inverse import ExactInverse, RowwiseInverse
from localscale.maps.monotone import displacements_from_logits, logits_from_displacements

__all__ = ["GridMap"]


class GridMap(FamilyMap):
    """A lattice of control points, rows increasing in x, columns increasing in y, bilinear in each cell.

    The map is held as the ``displacements`` ``(B, 2, Ny, Nx)`` of its control points from the even lattice (channel 0
    is x, channel 1 is y), so the identity is exactly zero. Compositions and inverses are not grid maps: ``@`` and
    ``inverse()`` return exact maps of other types. ``resample`` turns a map into a grid map, with the error that
    ``localscale.maps.resampling_error`` measures.

    >>> l = GridMap.from_logits(torch.randn(4, 6, 7), torch.randn(4, 8, 5), guard=0.1)  # 8 knots along x, 6 along y
    >>> l.control_points.shape, bool((l.min_determinant() > 0.09).all())
    (torch.Size([4, 2, 6, 8]), True)
    """

    def __init__(self, displacements: Tensor) -> None:
        if displacements.dim() != 4 or displacements.shape[1] != 2 or min(displacements.shape[2:]) < 2:
            raise MapError(
                f"displacements have shape {tuple(displacements.shape)}; expected (batch, 2, knots_y ≥ 2, knots_x ≥ 2)"
            )
        if displacements.dtype not in (torch.float32, torch.float64):
            raise MapError(
                f"displacements have dtype {displacements.dtype}; "
                "expected float32 or float64, also for half-precision features"
            )
        self.displacements = displacements

    @classmethod
    def from_logits(
        cls, logits_x: Tensor, logits_y: Tensor, *, temperature: float = 1.0, guard: float | None = None
    ) -> GridMap:
        """Build maps from raw parameters ``(B, Ny, Nx − 1)``, row by row, and ``(B, Nx, Ny − 1)``, column by column.

        ``guard`` is the smallest Jacobian determinant to allow; ``None`` lets the map fold.
        """
        if logits_x.dim() != 3 or logits_y.dim() != 3 or logits_x.shape[0] != logits_y.shape[0]:
            fits = False
        else:
            fits = logits_x.shape[2] + 1 == logits_y.shape[1] and logits_y.shape[2] + 1 == logits_x.shape[1]
        if not fits:
            raise MapError(
                f"logits have shapes {tuple(logits_x.shape)} and {tuple(logits_y.shape)}; a grid map needs "
                "(batch, knots_y, knots_x − 1) and (batch, knots_x, knots_y − 1)"
            )
        displacements_x = displacements_from_logits(logits_x, temperature)
        displacements_y = displacements_from_logits(logits_y, temperature).transpose(1, 2)
        return cls(torch.stack((displacements_x, displacements_y), dim=1)).guarded(guard)

    @staticmethod
    def logit_shapes(knots: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (knots[1], knots[0] - 1), (knots[0], knots[1] - 1)

    @property
    def batch(self) -> int:
        return self.displacements.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.displacements.dtype

    @property
    def device(self) -> torch.device:
        return self.displacements.device

    @property
    def knots(self) -> tuple[int, int]:
        """Control points along x and y."""
        return self.displacements.shape[3], self.displacements.shape[2]

    @property
    def moves(self) -> Tensor:
        """Whether each map differs from the identity, ``(B,)``."""
        return self.displacements.flatten(1).any(dim=1)

    @property
    def control_points(self) -> Tensor:
        """The positions of the control points, ``(B, 2, Ny, Nx)``."""
        return self.displacements + self._even()

    def _even(self) -> Tensor:
        _, _, rows, columns = self.displacements.shape
        return lattice(rows, columns, dtype=self.dtype, device=self.device).permute(2, 0, 1)

    def _corners(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the displacements of the corners of each point's cell, and the point's position in the cell."""
        columns, rows = self.knots
        place = points * xy_pair(columns - 1, rows - 1, points)
        cell = place.detach().nan_to_num(0).floor()  # a NaN point stays NaN through its position in the cell
        cell_x, cell_y = cell[..., 0].clamp(0, columns - 2).long(), cell[..., 1].clamp(0, rows - 2).long()
        return self.cell_corners(cell_x, cell_y), place - torch.stack((cell_x, cell_y), dim=-1)

    def cell_corners(self, cell_x: Tensor, cell_y: Tensor) -> Tensor:
        """Return the displacements of the corners of cells ``(B, P)`` as ``(B, P, 2, 2, 2)``: row, column, (x, y)."""
        columns = self.knots[0]
        flat = self.displacements.flatten(2)
        top_left = cell_y * columns + cell_x
        index = torch.stack((top_left, top_left + 1, top_left + columns, top_left + columns + 1), dim=-1)
        gathered = flat.gather(2, index.flatten(1).unsqueeze(1).expand(-1, 2, -1))
        return gathered.unflatten(2, (*cell_x.shape[1:], 2, 2)).movedim(1, -1)

    def displacement(self, points: Tensor) -> Tensor:
        corners, inside = self._corners(points)
        s, t = inside[..., 0, None], inside[..., 1, None]
        top = corners[..., 0, 0, :] * (1 - s) + corners[..., 0, 1, :] * s
        bottom = corners[..., 1, 0, :] * (1 - s) + corners[..., 1, 1, :] * s
        return top * (1 - t) + bottom * t

    def displacement_field(self, height: int, width: int) -> Tensor:
        # One axis after the other, so that the gradient is summed along lines and not from all pixels into a few knots.
        return _stretch(_stretch(self.displacements, width, dim=3), height, dim=2).permute(0, 2, 3, 1)

    def displacement_lattices(self, height: int, width: int) -> tuple[Tensor]:
        return (self.displacements,)

    def jacobian(self, points: Tensor) -> Tensor:
        corners, inside = self._corners(self._checked(points))
        columns, rows = self.knots
        s, t = inside[..., 0, None], inside[..., 1, None]
        by_x = (corners[..., 0, 1, :] - corners[..., 0, 0, :]) * (1 - t) + (
            corners[..., 1, 1, :] - corners[..., 1, 0, :]
        ) * t
        by_y = (corners[..., 1, 0, :] - corners[..., 0, 0, :]) * (1 - s) + (
            corners[..., 1, 1, :] - corners[..., 0, 1, :]
        ) * s
        gradient = torch.stack((by_x * (columns - 1), by_y * (rows - 1)), dim=-1)
        return gradient + torch.eye(2, dtype=self.dtype, device=self.device)

    def min_determinant(self) -> Tensor:
        return corner_determinants(self.displacements).flatten(1).amin(dim=1)

    def max_determinant(self) -> Tensor:
        """Return the largest Jacobian determinant over the square, shape ``(B,)``."""
        return corner_determinants(self.displacements).flatten(1).amax(dim=1)

    def folds(self) -> Tensor:
        """Return whether each cell contains a fold, ``(B, Ny − 1, Nx − 1)``."""
        return (corner_determinants(self.displacements) <= 0).any(dim=1)

    def guarded(self, epsilon: float | None = 0.1) -> GridMap:
        """Return the maps, each shrunk toward the identity until no determinant is below ``epsilon``."""
        if epsilon is None:
            return self
        if not 0 < epsilon < 1:
            raise MapError(f"guard is {epsilon}; expected a determinant strictly between 0 and 1, or None for no guard")
        return GridMap(self.displacements * guard_factor(self.displacements, epsilon)[:, None, None, None])

    def _invert(self, method: InverseMethod) -> Map:
        return ExactInverse(self) if method == "exact" else RowwiseInverse(self)

    def state(self) -> Tensor:
        """Return the control points as ``(B, 2·Ny·Nx)``."""
        return self.control_points.flatten(1)

    @classmethod
    def from_state(cls, state: Tensor, knots: tuple[int, int]) -> GridMap:
        control = state.unflatten(1, (2, knots[1], knots[0]))
        even = lattice(knots[1], knots[0], dtype=state.dtype, device=state.device).permute(2, 0, 1)
        return cls(control - even)

    def logits(self) -> tuple[Tensor, Tensor]:
        """Return log(increment · N), raw parameters that give this map back; 0 for the identity."""
        x, y = self.displacements.unbind(dim=1)
        return logits_from_displacements(x), logits_from_displacements(y.transpose(1, 2))

    def compose_resampled(self, inner: Map, *, guard: float | None = None) -> GridMap:
        """Return l∘inner re-sampled on l's own lattice; ``@`` keeps it exact, as another type."""
        return resample_to_grid(Composition(self, inner), self.knots, guard=guard)

    def resample(self, knots: int | tuple[int, int], *, guard: float | None = None) -> GridMap:
        """Return the grid map with this map's values on another lattice."""
        return resample_to_grid(self, knot_pair(knots), guard=guard)


def _stretch(values: Tensor, size: int, dim: int) -> Tensor:
    """Interpolate linearly along ``dim`` to ``size`` samples; the ends stay on the ends."""
    place = coordinates(size, dtype=values.dtype, device=values.device) * (values.shape[dim] - 1)
    left = place.floor().clamp_max(values.shape[dim] - 2).long()
    weight = (place - left).view(-1, *(1 for _ in range(dim + 1, values.dim())))
    return values.index_select(dim, left).lerp_(values.index_select(dim, left + 1), weight)


def resample_to_grid(m: Map, knots: tuple[int, int], *, guard: float | None = None) -> GridMap:
    """Return the grid map that equals ``m`` on a ``knots`` = (Nx, Ny) lattice; the sides stay exactly in place."""
    displacement = m.displacement_field(knots[1], knots[0]).permute(0, 3, 1, 2)
    x = F.pad(displacement[:, 0, :, 1:-1], (1, 1))
    y = F.pad(displacement[:, 1, 1:-1, :], (0, 0, 1, 1))
    return GridMap(torch.stack((x, y), dim=1)).guarded(guard)
