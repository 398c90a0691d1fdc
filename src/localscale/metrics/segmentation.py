"""Measure the IoU of each image, and the equivariance error that resampling alone causes."""

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
    """Return the IoU of each image, ``(B,)``: the mean over the object classes present in its labels.

    Without any object class in the labels, the IoU is NaN. A class that is predicted but not in the labels is not part
    of the mean; its pixels lower the IoU of the classes that they cover. Values are not checked, as that would need a
    host synchronisation: a label outside 0 … classes − 1, other than ``ignore_index``, counts as a pixel that no
    prediction gets right, and a prediction outside that range counts as wrong.

    Args:
        predicted: the predicted class of every pixel, ``(B, H, W)``, integers.
        labels: the true class of every pixel, the same shape.
        classes: the number of classes, background included.
        background: the class that is not an object; None if every class is an object.
        ignore_index: pixels with this label are not counted.

    >>> labels = torch.tensor([[[0, 1, 1, 2]], [[0, 0, 0, 0]]])
    >>> predicted = torch.tensor([[[1, 1, 1, 0]], [[0, 0, 0, 1]]])
    >>> image_iou(predicted, labels, 3)
    tensor([0.3333,    nan])
    """
    if predicted.dim() != 3 or predicted.shape != labels.shape:
        raise ShapeError(
            f"predicted has shape {tuple(predicted.shape)} and labels {tuple(labels.shape)}; "
            "expected (images, height, width) for both; if they are logits, take the argmax over classes first"
        )
    if predicted.device != labels.device:
        raise ShapeError(f"predicted is on {predicted.device} and labels on {labels.device}; move one with .to(device)")
    check_whole("predicted", predicted)
    check_whole("labels", labels)
    check_classes(classes)
    if background is not None:
        check_background(background, classes)
    shown, iou = class_ious(predicted, labels, classes, ignore_index)
    present = shown > 0
    if background is not None:
        present[:, background] = False
    return torch.where(present, iou, 0).sum(dim=1) / present.sum(dim=1)


def class_ious(predicted: Tensor, labels: Tensor, classes: int, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return the pixels of each class in the labels of each image and its IoU there, both ``(B, classes)``.

    The IoU of a class that is not in the labels has no meaning.
    """
    # In uint8, −100 would be 156.
    truth, guess = labels.long().flatten(1), predicted.long().flatten(1)
    counted = torch.ones_like(truth) if ignore_index is None else (truth != ignore_index).long()

    def pixels(where: Tensor, counts: Tensor) -> Tensor:
        """Count the pixels of each class, ``(B, classes)``; values outside the range go to an extra slot."""
        slot = where.masked_fill((where < 0) | (where >= classes), classes)
        return counts.new_zeros(len(counts), classes + 1).scatter_add_(1, slot, counts)[:, :classes]

    of_truth, overlap = pixels(truth, counted), pixels(truth, counted * (truth == guess))
    union = of_truth + pixels(guess, counted) - overlap
    return of_truth, overlap / union


def equivariance_floor(labels: Tensor, m: Map, classes: int, *, variant: str = "squared") -> Tensor:
    """Return the EquE of a perfect segmenter: S(onehot(L); Φ) against onehot(S(L; Φ)).

    The first is resampled bilinearly, as in ``equivariance_error``, the second to the nearest pixel, as label maps are.
    They differ only between pixels of different classes, so this is the error that resampling alone causes. It needs
    the memory of four masks ``(B, classes, H, W)``.

    Args:
        labels: the true classes, ``(B, H, W)``, integers. A value outside 0 … classes − 1, such as −100 for "ignore",
            becomes a vector of zeros. Its pixel is counted, and its borders add to the error like any other.
        m: the maps Φ that scale the images.
        classes: the number of classes.
        variant: as in ``equivariance_error``.

    >>> labels = torch.tensor([[[0, 0, 1], [0, 2, 2]]])
    >>> equivariance_floor(labels, localscale.identity_map(), 3)
    tensor(0.)
    """
    errors = floor_errors(labels, m, classes, variant)
    if not errors.numel():
        raise ShapeError(f"labels have shape {tuple(labels.shape)}; expected at least one image")
    return errors.mean()


def floor_errors(labels: Tensor, m: Map, classes: int, variant: str) -> Tensor:
    """Return the terms of ``equivariance_floor``, one per pixel, ``(B, H, W)``."""
    if labels.dim() != 3:
        raise ShapeError(f"labels have shape {tuple(labels.shape)}; expected (images, height, width)")
    check_whole("labels", labels)
    check_classes(classes)
    scaled, exact = scale(_one_hot(labels, classes), m), _one_hot(scale(labels, m, mode="nearest"), classes)
    empty = ~scaled.any(dim=1)  # both are zero there; the variant "relative" would divide 0 by 0
    return distance(scaled, exact, variant, dim=1).masked_fill(empty, 0)


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    known = torch.arange(classes, device=labels.device).view(-1, 1, 1)
    return (labels.unsqueeze(1) == known).float()


def check_whole(name: str, maps: Tensor) -> None:
    """Raise ``ShapeError`` unless label maps hold integers."""
    if maps.is_floating_point() or maps.is_complex():
        raise ShapeError(f"{name} has dtype {maps.dtype}; expected integers, one class for every pixel")


def check_background(background: int, classes: int) -> None:
    """Raise ``ConfigError`` unless ``background`` is one of the ``classes``."""
    if not 0 <= background < classes:
        raise ConfigError(f"background is {background}; expected one of the classes 0 … {classes - 1}, or None")


def check_classes(classes: int) -> None:
    """Raise ``ConfigError`` unless ``classes`` is at least 1."""
    if type(classes) is not int or classes < 1:
        raise ConfigError(f"classes is {classes!r}; expected the number of classes, at least 1")
