"""Metrics of torchmetrics that refuse wrong shapes and labels in one sentence."""

from __future__ import annotations

from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from localscale.errors import ShapeError
from localscale.metrics.functional import check_kinds, check_labels

__all__ = ["CheckedAccuracy", "CheckedIoU"]


class CheckedAccuracy(MulticlassAccuracy):
    """Accuracy of logits ``(B, K)`` or classes ``(B,)``; an empty batch changes nothing."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch; labels are checked on a CPU only, as reading them would synchronise a GPU with the host."""
        classes = (self.num_classes,) if preds.dim() == 2 else ()
        if target.dim() != 1 or preds.shape != (*target.shape, *classes):
            raise ShapeError(
                f"logits have shape {tuple(preds.shape)} and labels {tuple(target.shape)}; "
                f"expected (images, {self.num_classes}) and (images,)"
            )
        check_kinds(logits=preds, labels=target, counts=self.tp)
        if not len(target):
            return
        if target.device.type == "cpu":
            check_labels(target, self.num_classes)
        super().update(preds, target)


class CheckedIoU(MulticlassJaccardIndex):
    """Mean IoU of logits ``(B, K, H, W)`` or label maps ``(B, H, W)``; an empty batch changes nothing."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of label maps with values in 0 … classes − 1, or ``ignore_index``."""
        logits = preds.dim() == target.dim() + 1
        shape = (preds.shape[0], *preds.shape[2:]) if logits else preds.shape
        if target.dim() < 2 or shape != target.shape or (logits and preds.shape[1] != self.num_classes):
            raise ShapeError(
                f"predictions have shape {tuple(preds.shape)} and labels {tuple(target.shape)}; expected "
                f"(images, height, width) for both, or (images, {self.num_classes}, height, width) for logits"
            )
        check_kinds(predictions=preds, labels=target, counts=self.confmat)
        if not target.numel():
            return
        check_labels(target if self.ignore_index is None else target[target != self.ignore_index], self.num_classes)
        if not logits:
            check_labels(preds, self.num_classes)
        super().update(preds, target)
