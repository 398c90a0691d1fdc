"""What an image shows, as a function of its index: which three digits, in which layout, at which sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.lab.randomness import uniform

__all__ = ["LAYOUTS", "ClassTable", "Scenes", "draw_scenes"]

# Where the centres of the three digits lie in the unit square, (x, y), in reading order.
LAYOUTS = {
    "row": ((1 / 6, 1 / 2), (1 / 2, 1 / 2), (5 / 6, 1 / 2)),
    "column": ((1 / 2, 1 / 6), (1 / 2, 1 / 2), (1 / 2, 5 / 6)),
    "diagonal": ((1 / 6, 1 / 6), (1 / 2, 1 / 2), (5 / 6, 5 / 6)),
}
NUMBERS = 1000
STRIDE = 617  # shares no divisor with 1000, so a thousand steps visit every number once


@dataclass(frozen=True)
class Scenes:
    """``labels`` 0 to 999 ``(B,)``, ``digits`` by their place among the digit images ``(B, 3)``, ``layouts`` by their
    place in :data:`LAYOUTS` ``(B,)``, and ``factors`` ``(B, 3)``, float64.
    """

    labels: Tensor
    digits: Tensor
    layouts: Tensor
    factors: Tensor


@dataclass(frozen=True)
class ClassTable:
    """The digit images sorted by class: class c is ``order[first[c] : first[c] + count[c]]``."""

    order: Tensor
    first: Tensor
    count: Tensor

    @staticmethod
    def of(labels: Tensor) -> ClassTable:
        count = torch.bincount(labels, minlength=10)
        return ClassTable(torch.argsort(labels, stable=True), count.cumsum(0) - count, count)

    def to(self, device: str | torch.device) -> ClassTable:
        return ClassTable(self.order.to(device), self.first.to(device), self.count.to(device))


def draw_scenes(
    index: Tensor, table: ClassTable, *, seed: int, split: str, factors: tuple[float, float], variant: int = 0
) -> Scenes:
    """The scenes of the images ``index`` ``(B,)``, on its device.

    Every thousand consecutive indices hold every number once. A variant has the digits and the layout of its image
    and other factors. The same index at another range of factors shows the same scene at other sizes.
    """
    start = int(1000 * uniform(seed, f"mnist/{split}/start", torch.zeros(1, dtype=torch.int64)))
    labels = (STRIDE * index + start) % NUMBERS
    classes = torch.stack([labels // 100, labels // 10 % 10, labels % 10], dim=-1)
    chance = uniform(seed, f"mnist/{split}/digits", index, 4)
    digits = table.order[table.first[classes] + (chance[:, :3] * table.count[classes]).long()]
    low, high = factors
    sizes = low + (high - low) * uniform(seed, f"mnist/{split}/factors/{variant}", index, 3)
    return Scenes(labels, digits, (chance[:, 3] * len(LAYOUTS)).long(), sizes)
