"""Compare the two models of a pair: their predictions for an image, and for one part of it at many sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.canonicalizer import SiteReport
from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.scaling import box_maps, factors_to_try
from localscale.warp import scale

__all__ = ["Curve", "Predictions", "likeliest", "predict", "trace_curve"]

POINTS = 15  # factors on a curve
BATCH = 5


@dataclass(frozen=True, eq=False)
class Predictions:
    """Class probabilities ``(B, K)`` without DEC (base) and with it, and the report of each site."""

    base: Tensor
    dec: Tensor
    sites: dict[str, SiteReport]


@dataclass(frozen=True)
class Curve:
    """The probability of one class at each factor, without DEC (base) and with it."""

    label: int
    factors: list[float]
    base: list[float]
    dec: list[float]


@torch.no_grad()
def predict(pair: Pair, images: Tensor) -> Predictions:
    """Run both models on ``images`` ``(B, 3, H, W)`` in [0,1]."""
    pixels = pair.normalise(images)
    logits, sites = pair.dec(pixels, return_report=True)
    if pair.base is not None:
        base = pair.base(pixels)
    else:
        with pair.dec.disabled():
            base = pair.dec(pixels)
    return Predictions(base.float().softmax(1), logits.float().softmax(1), sites)


def likeliest(probabilities: Tensor, count: int = 5) -> list[tuple[int, float]]:
    """Return the ``count`` likeliest classes of ``(K,)`` probabilities, each with its probability.

    >>> likeliest(torch.tensor([0.25, 0.5, 0.25]), count=1)
    [(1, 0.5)]
    """
    values, labels = probabilities.topk(min(count, len(probabilities)))
    return list(zip(labels.tolist(), values.tolist(), strict=True))


def trace_curve(pair: Pair, image: Tensor, box: Box, label: int) -> Curve:
    """Scale the box of ``image`` ``(1, 3, H, W)`` by each factor in turn and record the probability of ``label``."""
    factors = factors_to_try(box, POINTS)
    base, dec = [], []
    for first in range(0, len(factors), BATCH):
        m = box_maps(box, factors[first : first + BATCH])
        predictions = predict(pair, scale(image.expand(m.batch, -1, -1, -1), m))
        base += predictions.base[:, label].tolist()
        dec += predictions.dec[:, label].tolist()
    return Curve(label, factors, base, dec)
