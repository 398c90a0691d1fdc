"""The metrics over whole datasets: fed batch by batch, in any number of processes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from localscale.errors import ConfigError, ShapeError, near_misses
from localscale.metrics.functional import VARIANTS, invariance_error

__all__ = ["InvarianceError", "PerScale", "PerScaleAccuracy", "top1"]


def top1(classes: int) -> Metric:
    """Top-1 accuracy over all images, whatever their class: torchmetrics' own, fed with logits and labels.

    >>> metric = top1(3)
    >>> metric.update(torch.eye(3), torch.tensor([0, 1, 1]))
    >>> round(metric.compute().item(), 4)
    0.6667
    """
    # Its own checks look at every batch from the host, which would make a GPU wait.
    return MulticlassAccuracy(num_classes=classes, average="micro", validate_args=False)


class InvarianceError(Metric):
    """InvE over a dataset (paper, Eq. inv_err); ``variant`` as in :func:`invariance_error`.

    >>> metric = InvarianceError()
    >>> metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    >>> metric.compute()
    tensor(1., dtype=torch.float64)
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    total: Tensor
    count: Tensor

    def __init__(self, variant: str = "squared", **settings: Any) -> None:
        super().__init__(**settings)
        if variant not in VARIANTS:
            raise ConfigError(f"no variant {variant!r}: {near_misses(str(variant), VARIANTS)}")
        self.variant = variant
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, reference: Tensor, variants: Tensor) -> None:
        """Probabilities on images ``(B, K)``, and on V variants of each ``(B, V, K)``."""
        error = invariance_error(reference.double(), variants.double(), variant=self.variant)
        pairs = variants.shape[0] * variants.shape[1]
        if pairs:  # a mean over no images would be NaN
            self.total += pairs * error
            self.count += pairs

    def compute(self) -> Tensor:
        """The mean over all images and variants; NaN before the first."""
        return self.total / self.count


class PerScale(NamedTuple):
    """Accuracy at each scale, and their mean and standard deviation, every scale counting the same.

    The deviation is that of the scales themselves (divided by their number), as in the paper's tables.
    """

    accuracy: dict[float, float]
    mean: float
    std: float


class PerScaleAccuracy(Metric):
    """Top-1 accuracy at each of the given scales (or brackets, named by their lower ends).

    >>> metric = PerScaleAccuracy((0.5, 2.0))
    >>> metric.update(torch.eye(2), torch.tensor([0, 0]), torch.tensor([0.5, 2.0]))
    >>> metric.compute()
    PerScale(accuracy={0.5: 1.0, 2.0: 0.0}, mean=0.5, std=0.5)
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True
    right: Tensor
    seen: Tensor

    def __init__(self, scales: tuple[float, ...], **settings: Any) -> None:
        super().__init__(**settings)
        if not scales or len(set(scales)) != len(scales):
            raise ConfigError(f"scales are {scales}; expected at least one, each once")
        self.scales = tuple(float(scale) for scale in scales)
        self.add_state("right", torch.zeros(len(scales), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("seen", torch.zeros(len(scales), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor, scales: Tensor | float) -> None:
        """Logits ``(N, K)``, labels ``(N,)``, and the scale of each image, or one for all."""
        known = torch.tensor(self.scales, dtype=torch.float64, device=logits.device)
        given = torch.as_tensor(scales, dtype=torch.float64, device=logits.device)
        if logits.dim() != 2 or labels.shape != logits.shape[:1] or given.shape not in ((), labels.shape):
            raise ShapeError(
                f"logits have shape {tuple(logits.shape)}, labels {tuple(labels.shape)}, scales {tuple(given.shape)}; "
                "expected (n, classes), (n,), and (n,) or one number"
            )
        given = given.expand(len(labels))
        match = (given[:, None] - known).abs() < 1e-6  # 0.7 in float32 is 0.7
        right = logits.argmax(dim=1) == labels
        self.seen += match.sum(0)
        self.right += (match & right[:, None]).sum(0)

    def compute(self) -> PerScale:
        """Accuracy per scale; NaN where no image was seen."""
        accuracy = [r / s if s else math.nan for r, s in zip(self.right.tolist(), self.seen.tolist(), strict=True)]
        mean = sum(accuracy) / len(accuracy)
        std = math.sqrt(sum((a - mean) ** 2 for a in accuracy) / len(accuracy))
        return PerScale(dict(zip(self.scales, accuracy, strict=True)), mean, std)
