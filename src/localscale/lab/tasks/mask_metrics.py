"""The metrics of segmentation on a stream of images: mIoU, also of small objects, EquE, and the floor of EquE."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.randomness import Draws
from localscale.lab.tasks.task import Predict, Transform
from localscale.warp import unscale

__all__ = ["IGNORED", "MaskMetrics"]

IGNORED = -100  # label of pixels that neither the loss nor an IoU counts, as in torch
KINDS = ("squared", "l2", "relative")


class MaskMetrics:
    """Accumulates the metrics of a segmenter over batches, in any number of processes.

    Args:
        classes: number of classes.
        pixels: number of pixels of an image.
        scaling: random scaling of the images for EquE (Φ).
        variants: number of scalings of each image.
        seed: seed of the scalings.
        device: device of images and labels.
    """

    def __init__(
        self, classes: int, pixels: int, *, scaling: RandomScaling, variants: int, seed: int, device: torch.device
    ) -> None:
        from localscale.metrics.streaming import EquivarianceError, EquivarianceFloor, SmallObjectIoU, mean_iou

        self.scaling, self.variants, self.seed = scaling, variants, seed
        self.iou = mean_iou(classes, ignore_index=IGNORED).to(device)
        self.small = SmallObjectIoU(classes, pixels, ignore_index=IGNORED).to(device)
        self.errors = {kind: EquivarianceError(kind).to(device) for kind in KINDS}
        self.floors = {kind: EquivarianceFloor(classes, kind).to(device) for kind in KINDS}

    def update(self, images: Tensor, labels: Tensor, index: Tensor, predict: Predict, normalise: Transform) -> Tensor:
        """Add images ``(B, 3, H, W)`` in [0,1] of numbers ``index`` with labels ``(B, H, W)``; return their scores."""
        logits = predict(normalise(images)).float()
        self.iou.update(logits, labels)
        self.small.update(logits.argmax(1), labels)
        answer = logits.softmax(1)
        for variant in range(self.variants):
            u = self.scaling.maps(Draws(self.seed, index.to(images.device)), f"evaluation/{variant}")
            scaled = predict(normalise(unscale(images, u))).float().softmax(1)
            for error in self.errors.values():
                error.update(answer, scaled, u.inverse())
            for floor in self.floors.values():
                floor.update(labels, u.inverse())
        return logits

    def compute(self) -> dict[str, Any]:
        """Return the metrics as JSON values, the same in every process."""
        small = float(self.small.compute())
        return {
            "variants": self.variants,
            "mean_iou": float(self.iou.compute()),
            "small_object_iou": None if math.isnan(small) else small,  # JSON lacks NaN
            "equivariance_error": {kind: float(error.compute()) for kind, error in self.errors.items()},
            "equivariance_floor": {kind: float(floor.compute()) for kind, floor in self.floors.items()},
        }
