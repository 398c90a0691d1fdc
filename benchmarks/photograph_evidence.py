"""Canonical forms that magnify what a classifier's own answer rests on, without labels or training.

The weight of a position is the evidence there, see ``localscale.lab.data.imagenet.evidence``. Finding it takes a pass
of the classifier and a part of its backward pass.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import localscale as ls
from localscale.lab.data.imagenet.evidence import evidence_of

__all__ = ["evidence_weight", "magnified"]

FLOOR = 0.25  # this quantile of an image's evidence is subtracted as background
KNOTS, BACKGROUND = 8, 0.05  # of ls.map_from_scales


def evidence_weight(classifier: nn.Module, images: Tensor) -> Tensor:
    """Return the evidence for the likeliest class of each image, smoothed, from 0 to 1, ``(B, h, w)``."""
    evidence = evidence_of(classifier, images)
    around = F.avg_pool2d(F.pad(evidence[:, None], (1, 1, 1, 1), mode="replicate"), 3, stride=1)[:, 0]
    above = (around - around.flatten(1).quantile(FLOOR, dim=1)[:, None, None]).clamp_min(0)
    return above / above.amax(dim=(1, 2), keepdim=True).clamp_min(1e-9)


def magnified(classifier: nn.Module, images: Tensor, source: Tensor, zooms: Sequence[float]) -> dict[float, Tensor]:
    """Return a canonical form of the size of ``images`` for each of ``zooms``, sampled from the larger ``source``.

    What the classifier's answer to ``images`` rests on is magnified, at most by the zoom.
    """
    if not zooms:
        return {}
    weight, size = evidence_weight(classifier, images), (images.shape[-2], images.shape[-1])
    maps = {
        zoom: ls.map_from_scales(torch.full_like(weight, 1 / zoom), weight, knots=KNOTS, background=BACKGROUND)
        for zoom in zooms
    }
    return {zoom: ls.unscale(source, m, size=size) for zoom, m in maps.items()}
