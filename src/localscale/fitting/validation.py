"""Measure a model on validation images: loss, accuracy, and how much its answers change under local scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from localscale.errors import DataError
from localscale.fitting.batches import images_and_labels, logits_of
from localscale.fitting.targets import IGNORED, classes_of, stretch_to_labels, task_loss
from localscale.maps.build import random_map
from localscale.metrics.functional import distance, equivariance_errors
from localscale.warp import unscale

__all__ = ["KNOTS", "validate"]

KNOTS = 6  # control points of the random scalings along each axis


@torch.no_grad()
def validate(
    model: nn.Module,
    loader: Iterable[Any],
    accelerator: Any,
    own_loss: Callable[[Tensor, Tensor], Tensor] | None,
    strength: float,
    check: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Return the metrics of ``EpochReport``; every call scales the images by the same random maps.

    PyTorch's random states are the same afterwards. ``check`` is called before every batch and may interrupt.
    """
    training = model.training
    model.eval()
    try:
        devices = [accelerator.device] if accelerator.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # a loader draws a seed for its workers even if it does not shuffle
            values = _measure(model, loader, accelerator, own_loss, strength, check)
    finally:
        model.train(training)
    if not values:
        raise DataError("val_loader gave no batch; expected a loader that can be iterated over again and again")
    return {name: _mean(name, torch.cat(each)) for name, each in values.items()}


def _measure(
    model: nn.Module,
    loader: Iterable[Any],
    accelerator: Any,
    own_loss: Callable[[Tensor, Tensor], Tensor] | None,
    strength: float,
    check: Callable[[], object],
) -> dict[str, list[Tensor]]:
    values: dict[str, list[Tensor]] = {}
    for number, batch in enumerate(loader):
        check()
        images, labels = images_and_labels(batch)
        images, labels = images.to(accelerator.device), labels.to(accelerator.device)
        u = random_map(len(images), KNOTS, strength=strength, generator=torch.Generator().manual_seed(number)).to(
            device=images.device
        )
        with accelerator.autocast():
            logits = logits_of(model(images)).float()
            scaled = logits_of(model(unscale(images, u))).float()
        found = {"loss": task_loss(logits, labels, images, own_loss).float().expand(len(images))}
        stretched = stretch_to_labels(logits, labels)
        classes = classes_of(stretched, labels)
        if classes is not None:
            counted = (classes != IGNORED).float().reshape(len(classes), -1)
            right = (stretched.argmax(1) == classes).float().view_as(counted) * counted
            found["accuracy"] = right.sum(dim=1) / counted.sum(dim=1)  # NaN for an image without a label that counts
        one, two = _probabilities(logits), _probabilities(scaled)
        if logits.dim() == 4:
            found["equivariance_error"] = equivariance_errors(one, two, u.inverse(), "squared").mean(dim=(1, 2))
        else:
            found["invariance_error"] = distance(one, two, "squared", dim=1)
        for name, each in found.items():
            values.setdefault(name, []).append(accelerator.gather_for_metrics(each.contiguous()))
    return values


def _probabilities(logits: Tensor) -> Tensor:
    """Return the softmax over classes ``(B, K, …)``, or the sigmoid of a single logit, whose softmax is always 1."""
    if logits.dim() == 1:
        logits = logits[:, None]
    return logits.softmax(1) if logits.shape[1] > 1 else logits.sigmoid()


def _mean(name: str, values: Tensor) -> float:
    """Return the mean over images; images without a label that counts have no accuracy (0 if there are no others)."""
    return float(values.nanmean().nan_to_num() if name == "accuracy" else values.mean())
