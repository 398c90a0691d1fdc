"""Monotone piecewise-linear maps of the line: the paper's l_Φ (Sec. 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.conventions import coordinates
from localscale.errors import MapError

__all__ = ["MonotoneMap", "displacements_from_logits", "interpolate", "logits_from_displacements"]


def displacements_from_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the knot displacements φ_n − n/N ``(..., N + 1)`` of increasing maps, for raw parameters ``(..., N)``.

    A softmax gives positive increments that sum to one; their running sum is Φ. Equal logits give exactly zero, and
    both ends are exactly zero, so the ends of [0,1] never move.
    """
    surplus = torch.softmax(logits / temperature, dim=-1) - 1 / logits.shape[-1]
    inner = surplus[..., :-1].cumsum(dim=-1)
    return torch.nn.functional.pad(inner, (1, 1))


def logits_from_displacements(displacements: Tensor) -> Tensor:
    """Return the raw parameters ``(..., N)`` of ``displacements`` ``(..., N + 1)``.

    They are log(increment · N), so the identity gives exactly zero. Increments that are not positive, which trial
    points of a solver may have, are replaced by tiny ones.
    """
    surplus = displacements.diff(dim=-1) * (displacements.shape[-1] - 1)
    return torch.log1p(surplus.clamp_min(-1 + torch.finfo(displacements.dtype).eps))


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Evaluate the piecewise-linear function through (knots, values) at ``x``.

    ``x`` is ``(..., P)``; ``knots`` (increasing) and ``values`` are ``(..., N)`` with the same leading shape. Swapping
    knots and values evaluates the exact inverse of an increasing function.
    """
    left = (x.unsqueeze(-1) >= knots.unsqueeze(-2)[..., 1:-1]).sum(dim=-1)
    k0, k1 = knots.gather(-1, left), knots.gather(-1, left + 1)
    v0, v1 = values.gather(-1, left), values.gather(-1, left + 1)
    t = (x - k0) / (k1 - k0).clamp_min(torch.finfo(x.dtype).tiny)
    return v0 + t * (v1 - v0)


@dataclass(frozen=True, eq=False)
class MonotoneMap:
    """A batch of increasing piecewise-linear bijections of [0,1]: l(knots[b, n]) = values[b, n].

    Knots need not be evenly spaced; ``even`` is true if they are known to be. The inverse swaps knots and values, and a
    composition uses the knots of both maps, so these maps form a group exactly (paper, Lemma 1).

    >>> l = MonotoneMap.from_logits(torch.tensor([[0.0, 1.0, 0.0]]))
    >>> x = torch.tensor([[0.1, 0.5, 0.9]])
    >>> torch.allclose(l.inverse()(l(x)), x)
    True
    """

    knots: Tensor
    values: Tensor
    even: bool = False

    @classmethod
    def from_displacements(cls, displacements: Tensor) -> MonotoneMap:
        """Build maps from the displacements ``(B, N)`` of even knots; the first and last must be zero."""
        knots = coordinates(displacements.shape[-1], dtype=displacements.dtype, device=displacements.device).expand_as(
            displacements
        )
        return cls(knots, knots + displacements, even=True)

    @classmethod
    def from_logits(cls, logits: Tensor, temperature: float = 1.0) -> MonotoneMap:
        """Build maps with N knots from raw parameters ``(B, N − 1)``."""
        if logits.dim() != 2 or logits.shape[-1] < 1:
            raise MapError(f"logits have shape {tuple(logits.shape)}; expected (batch, knots − 1) with knots ≥ 2")
        return cls.from_displacements(displacements_from_logits(logits, temperature))

    @classmethod
    def identity(cls, batch: int = 1, knots: int = 2, *, dtype: torch.dtype = torch.float32) -> MonotoneMap:
        """Return the identity on even knots."""
        return cls.from_displacements(torch.zeros(batch, knots, dtype=dtype))

    def displacement(self, x: Tensor) -> Tensor:
        """Return l(x) − x at ``x`` ``(B, P)``; exactly zero for the identity."""
        return interpolate(x, self.knots, self.values - self.knots)

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.displacement(x)

    def local_scale(self, x: Tensor) -> Tensor:
        """Return the local scaling factor dl/dx at ``x`` ``(B, P)``; at a knot, that of the segment to its right."""
        left = (x.unsqueeze(-1) >= self.knots.unsqueeze(-2)[..., 1:-1]).sum(dim=-1)
        return self.slopes.gather(-1, left)

    @property
    def slopes(self) -> Tensor:
        """dl/dx of every segment, shape ``(B, N − 1)``.

        In a composition two knots may coincide up to rounding. The slope of a segment that is too short is set to 1,
        the mean slope of every map, so that it is neither the smallest nor the largest.
        """
        run, rise = self.knots.diff(dim=-1), self.values.diff(dim=-1)
        thick = run > 1000 * torch.finfo(run.dtype).eps
        return torch.where(thick, rise / torch.where(thick, run, 1), 1)

    def inverse(self) -> MonotoneMap:
        """Return the exact inverse: knots and values are swapped."""
        return MonotoneMap(self.values, self.knots)

    def __matmul__(self, other: MonotoneMap) -> MonotoneMap:
        """Return ``(a @ b)(x) = a(b(x))``, exact: its knots are b's, and the points that b maps onto a's."""
        pulled_back = other.inverse()(self.knots[..., 1:-1])
        knots = torch.cat((other.knots, pulled_back), dim=-1).clamp(0, 1).sort(dim=-1).values
        return MonotoneMap(knots, self(other(knots)))

    def resample(self, knots: int) -> MonotoneMap:
        """Return the map with the same values on ``knots`` even knots."""
        even = coordinates(knots, dtype=self.knots.dtype, device=self.knots.device).expand(self.knots.shape[0], -1)
        return MonotoneMap.from_displacements(torch.nn.functional.pad(self.displacement(even)[..., 1:-1], (1, 1)))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> MonotoneMap:
        """Return the same map on another device or in another floating dtype."""
        knots, values = (part.to(device=device, dtype=dtype) for part in (self.knots, self.values))
        return MonotoneMap(knots, values, self.even)

    def __getitem__(self, rows: slice) -> MonotoneMap:
        """Return some maps of the batch."""
        return MonotoneMap(self.knots[rows], self.values[rows], self.even)

    def detach(self) -> MonotoneMap:
        """Return the same map without its gradient."""
        return MonotoneMap(self.knots.detach(), self.values.detach(), self.even)
