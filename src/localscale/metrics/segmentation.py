"""How well label maps agree, image by image, and what resampling alone costs the best of segmenters."""

import torch
from torch import Tensor

from localscale.errors import ConfigError, ShapeError
from localscale.maps.base import Map
from localscale.metrics.functional import distance
from localscale.warp import scale

__all__ = ["equivariance_floor", "image_iou"]


def image_iou(
    predicted: Tensor, labels: Tensor, classes: int, *, background: int | None = 0, ignore_index: int | None = None
) -> Tensor:
    """IoU of each image, ``(B,)``: the mean over the object classes that its truth shows; NaN where it shows none.

    A class that is predicted and not there takes from the others' IoU whatever it covers, and is no term of the mean.
    No value is looked at from the host, so values are not checked: a label that is no class and not ``ignore_index``
    is a pixel that no prediction gets right, and a prediction that is no class is wrong.

    Args:
        predicted: a class for every pixel, ``(B, H, W)``, whole numbers.
        labels: the truth, the same shape.
        classes: how many there are, the background among them.
        background: the class that is no object; None if all are.
        ignore_index: pixels with this label count for nothing.

    >>> labels = torch.tensor([[[0, 1, 1, 2]], [[0, 0, 0, 0]]])
    >>> predicted = torch.tensor([[[1, 1, 1, 0]], [[0, 0, 0, 1]]])
    >>> image_iou(predicted, labels, 3)
    tensor([0.3333,    nan])
    """
    if predicted.dim() != 3 or predicted.shape != labels.shape:
        raise ShapeError(
            f"predicted has shape {tuple(predicted.shape)} and labels {tuple(labels.shape)}; "
            "expected twice (images, height, width); of logits, take the argmax over classes"
        )
    _check_whole("predicted", predicted)
    _check_whole("labels", labels)
    check_classes(classes)
    if background is not None and not 0 <= background < classes:
        raise ConfigError(f"background is {background}; expected one of the classes 0 … {classes - 1}, or None")
    # As int64: among bytes, −100 would be 156.
    truth, guess = labels.long().flatten(1), predicted.long().flatten(1)
    counted = torch.ones_like(truth) if ignore_index is None else (truth != ignore_index).long()

    def pixels(where: Tensor, counts: Tensor) -> Tensor:
        """How many pixels each class has, ``(B, classes)``; what is no class falls into a slot of its own."""
        slot = where.masked_fill((where < 0) | (where >= classes), classes)
        return counts.new_zeros(len(counts), classes + 1).scatter_add_(1, slot, counts)[:, :classes]

    of_truth, overlap = pixels(truth, counted), pixels(truth, counted * (truth == guess))
    union = of_truth + pixels(guess, counted) - overlap
    shown = of_truth > 0
    if background is not None:
        shown[:, background] = False
    return torch.where(shown, overlap / union, 0).sum(dim=1) / shown.sum(dim=1)


def equivariance_floor(labels: Tensor, m: Map, classes: int, *, variant: str = "squared") -> Tensor:
    """What resampling alone costs a perfect segmenter: EquE of S(onehot(L); Φ) against onehot(S(L; Φ)).

    The first is bilinear, as in ``equivariance_error``; the second nearest, as label maps are scaled. They differ
    between pixels of different classes, and nowhere else. Takes memory like four masks ``(B, classes, H, W)``.

    Args:
        labels: the truth, ``(B, H, W)``, whole numbers. One that is no class, such as −100 for "ignore", is of no
            class wherever it is read: a vector of zeros. It counts as a pixel, and costs what any border costs.
        m: the maps Φ that scale the images.
        classes: how many there are.
        variant: as in ``equivariance_error``.

    >>> labels = torch.tensor([[[0, 0, 1], [0, 2, 2]]])
    >>> equivariance_floor(labels, localscale.identity_map(), 3)
    tensor(0.)
    """
    return floor_errors(labels, m, classes, variant).mean()


def floor_errors(labels: Tensor, m: Map, classes: int, variant: str) -> Tensor:
    """The terms of ``equivariance_floor``, ``(B, H, W)``."""
    if labels.dim() != 3:
        raise ShapeError(f"labels have shape {tuple(labels.shape)}; expected (images, height, width)")
    _check_whole("labels", labels)
    check_classes(classes)
    scaled, exact = scale(_one_hot(labels, classes), m), _one_hot(scale(labels, m, mode="nearest"), classes)
    empty = ~scaled.any(dim=1)  # then the nearest pixel is of no class either: no error, though "relative" says 0/0
    return distance(scaled, exact, variant, dim=1).masked_fill(empty, 0)


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    known = torch.arange(classes, device=labels.device).view(-1, 1, 1)
    return (labels.unsqueeze(1) == known).float()


def _check_whole(name: str, maps: Tensor) -> None:
    if maps.is_floating_point():
        raise ShapeError(f"{name} has dtype {maps.dtype}; expected whole numbers, one class for every pixel")


def check_classes(classes: int) -> None:
    """A number of classes that there can be."""
    if classes < 1:
        raise ConfigError(f"classes is {classes}; expected how many there are, at least 1")
