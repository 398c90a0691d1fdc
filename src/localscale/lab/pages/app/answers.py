"""What both models of a pair say of an image, and of the same image with its marked part at many sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.canonicalizer import SiteReport
from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.scaling import box_maps, factors_to_try
from localscale.warp import scale

__all__ = ["Answers", "Curve", "ask", "best", "trace"]

SIZES = 15  # points of a curve
AT_ONCE = 5  # images in a batch


@dataclass(frozen=True, eq=False)
class Answers:
    """Probabilities ``(B, K)`` of base and DEC, and what happened at each site."""

    base: Tensor
    dec: Tensor
    sites: dict[str, SiteReport]


@dataclass(frozen=True)
class Curve:
    """How sure base and DEC are of one class at each factor."""

    label: int
    factors: list[float]
    base: list[float]
    dec: list[float]


@torch.no_grad()
def ask(pair: Pair, images: Tensor) -> Answers:
    """Both answers on ``images`` ``(B, 3, H, W)`` in [0,1]."""
    pixels = pair.normalise(images)
    logits, sites = pair.dec(pixels, return_report=True)
    if pair.base is not None:
        base = pair.base(pixels)
    else:
        with pair.dec.disabled():
            base = pair.dec(pixels)
    return Answers(base.float().softmax(1), logits.float().softmax(1), sites)


def best(probabilities: Tensor, count: int = 5) -> list[tuple[int, float]]:
    """The likeliest classes of one answer ``(K,)`` and their probabilities.

    >>> best(torch.tensor([0.25, 0.5, 0.25]), count=1)
    [(1, 0.5)]
    """
    values, labels = probabilities.topk(min(count, len(probabilities)))
    return list(zip(labels.tolist(), values.tolist(), strict=True))


def trace(pair: Pair, image: Tensor, box: Box, label: int) -> Curve:
    """How sure both models are of ``label`` while the box of ``image`` ``(1, 3, H, W)`` goes through its sizes."""
    factors = factors_to_try(box, SIZES)
    base, dec = [], []
    for first in range(0, len(factors), AT_ONCE):
        m = box_maps(box, factors[first : first + AT_ONCE])
        found = ask(pair, scale(image.expand(m.batch, -1, -1, -1), m))
        base += found.base[:, label].tolist()
        dec += found.dec[:, label].tolist()
    return Curve(label, factors, base, dec)
