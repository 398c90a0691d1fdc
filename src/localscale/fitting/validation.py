"""Measure a model on validation images: loss, accuracy, and how much its answers change under local scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from localscale.errors import DataError
from localscale.fitting.batches import images_and_labels, logits_of
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
    criterion: Callable[[Tensor, Tensor], Tensor],
    strength: float,
) -> dict[str, float]:
    """Return the metrics of ``EpochReport``; every call scales the images by the same random maps."""
    training = model.training
    model.eval()
    values: dict[str, list[Tensor]] = {}
    for number, batch in enumerate(loader):
        images, labels = images_and_labels(batch)
        images, labels = images.to(accelerator.device), labels.to(accelerator.device)
        u = random_map(len(images), KNOTS, strength=strength, generator=torch.Generator().manual_seed(number)).to(
            device=images.device
        )
        with accelerator.autocast():
            logits = logits_of(model(images)).float()
            scaled = logits_of(model(unscale(images, u))).float()
        found = {"loss": criterion(logits, labels).float().expand(len(images))}
        if logits.dim() == 4:
            counted = (labels >= 0).float()
            right = (logits.argmax(1) == labels).float() * counted
            found["accuracy"] = right.sum(dim=(1, 2)) / counted.sum(dim=(1, 2)).clamp_min(1)
            errors = equivariance_errors(logits.softmax(1), scaled.softmax(1), u.inverse(), "squared")
            found["equivariance_error"] = errors.mean(dim=(1, 2))
        else:
            classes = labels if labels.dim() == 1 else labels.argmax(1)
            found["accuracy"] = (logits.argmax(1) == classes).float()
            found["invariance_error"] = distance(logits.softmax(1), scaled.softmax(1), "squared", dim=1)
        for name, each in found.items():
            values.setdefault(name, []).append(accelerator.gather_for_metrics(each.contiguous()))
    model.train(training)
    if not values:
        raise DataError("val_loader gave no batch; expected a loader that can be iterated over again and again")
    return {name: float(torch.cat(each).mean()) for name, each in values.items()}
