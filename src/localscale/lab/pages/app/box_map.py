"""Maps that scale one box of an image; the box's surroundings make room, and the rest of the image stays as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from localscale.maps.base import InverseMethod, Map

__all__ = ["BoxMap"]


class BoxMap(Map):
    """A batch of maps that take the boxes ``inner`` to ``target`` and leave everything outside ``outer`` in place.

    All boxes are ``(B, 4)``: left, top, right and bottom, as fractions of the sides; ``outer`` contains the other two.
    A point between ``inner`` and ``outer`` lies on a box at a level t between them, where t = 0 is ``inner`` and t = 1
    is ``outer``. It goes to the same place on the box at level t between ``target`` and ``outer``, so the inverse is
    the map with ``inner`` and ``target`` exchanged.

    >>> boxes = torch.tensor([[0.4, 0.4, 0.6, 0.6], [0.3, 0.3, 0.7, 0.7], [0.2, 0.2, 0.8, 0.8]])
    >>> m = BoxMap(*boxes[:, None])
    >>> m(torch.tensor([[[0.4, 0.5], [0.3, 0.5], [0.1, 0.5]]]))[0, :, 0]
    tensor([0.3000, 0.2500, 0.1000])
    """

    def __init__(self, inner: Tensor, target: Tensor, outer: Tensor) -> None:
        self.inner, self.target, self.outer = inner, target, outer

    @property
    def batch(self) -> int:
        return len(self.inner)

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def displacement(self, points: Tensor) -> Tensor:
        inner, target, outer = (box[:, None] for box in (self.inner, self.target, self.outer))
        width = (outer - inner).abs().clamp_min(torch.finfo(self.dtype).tiny)
        beyond = torch.cat((inner[..., :2] - points, points - inner[..., 2:]), dim=-1) / width
        level = beyond.amax(dim=-1, keepdim=True).clamp(0, 1)
        start, end = torch.lerp(inner, outer, level).chunk(2, dim=-1)
        new_start, new_end = torch.lerp(target, outer, level).chunk(2, dim=-1)
        moved = torch.lerp(new_start - start, new_end - end, (points - start) / (end - start))
        return torch.where(level < 1, moved, 0.0)

    def jacobian(self, points: Tensor) -> Tensor:
        with torch.enable_grad():
            at = points.detach().requires_grad_()
            moved = at + self.displacement(at)
            rows = [torch.autograd.grad(moved[..., axis].sum(), at, retain_graph=True)[0] for axis in (0, 1)]
        return torch.stack(rows, dim=-2)

    def min_determinant(self) -> Tensor:
        # Between the boxes, the determinant on each of the four sides changes monotonically with the level.
        across = (self.outer - self.target).abs() / (self.outer - self.inner).abs()
        sides = across.nan_to_num(1.0)[:, [0, 2, 1, 3]].unflatten(1, (2, 2))  # (B, axis, side)
        growth = self._sides(self.target) / self._sides(self.inner)
        least = torch.minimum(sides, sides * growth.flip(1)[..., None]).flatten(1).amin(dim=1)
        return torch.minimum(least, growth.prod(dim=1)).clamp_max(1)

    def _invert(self, method: InverseMethod) -> Map:
        return BoxMap(self.target, self.inner, self.outer)

    @staticmethod
    def _sides(boxes: Tensor) -> Tensor:
        return boxes[:, 2:] - boxes[:, :2]
