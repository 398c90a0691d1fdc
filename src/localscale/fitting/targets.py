"""Bring logits and labels together: classes, probabilities, or masks of the usual kinds."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from localscale.conventions import stretch
from localscale.errors import DataError, LocalScaleError, ShapeError

__all__ = ["IGNORED", "VOID", "check_classes", "classes_of", "cross_entropy", "stretch_to_labels", "task_loss"]

IGNORED = -100  # PyTorch's label of what does not count
VOID = 255  # the same in mask files


def stretch_to_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """Return class maps ``(B, K, h, w)`` at the size of label maps ``(B, H, W)`` or ``(B, …, H, W)``; else ``logits``.

    Convention: bilinear, corners on corners (``align_corners=True``), as everywhere in this library.
    """
    if logits.dim() != 4 or labels.dim() < 3 or not logits.is_floating_point():
        return logits
    return stretch(logits, labels.shape[-2], labels.shape[-1])


def classes_of(logits: Tensor, labels: Tensor) -> Tensor | None:
    """Return class numbers of the shape of ``logits`` without its dimension of classes; None if labels are none.

    Probabilities become the most probable class. Masks may be ``(B, H, W)`` or ``(B, 1, H, W)``, of any whole type;
    their label 255 becomes -100, which does not count, unless the model has so many classes.
    """
    if logits.dim() < 2 or logits.shape[1] < 2:
        return None
    if labels.is_floating_point():
        return labels.argmax(1) if labels.shape == logits.shape else None
    wanted = (len(logits), *logits.shape[2:])
    if labels.dim() == logits.dim() and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != wanted:
        return None
    labels = labels.long()
    masks = labels.dim() == 3 and logits.shape[1] <= VOID
    return labels.masked_fill(labels == VOID, IGNORED) if masks else labels


def task_loss(logits: Tensor, labels: Tensor, images: Tensor, own: Callable[[Tensor, Tensor], Tensor] | None) -> Tensor:
    """Return the loss ``own`` of the logits and the labels as they came, or the cross-entropy if ``own`` is None."""
    if own is not None:
        return own(stretch_to_labels(logits, labels), labels)
    return cross_entropy(logits, labels, (images.shape[-2], images.shape[-1]))


def cross_entropy(logits: Tensor, labels: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the mean cross-entropy of all labels that count; ``size`` is that of the images.

    >>> import torch
    >>> cross_entropy(torch.zeros(2, 4, 8, 8), torch.full((2, 32, 32), 255), (32, 32))
    tensor(0.)
    """
    if logits.dim() == 4 and labels.dim() >= 3:
        _check_size(logits, labels, size)
    logits = stretch_to_labels(logits, labels)
    if labels.is_floating_point() and labels.shape == logits.shape:
        return F.cross_entropy(logits, labels)
    classes = classes_of(logits, labels)
    if classes is None:
        raise _mismatch(logits, labels)
    if classes.dim() == 1:
        return F.cross_entropy(logits, classes)
    total = F.cross_entropy(logits, classes, ignore_index=IGNORED, reduction="sum")
    return total / (classes != IGNORED).sum().clamp_min(1)  # of masks in which nothing counts: 0, not NaN


def check_classes(logits: Tensor, labels: Tensor) -> None:
    """Raise ``DataError`` unless class numbers fit the logits; a GPU would report them with an assertion only."""
    if labels.is_floating_point() or logits.dim() < 2:  # the loss refuses these if they do not fit
        return
    number = logits.shape[1]
    labels = labels.long()  # in uint8, -100 would be 156
    known = labels[(labels != IGNORED) & ((labels != VOID) | (logits.dim() != 4))]
    if len(known) and (int(known.min()) < 0 or int(known.max()) >= number):
        void = "; the label 255 counts as nothing" if logits.dim() == 4 else ""
        raise DataError(
            f"labels run from {int(known.min())} to {int(known.max())}, and the model answers with {number} classes; "
            f"expected 0 to {number - 1}: make the model with num_classes={int(known.max()) + 1}{void}"
        )


def _check_size(logits: Tensor, labels: Tensor, size: tuple[int, int]) -> None:
    found, own = tuple(labels.shape[-2:]), tuple(logits.shape[-2:])
    if found not in (tuple(size), own):
        raise ShapeError(
            f"masks are {found[0]}×{found[1]}, images {size[0]}×{size[1]} and the model's answers {own[0]}×{own[1]}; "
            "resize each mask like its image, by the nearest pixel"
        )


def _mismatch(logits: Tensor, labels: Tensor) -> LocalScaleError:
    kind = f"labels are {labels.dtype} of shape {tuple(labels.shape)}"
    answer = f"the model answers with shape {tuple(logits.shape)}"
    if labels.is_floating_point() and logits.dim() == 4:
        return DataError(
            f"{kind}; expected masks of whole numbers, one class for each pixel: read them with "
            "torchvision.transforms.v2.PILToTensor, which does not divide by 255"
        )
    if labels.is_floating_point():
        return DataError(f"{kind}; expected whole numbers, one class for each image, or probabilities as {answer}")
    if logits.dim() == 2 and labels.dim() > 2:
        return ShapeError(f"{kind}, which are masks, and {answer}: a classifier; expected a model that predicts masks")
    if logits.dim() == 4 and labels.dim() < 3:
        return ShapeError(
            f"{kind}, one for each image, and {answer}: a segmenter; expected masks (batch, height, width)"
        )
    return ShapeError(f"{kind}, and {answer}; expected one class for each image, or for each pixel")
