"""Choose the parameters that ``fit`` trains, and their learning rates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from localscale.adaptation import AdaptedModel
from localscale.adaptation.size_sites import size_canonicalizers
from localscale.canonicalizer import Canonicalizer
from localscale.canonicalizer.sizes import SizeEstimator
from localscale.errors import ConfigError
from localscale.fitting.settings import FitSettings

__all__ = ["held", "parameter_groups"]

HEADS = ("get_classifier", "classifier", "fc", "head")


@contextlib.contextmanager
def held(model: nn.Module, size_weight: float) -> Iterator[None]:
    """Train all size networks if ``size_weight`` is not 0, else none of them; afterwards restore ``requires_grad``."""
    if size_weight and not isinstance(model, AdaptedModel):
        raise ConfigError("size_weight is for adapted models; call ls.adapt first, or leave it out")
    found: list[Canonicalizer] = []
    if isinstance(model, AdaptedModel):
        sized = (c for c in model.canonicalizers.values() if isinstance(c.network, SizeEstimator))
        found = list(size_canonicalizers(model).values() if size_weight else sized)
    before = [(parameter, parameter.requires_grad) for each in found for parameter in each.parameters()]
    for parameter, _ in before:
        parameter.requires_grad_(size_weight > 0)
    try:
        yield
    finally:
        for parameter, asked in before:
            parameter.requires_grad_(asked)


def parameter_groups(model: nn.Module, settings: FitSettings) -> list[dict[str, Any]]:
    """Return the parameter groups: base, its head, and the canonicalizers."""
    base: nn.Module = model.base if isinstance(model, AdaptedModel) else model
    added = list(model.canonicalizers.values()) if isinstance(model, AdaptedModel) else []
    head = {id(p) for module in _head(base) for p in module.parameters()}
    own = {id(p) for canonicalizer in added for p in canonicalizer.parameters()}
    sorted_in: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in own:
            key = settings.canonicalizer_rate, 0.0
        else:
            rate = settings.head_rate if id(parameter) in head else settings.learning_rate
            key = rate, settings.weight_decay if parameter.dim() > 1 else 0.0
        sorted_in.setdefault(key, []).append(parameter)
    if not sorted_in:
        raise ConfigError("no parameter of the model can be trained; call model.base.requires_grad_(True) first")
    return [{"params": p, "lr": rate, "weight_decay": decay} for (rate, decay), p in sorted_in.items()]


def _head(base: Any) -> list[nn.Module]:
    for name in HEADS:
        found = getattr(base, name, None)
        if name == "get_classifier" and callable(found):
            found = found()
        modules = [
            module for module in (found if isinstance(found, tuple) else (found,)) if isinstance(module, nn.Module)
        ]
        if modules:
            return modules
    return []
