"""Measure accuracy, overlap, and how much predictions change under local scaling.

Functions work on tensors of one batch. The classes are torchmetrics: call ``update`` for every batch, in any number of
processes, and then ``compute``.
"""

from typing import Any

from localscale.metrics.comparison import Difference, paired_difference
from localscale.metrics.functional import VARIANTS, equivariance_error, invariance_error, per_scale_accuracy
from localscale.metrics.segmentation import equivariance_floor, image_iou
from localscale.metrics.sizes import SizeSpread, size_spread

__all__ = [
    "VARIANTS",
    "Difference",
    "EquivarianceError",
    "EquivarianceFloor",
    "GroupConsistency",
    "InvarianceError",
    "PerScale",
    "PerScaleAccuracy",
    "SizeSpread",
    "SmallObjectIoU",
    "equivariance_error",
    "equivariance_floor",
    "image_iou",
    "invariance_error",
    "mean_iou",
    "paired_difference",
    "per_scale_accuracy",
    "size_spread",
    "top1",
]


def __getattr__(name: str) -> Any:
    """Import torchmetrics, which takes a second or two, when one of its metrics is first used."""
    if name in __all__:  # Python calls this only for names that are not imported above
        from localscale.metrics import streaming

        return getattr(streaming, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
