"""Read batches and answers of the usual kinds: tuples and dictionaries, tensors and objects with ``logits``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from localscale.errors import DataError, ShapeError

__all__ = ["images_and_labels", "logits_of"]


def images_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a batch: ``(images, labels, …)``, or a dictionary as transformers makes it.

    >>> import torch
    >>> images, labels = images_and_labels({"pixel_values": torch.zeros(2, 3, 8, 8), "labels": torch.zeros(2)})
    """
    if isinstance(batch, Mapping):
        images = batch.get("pixel_values", batch.get("image"))
        labels = batch.get("labels", batch.get("label"))
    elif isinstance(batch, Sequence) and len(batch) > 1:
        images, labels = batch[0], batch[1]
    else:
        images = labels = None
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor) or images.dim() != 4:
        raise DataError(
            f"a batch is {_describe(batch)}; expected (images, labels) or a dictionary with pixel_values and labels, "
            "where images is a tensor (batch, channels, height, width) and labels a tensor; a dataset becomes batches "
            "by torch.utils.data.DataLoader(dataset, batch_size=32)"
        )
    if not images.is_floating_point():
        raise DataError(
            f"images have dtype {images.dtype}; expected floating-point images, normalised as for the backbone, for "
            "example by model.preprocessing.transform()"
        )
    return images, labels


def _describe(batch: Any) -> str:
    """Return the types of what a batch holds, and the shapes of tensors."""
    if isinstance(batch, Tensor):
        return f"Tensor {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {_describe(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, tuple):
        return "(" + ", ".join(_describe(value) for value in batch) + ")"
    return type(batch).__name__


def logits_of(answer: Any) -> Tensor:
    """Return the logits of a model's answer: a tensor, or the entry ``logits`` or ``out`` of an object."""
    for name in ("logits", "out"):
        found = answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(answer, Tensor):
        return answer
    raise ShapeError(
        f"the model answered with {type(answer).__name__}; expected a tensor of logits or an object with logits"
    )
