"""The metrics of segmentation on a stream of images: mIoU, also without background and of small objects, and EquE."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.randomness import Draws
from localscale.lab.tasks.task import Predict, Transform
from localscale.maps.base import Map
from localscale.warp import scale, unscale

__all__ = ["IGNORED", "UNIFORM", "MaskMetrics"]

IGNORED = -100  # label of pixels that neither the loss nor an IoU counts, as in torch
KINDS = ("squared", "l2", "relative")
UNIFORM = RandomScaling(family="separable", distribution="simplex")  # the fold guard would shrink grid maps
"""The paper's Ω: increments uniform on the simplex."""


class MaskMetrics:
    """Accumulates the metrics of a segmenter over batches, in any number of processes.

    Args:
        classes: number of classes.
        pixels: number of pixels of an image.
        scaling: random scaling of the images for EquE (Φ).
        variants: number of scalings of each image.
        uniform_variants: number of scalings of each image by ``UNIFORM`` maps, for EquE over the paper's Ω.
        seed: seed of the scalings.
        device: device of images and labels.
    """

    def __init__(
        self,
        classes: int,
        pixels: int,
        *,
        scaling: RandomScaling,
        variants: int,
        uniform_variants: int = 0,
        seed: int,
        device: torch.device,
    ) -> None:
        from localscale.metrics.streaming import SmallObjectIoU, mean_iou

        self.scaling, self.variants, self.uniform_variants, self.seed = scaling, variants, uniform_variants, seed
        self.iou = mean_iou(classes, ignore_index=IGNORED).to(device)
        self.object_iou = mean_iou(classes, ignore_index=IGNORED, background=0).to(device) if classes > 1 else None
        self.small = SmallObjectIoU(classes, pixels, ignore_index=IGNORED).to(device)
        self.drawn, self.uniform = _Equivariance(classes, device), _Equivariance(classes, device)

    def update(self, images: Tensor, labels: Tensor, index: Tensor, predict: Predict, normalise: Transform) -> Tensor:
        """Add images ``(B, 3, H, W)`` in [0,1] of numbers ``index`` with labels ``(B, H, W)``; return their scores."""
        logits = predict(normalise(images)).float()
        self.iou.update(logits, labels)
        if self.object_iou is not None:
            self.object_iou.update(logits, labels)
        self.small.update(logits.argmax(1), labels)
        answer = logits.softmax(1)
        draws = Draws(self.seed, index.to(images.device))
        for variant in range(self.variants):  # u = Φ⁻¹ is drawn, and Φ in the second loop
            u = self.scaling.maps(draws, f"evaluation/{variant}")
            scaled = predict(normalise(unscale(images, u))).float().softmax(1)
            self.drawn.update(answer, scaled, labels, u.inverse())
        for variant in range(self.uniform_variants):
            m = UNIFORM.maps(draws, f"uniform/{variant}")
            scaled = predict(normalise(scale(images, m))).float().softmax(1)
            self.uniform.update(answer, scaled, labels, m)
        return logits

    def compute(self) -> dict[str, Any]:
        """Return the metrics as JSON values, the same in every process."""
        found = {
            "variants": self.variants,
            "mean_iou": float(self.iou.compute()),
            "mean_iou_objects": None if self.object_iou is None else _or_none(float(self.object_iou.compute())),
            "small_object_iou": _or_none(float(self.small.compute())),
            **self.drawn.compute(),
        }
        if self.uniform_variants:
            found["uniform"] = {"variants": self.uniform_variants, **self.uniform.compute()}
        return found


class _Equivariance:
    """EquE in every kind, its floor, and how far the maps move points, for one distribution of maps."""

    def __init__(self, classes: int, device: torch.device) -> None:
        from torchmetrics import MeanMetric

        from localscale.metrics.streaming import EquivarianceError, EquivarianceFloor

        self.errors = {kind: EquivarianceError(kind).to(device) for kind in KINDS}
        self.floors = {kind: EquivarianceFloor(classes, kind).to(device) for kind in KINDS}
        self.displacement = MeanMetric().to(device)

    def update(self, answer: Tensor, scaled: Tensor, labels: Tensor, m: Map) -> None:
        """Add masks M(I) and M(S(I; Φ)), the labels of I, and the maps Φ."""
        for error in self.errors.values():
            error.update(answer, scaled, m)
        for floor in self.floors.values():
            floor.update(labels, m)
        self.displacement.update(m.mean_displacement())

    def compute(self) -> dict[str, Any]:
        return {
            "equivariance_error": {kind: float(error.compute()) for kind, error in self.errors.items()},
            "equivariance_floor": {kind: float(floor.compute()) for kind, floor in self.floors.items()},
            "displacement": float(self.displacement.compute()),
        }


def _or_none(value: float) -> float | None:
    """Return None for NaN, which JSON lacks."""
    return None if math.isnan(value) else value
