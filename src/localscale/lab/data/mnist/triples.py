"""Choose the three digits of each image, their layout and their sizes, from the image's index alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.lab.randomness import uniform

__all__ = ["LAYOUTS", "DigitTriples", "DigitsByClass", "draw_triples"]

# The centres (x, y) of the three digits in the unit square, in reading order.
LAYOUTS = {
    "row": ((1 / 6, 1 / 2), (1 / 2, 1 / 2), (5 / 6, 1 / 2)),
    "column": ((1 / 2, 1 / 6), (1 / 2, 1 / 2), (1 / 2, 5 / 6)),
    "diagonal": ((1 / 6, 1 / 6), (1 / 2, 1 / 2), (5 / 6, 5 / 6)),
}
NUMBERS = 1000
STRIDE = 617  # coprime to 1000, so 1000 consecutive indices visit every number once


@dataclass(frozen=True)
class DigitTriples:
    """A batch of three-digit numbers, each digit with its own size.

    ``labels`` ``(B,)`` are the numbers 0 to 999, ``digits`` ``(B, 3)`` index the digit images, ``layouts`` ``(B,)``
    index :data:`LAYOUTS`, and ``factors`` ``(B, 3)``, float64, are the digits' scale factors.
    """

    labels: Tensor
    digits: Tensor
    layouts: Tensor
    factors: Tensor


@dataclass(frozen=True)
class DigitsByClass:
    """The indices of the digit images sorted by class: class c is ``order[first[c] : first[c] + count[c]]``."""

    order: Tensor
    first: Tensor
    count: Tensor

    @staticmethod
    def of(labels: Tensor) -> DigitsByClass:
        """Sort the digit images with the classes ``labels`` ``(N,)``."""
        count = torch.bincount(labels, minlength=10)
        return DigitsByClass(torch.argsort(labels, stable=True), count.cumsum(0) - count, count)

    def to(self, device: str | torch.device) -> DigitsByClass:
        return DigitsByClass(self.order.to(device), self.first.to(device), self.count.to(device))


def draw_triples(
    index: Tensor, by_class: DigitsByClass, *, seed: int, split: str, factors: tuple[float, float], variant: int = 0
) -> DigitTriples:
    """Return the triples of the images ``index`` ``(B,)``, on the index's device.

    Every 1000 consecutive indices contain every number once. A variant keeps the digits and the layout of its image and
    draws other factors. Another range of ``factors`` also keeps the digits and the layout.
    """
    start = int(NUMBERS * uniform(seed, f"mnist/{split}/start", torch.zeros(1, dtype=torch.int64)))
    labels = (STRIDE * index + start) % NUMBERS
    classes = torch.stack([labels // 100, labels // 10 % 10, labels % 10], dim=-1)
    chance = uniform(seed, f"mnist/{split}/digits", index, 4)
    digits = by_class.order[by_class.first[classes] + (chance[:, :3] * by_class.count[classes]).long()]
    low, high = factors
    sizes = low + (high - low) * uniform(seed, f"mnist/{split}/factors/{variant}", index, 3)
    return DigitTriples(labels, digits, (chance[:, 3] * len(LAYOUTS)).long(), sizes)
