"""Accumulate the metrics over a dataset, batch by batch, in any number of processes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from localscale.errors import ConfigError, ShapeError, near_misses
from localscale.maps.base import Map
from localscale.metrics.checked import CheckedAccuracy, CheckedIoU
from localscale.metrics.functional import VARIANTS, check_kinds, check_labels, equivariance_errors, invariance_error
from localscale.metrics.segmentation import check_background, check_classes, check_whole, class_ious, floor_errors

__all__ = [
    "EquivarianceError",
    "EquivarianceFloor",
    "GroupConsistency",
    "InvarianceError",
    "PerScale",
    "PerScaleAccuracy",
    "SmallObjectIoU",
    "mean_iou",
    "top1",
]


def top1(classes: int) -> Metric:
    """Return torchmetrics' top-1 accuracy, averaged over images; ``update`` takes logits and labels.

    >>> metric = top1(3)
    >>> metric.update(torch.eye(3), torch.tensor([0, 1, 1]))
    >>> round(metric.compute().item(), 4)
    0.6667
    """
    # validate_args would synchronise host and GPU for every batch.
    check_classes(classes)
    return CheckedAccuracy(num_classes=classes, average="micro", validate_args=False)


def mean_iou(classes: int, *, ignore_index: int | None = None, background: int | None = None) -> Metric:
    """Return torchmetrics' mean IoU over classes, with intersections and unions summed over all images.

    ``update`` takes logits ``(B, K, H, W)`` or label maps ``(B, H, W)``, and labels ``(B, H, W)``. Pixels labelled
    ``ignore_index``, which may be negative, are not counted. The background is a class like the others, unless
    ``background`` names it: its IoU is then left out of the mean, while its pixels still count in the unions of the
    objects that are predicted or missed there. A class that occurs in neither labels nor predictions is left out of
    the mean; a class that is only predicted has IoU 0. Without any counted pixel the mean is NaN.

    ``update`` synchronises host and GPU, because torchmetrics uses ``bincount`` and a boolean mask. With
    ``torch.use_deterministic_algorithms(True)`` it needs memory for ``pixels × classes²`` numbers: turn that off here.

    >>> metric = mean_iou(3, ignore_index=-100)
    >>> metric.update(torch.tensor([[[0, 1, 1, 0]]]), torch.tensor([[[0, 1, 0, -100]]]))
    >>> metric.compute()
    tensor(0.5000)
    """
    check_classes(classes)
    settings = {"num_classes": classes, "average": "macro", "ignore_index": ignore_index, "validate_args": False}
    if background is None:
        return CheckedIoU(**settings)
    check_background(background, classes)
    return _ObjectIoU(background, **settings)


class _ObjectIoU(CheckedIoU):
    """The mean IoU over the classes that are objects."""

    def __init__(self, background: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.background = background

    def compute(self) -> Tensor:
        """Return the mean over all classes in labels or predictions but the background; NaN if there is none."""
        pixels = self.confmat.double()
        overlap = pixels.diagonal()
        union = pixels.sum(0) + pixels.sum(1) - overlap
        counted = union > 0
        counted[self.background] = False
        return (torch.where(counted, overlap / union.clamp_min(1), 0).sum() / counted.sum()).float()


class _MeanOfErrors(Metric):
    """The mean of errors: a running sum and the number of terms."""

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

    def compute(self) -> Tensor:
        """Return the mean over all updates; NaN before the first."""
        return self.total / self.count

    def _add_images(self, errors: Tensor) -> None:
        """Add the mean error of each image, in float64, given errors of pixels ``(B, H, W)``; B may be 0."""
        self.total += errors.mean(dim=(1, 2), dtype=torch.float64).sum()
        self.count += len(errors)


class InvarianceError(_MeanOfErrors):
    """InvE over a dataset (paper, Eq. inv_err); ``variant`` as in ``invariance_error``.

    >>> metric = InvarianceError()
    >>> metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    >>> metric.compute()
    tensor(1., dtype=torch.float64)
    """

    def update(self, reference: Tensor, variants: Tensor) -> None:
        """Add probabilities for images ``(B, K)`` and for V variants of each ``(B, V, K)``."""
        if variants.dim() == 3 and not len(variants) and reference.shape == variants.shape[::2]:
            return  # an empty batch of a distributed sampler
        error = invariance_error(reference.double(), variants.double(), variant=self.variant)
        pairs = variants.shape[0] * variants.shape[1]
        self.total += pairs * error
        self.count += pairs


class EquivarianceError(_MeanOfErrors):
    """EquE over a dataset (paper, Eq. eq:eque), with equal weight for every image; ``variant`` as in
    ``equivariance_error``.

    >>> metric = EquivarianceError()
    >>> mask = torch.rand(2, 5, 16, 16).softmax(1)
    >>> metric.update(mask, mask, localscale.identity_map())
    >>> metric.compute()
    tensor(0., dtype=torch.float64)
    """

    def update(self, answer: Tensor, answer_to_scaled: Tensor, m: Map) -> None:
        """Add probabilities M(I) and M(S(I; Φ)), each ``(B, K, H, W)``, and the maps Φ; compared in float32."""
        # InvarianceError uses float64, but masks are large. Half precision would lose small errors.
        one, two = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (answer, answer_to_scaled))
        self._add_images(equivariance_errors(one, two, m, self.variant))


class EquivarianceFloor(_MeanOfErrors):
    """``equivariance_floor`` over a dataset: the EquE of a perfect segmenter, caused by resampling alone.

    >>> metric = EquivarianceFloor(3)
    >>> metric.update(torch.tensor([[[0, 0, 1], [0, 2, 2]]]), localscale.identity_map())
    >>> metric.compute()
    tensor(0., dtype=torch.float64)
    """

    def __init__(self, classes: int, variant: str = "squared", **settings: Any) -> None:
        super().__init__(variant, **settings)
        check_classes(classes)
        self.classes = classes

    def update(self, labels: Tensor, m: Map) -> None:
        """Add label maps ``(B, H, W)`` and the maps Φ."""
        self._add_images(floor_errors(labels, m, self.classes, self.variant))


class GroupConsistency(Metric):
    """The spread of IoU within groups of images, such as the locally scaled versions of one image.

    The value is the mean, over all groups with at least two counted images, of the standard deviation of IoU within the
    group (the population's, as in the paper's tables). Deviations below 1e-7 are rounding errors.

    >>> metric = GroupConsistency(3)
    >>> metric.update(torch.tensor([0.5, 0.7, 0.9, torch.nan]), torch.tensor([0, 0, 2, 2]))
    >>> round(metric.compute().item(), 4)
    0.1
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    count: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self, groups: int, **settings: Any) -> None:
        super().__init__(**settings)
        if groups < 1:
            raise ConfigError(f"groups is {groups}; expected the number of groups, at least 1")
        self.groups = groups
        self.add_state("count", torch.zeros(groups, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(groups, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("squares", torch.zeros(groups, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, iou: Tensor, group: Tensor) -> None:
        """Add the IoU of images ``(B,)``, where NaN is not counted, and their groups ``(B,)``, 0 … groups − 1.

        On a GPU, group numbers are not checked here, to avoid a host synchronisation; a wrong one fails in PyTorch.
        """
        if iou.dim() != 1 or iou.shape != group.shape or group.is_floating_point():
            raise ShapeError(
                f"iou has shape {tuple(iou.shape)} and group {tuple(group.shape)} of {group.dtype}; "
                "expected (images,) for both, and integers for group"
            )
        if group.device.type == "cpu" and ((group < 0) | (group >= self.groups)).any():
            raise ConfigError(
                f"group numbers {group.min()} … {group.max()} came; expected 0 … {self.groups - 1}; "
                "number them from 0, or create GroupConsistency with more groups"
            )
        counted, group = ~iou.isnan(), group.long()
        value = torch.where(counted, iou, 0).double()
        self.count.scatter_add_(0, group, counted.long())
        self.total.scatter_add_(0, group, value)
        self.squares.scatter_add_(0, group, value.square())

    def compute(self) -> Tensor:
        """Return the mean deviation within groups; NaN if no group has two images."""
        enough = self.count >= 2
        variance = self.squares / self.count - (self.total / self.count).square()
        return torch.where(enough, variance.clamp_min(0).sqrt(), 0).sum() / enough.sum()


class SmallObjectIoU(Metric):
    """The mean IoU of the objects that cover no more pixels than the median object.

    An object is all pixels of one class in one image; class 0, the background, is none. Areas are those in the labels.
    All images have the same number of ``pixels``, or fewer.

    >>> metric = SmallObjectIoU(3, pixels=6)
    >>> metric.update(torch.tensor([[[1, 1, 0, 2, 2, 2]]]), torch.tensor([[[1, 1, 1, 1, 2, 2]]]))
    >>> metric.compute()  # class 2 has two pixels and class 1 four
    tensor(0.6667, dtype=torch.float64)
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True
    count: Tensor
    total: Tensor

    def __init__(self, classes: int, pixels: int, *, ignore_index: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        check_classes(classes)
        if pixels < 1:
            raise ConfigError(f"pixels is {pixels}; expected the number of pixels of an image, at least 1")
        self.classes, self.pixels, self.ignore_index = classes, pixels, ignore_index
        self.add_state("count", torch.zeros(pixels + 1, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(pixels + 1, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, labels: Tensor) -> None:
        """Add the predicted and the true classes of images, integers ``(B, H, W)``."""
        if predicted.dim() != 3 or predicted.shape != labels.shape or predicted[:1].numel() > self.pixels:
            raise ShapeError(
                f"predicted has shape {tuple(predicted.shape)} and labels {tuple(labels.shape)}; expected (images, "
                f"height, width) for both, with at most {self.pixels} pixels"
            )
        check_whole("predicted", predicted)
        check_whole("labels", labels)
        check_kinds(predictions=predicted, labels=labels, counts=self.count)
        area, iou = (x[:, 1:].flatten() for x in class_ious(predicted, labels, self.classes, self.ignore_index))
        self.count.scatter_add_(0, area, (area > 0).long())
        self.total.scatter_add_(0, area, torch.where(area > 0, iou, 0).double())

    def compute(self) -> Tensor:
        """Return the mean IoU of the small objects; NaN without any object."""
        below = self.count.cumsum(0)
        median = (2 * below >= below[-1]).int().argmax()
        small = torch.arange(len(below), device=below.device) <= median
        return torch.where(small, self.total, 0).sum() / torch.where(small, self.count, 0).sum()


class PerScale(NamedTuple):
    """Accuracy at each scale, and its mean and standard deviation over scales, with equal weight for each.

    The deviation is the population's (divided by the number of scales), as in the paper's tables.
    """

    accuracy: dict[float, float]
    mean: float
    std: float


class PerScaleAccuracy(Metric):
    """Top-1 accuracy at each of the given scales, or brackets of scales named by their lower ends.

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
        numbers = all(isinstance(scale, int | float) and math.isfinite(scale) for scale in scales)
        if not numbers or not scales or len(set(scales)) != len(scales):
            raise ConfigError(f"scales are {scales}; expected at least one scale, without repetitions, all finite")
        self.scales = tuple(float(scale) for scale in scales)
        self.add_state("right", torch.zeros(len(scales), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("seen", torch.zeros(len(scales), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor, scales: Tensor | float) -> None:
        """Add logits ``(N, K)``, labels ``(N,)``, and the scale of each image, or one scale for all."""
        known = torch.tensor(self.scales, dtype=torch.float64, device=logits.device)
        given = torch.as_tensor(scales, dtype=torch.float64, device=logits.device)
        if logits.dim() != 2 or labels.shape != logits.shape[:1] or given.shape not in ((), labels.shape):
            raise ShapeError(
                f"logits have shape {tuple(logits.shape)}, labels {tuple(labels.shape)}, scales {tuple(given.shape)}; "
                "expected (n, classes), (n,), and (n,) or one number"
            )
        check_kinds(logits=logits, labels=labels, counts=self.seen)
        if logits.device.type == "cpu":  # on a GPU the check would synchronise with the host
            check_labels(labels, logits.shape[1])
        if not len(labels):
            return
        given = given.expand(len(labels))
        match = (given[:, None] - known).abs() < 1e-6  # so that 0.7 in float32 matches 0.7
        right = logits.argmax(dim=1) == labels
        self.seen += match.sum(0)
        self.right += (match & right[:, None]).sum(0)

    def compute(self) -> PerScale:
        """Return the accuracy at each scale; NaN for a scale without images."""
        accuracy = [r / s if s else math.nan for r, s in zip(self.right.tolist(), self.seen.tolist(), strict=True)]
        mean = sum(accuracy) / len(accuracy)
        std = math.sqrt(sum((a - mean) ** 2 for a in accuracy) / len(accuracy))
        return PerScale(dict(zip(self.scales, accuracy, strict=True)), mean, std)
