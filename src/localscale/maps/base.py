"""The interface of all maps of the plane, and their composition."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Literal, Self

import torch
from torch import Tensor

from localscale.conventions import lattice
from localscale.errors import MapError, ShapeError
from localscale.maps.monotone import MonotoneMap

__all__ = ["Composition", "FamilyMap", "InverseMethod", "Map", "knot_pair"]

InverseMethod = Literal["exact", "rowwise"]


def knot_pair(knots: int | tuple[int, int]) -> tuple[int, int]:
    """Return ``knots`` as (along x, along y), or raise ``MapError``."""
    pair = tuple(knots) if isinstance(knots, tuple | list) else (knots, knots)
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) for n in pair):
        raise MapError(f"knots is {knots!r}; expected an integer or a pair of integers (along x, along y)")
    if min(pair) < 2:
        raise MapError(f"knots is {knots!r}; a map needs at least 2 control points along each axis")
    return pair


class Map(ABC):
    """A batch of bijections l of [0,1]² that keep each side of the square on itself.

    Convention: points are ``(B, P, 2)`` in (x, y) order with x to the right and y down; see
    ``localscale.conventions``.
    """

    @property
    @abstractmethod
    def batch(self) -> int:
        """The number of maps."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """float32 or float64."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the maps."""

    @abstractmethod
    def displacement(self, points: Tensor) -> Tensor:
        """Return l(p) − p at ``points`` ``(B, P, 2)``."""

    @abstractmethod
    def jacobian(self, points: Tensor) -> Tensor:
        """Return ∂l/∂p at ``points`` ``(B, P, 2)`` as ``(B, P, 2, 2)``: row = output (x, y), column = input (x, y)."""

    @abstractmethod
    def min_determinant(self) -> Tensor:
        """The smallest Jacobian determinant over the square, shape ``(B,)``; at most 0 means the map folds."""

    @abstractmethod
    def _invert(self, method: InverseMethod) -> Map:
        """Return the inverse; ``method`` is valid."""

    def inverse(self, method: InverseMethod = "exact") -> Map:
        """Return l⁻¹: ``"exact"``, or ``"rowwise"`` for the paper's approximation (App. A2.2).

        The exact inverse is unique where the map does not fold; its gradients are exact to second order.
        """
        if method not in ("exact", "rowwise"):
            raise MapError(f'inverse method is {method!r}; expected "exact" or "rowwise"')
        return self._invert(method)

    def __call__(self, points: Tensor) -> Tensor:
        """Return l(p) at ``points`` ``(B, P, 2)``; points outside the square are first moved onto its border."""
        points = self._checked(points)
        return points + self.displacement(points)

    def local_scale(self, points: Tensor) -> Tensor:
        """Return √det ∂l/∂p, by which things at p become larger, shape ``(B, P)``; negative where the map folds."""
        (a, b), (c, d) = (row.unbind(-1) for row in self.jacobian(self._checked(points)).unbind(-2))
        determinant = a * d - b * c
        return determinant.sign() * determinant.abs().sqrt()

    def displacement_field(self, height: int, width: int) -> Tensor:
        """Return l(p) − p at every pixel of a ``height × width`` grid, shape ``(B, H, W, 2)``."""
        points = lattice(height, width, dtype=self.dtype, device=self.device).reshape(1, -1, 2)
        return self.displacement(points.expand(self.batch, -1, -1)).reshape(self.batch, height, width, 2)

    def displacement_lattices(self, height: int, width: int) -> tuple[Tensor, ...]:
        """Return displacements on even lattices, which linear interpolation to H×W turns into ``displacement_field``.

        They are one ``(B, 2, rows, columns)`` tensor, or, on different lattices, two ``(B, rows, columns)`` tensors
        along x and y. A family may use fewer points than there are pixels.
        """
        return (self.displacement_field(height, width).movedim(-1, 1),)

    def mean_displacement(self, size: int = 32) -> Tensor:
        """Return the mean distance from the identity, as a fraction of the image side, shape ``(B,)``."""
        return torch.linalg.vector_norm(self.displacement_field(size, size), dim=-1).mean(dim=(1, 2))

    def __matmul__(self, other: Map) -> Map:
        """``(a @ b)(p) = a(b(p))``, exact."""
        return Composition(self, other)

    def _parts(self) -> dict[str, Tensor | MonotoneMap | Map]:
        return {name: part for name, part in vars(self).items() if isinstance(part, Tensor | MonotoneMap | Map)}

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return the same map on another device or in another floating dtype."""
        if dtype not in (None, torch.float32, torch.float64):
            raise MapError(f"dtype is {dtype}; expected float32 or float64, also for half-precision features")
        moved = copy.copy(self)
        for name, part in self._parts().items():
            vars(moved)[name] = part.to(device=device, dtype=dtype)
        return moved

    def __getitem__(self, index: int | slice) -> Self:
        """Return the maps of some images of the batch: ``m[2]`` is a batch of one map, ``m[2:5]`` of three."""
        if isinstance(index, int):
            first = range(self.batch)[index]  # raises IndexError
            index = slice(first, first + 1)
        some = copy.copy(self)
        for name, part in self._parts().items():
            vars(some)[name] = part[index]
        return some

    def detach(self) -> Self:
        """Return the same map without its gradient."""
        cut = copy.copy(self)
        for name, part in self._parts().items():
            vars(cut)[name] = part.detach()
        return cut

    def _checked(self, points: Tensor) -> Tensor:
        if points.dim() != 3 or points.shape[-1] != 2:
            raise ShapeError(f"points have shape {tuple(points.shape)}; expected (batch, points, 2) in (x, y) order")
        if not points.is_floating_point():
            raise ShapeError(f"points have dtype {points.dtype}; expected a floating dtype")
        if points.shape[0] not in (1, self.batch):
            raise MapError(f"points are a batch of {points.shape[0]} for {self.batch} maps; expected 1 or {self.batch}")
        if points.device != self.device:
            raise MapError(f"the map is on {self.device} and the points on {points.device}; move one with .to(device)")
        return points.to(self.dtype).expand(self.batch, -1, -1).clamp(0, 1)


class FamilyMap(Map):
    """A map of a family in ``localscale.maps.FAMILIES``: one that raw parameters, or values on even knots, describe.

    A canonicalizer learns maps of a family. Its network returns raw parameters, and its solver iterates on ``state``.
    """

    @classmethod
    @abstractmethod
    def from_logits(
        cls, logits_x: Tensor, logits_y: Tensor, *, temperature: float = 1.0, guard: float | None = None
    ) -> Self:
        """Build maps from raw parameters along x and y; all zero gives the identity.

        ``guard`` is the smallest Jacobian determinant to allow; ``None`` sets no limit.
        """

    @staticmethod
    @abstractmethod
    def logit_shapes(knots: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of one map's raw parameters along x and y, for ``knots`` = (Nx, Ny)."""

    @property
    @abstractmethod
    def knots(self) -> tuple[int, int]:
        """Control points along x and y."""

    @abstractmethod
    def state(self) -> Tensor:
        """Return the map's values on its knots as one vector per map, ``(B, D)``."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Tensor, knots: tuple[int, int]) -> Self:
        """Build maps from their ``state``."""

    @abstractmethod
    def logits(self) -> tuple[Tensor, Tensor]:
        """Return raw parameters that give this map back; 0 for the identity."""

    @abstractmethod
    def compose_resampled(self, inner: Self, *, guard: float | None = None) -> Self:
        """Return l∘inner, re-sampled on l's own knots."""


class Composition(Map):
    """a∘b, kept as its two parts, because the composition of two grid maps is not a grid map."""

    def __init__(self, outer: Map, inner: Map) -> None:
        if outer.batch != inner.batch:
            raise MapError(f"cannot compose {outer.batch} maps with {inner.batch}; expected equal batches")
        if outer.dtype != inner.dtype:
            raise MapError(f"cannot compose a {outer.dtype} map with a {inner.dtype} one; convert with .to(dtype=…)")
        if outer.device != inner.device:
            raise MapError(
                f"cannot compose a map on {outer.device} with one on {inner.device}; move one with .to(device)"
            )
        self.outer, self.inner = outer, inner

    @property
    def batch(self) -> int:
        return self.inner.batch

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def displacement(self, points: Tensor) -> Tensor:
        first = self.inner.displacement(points)
        return first + self.outer.displacement((points + first).clamp(0, 1))

    def jacobian(self, points: Tensor) -> Tensor:
        points = self._checked(points)
        return self.outer.jacobian(self.inner(points)) @ self.inner.jacobian(points)

    def min_determinant(self) -> Tensor:
        """Return the product of both minima: a lower bound where neither part folds."""
        return self.outer.min_determinant() * self.inner.min_determinant()

    def _invert(self, method: InverseMethod) -> Map:
        return self.inner.inverse(method) @ self.outer.inverse(method)
