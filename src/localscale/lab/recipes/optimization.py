"""The optimizer's groups and the learning rate's course."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import timm.optim
import torch
from torch import Tensor, nn

from localscale.errors import ConfigError

__all__ = ["Optimization", "Schedule"]


@dataclass(frozen=True)
class Optimization:
    """AdamW and its rate."""

    epochs: int = 50
    """Times every training image is seen."""
    batch_size: int = 64
    """Images per step, over all processes."""
    learning_rate: float = 1e-4
    """Highest rate of the backbone."""
    canonicalizer_rate: float = 1e-3
    """Highest rate of what a method adds to the backbone, which starts from nothing."""
    weight_decay: float = 0.05
    """Of matrices; vectors are left alone, as timm does it."""
    layer_decay: float = 1.0
    """Each layer's rate as a multiple of the next one's, as in timm; 1 is none."""
    schedule: Literal["cosine", "step", "plateau", "constant"] = "cosine"
    """Course of the rate after the warm-up."""
    warmup_epochs: float = 0.0
    """Epochs in which the rate rises from zero."""
    decay_epochs: float = 30.0
    """step: epochs between two drops; plateau: epochs without a better training loss before one."""
    decay_rate: float = 0.7
    """step and plateau: what a drop multiplies the rate by."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 is no limit."""

    def check(self) -> None:
        """Refuse what cannot be trained with."""
        for name in ("epochs", "batch_size", "decay_epochs", "decay_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a positive number")
        for name in ("learning_rate", "canonicalizer_rate", "weight_decay", "warmup_epochs", "clip"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a finite number, 0 or more")
        if self.warmup_epochs >= self.epochs:
            raise ConfigError(f"warmup_epochs is {self.warmup_epochs} of {self.epochs} epochs; expected fewer")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay is {self.layer_decay}; expected more than 0 and at most 1")

    def backbone_groups(self, backbone: nn.Module) -> list[dict[str, Any]]:
        """The backbone's parameters, by weight decay and, with ``layer_decay``, by depth; before anything wraps it."""
        ask: Any = getattr(backbone, "no_weight_decay", tuple)
        no_decay = ask()
        if self.layer_decay < 1:
            groups = timm.optim.param_groups_layer_decay(
                backbone, self.weight_decay, no_weight_decay_list=no_decay, layer_decay=self.layer_decay
            )
        else:
            groups = timm.optim.param_groups_weight_decay(backbone, self.weight_decay, no_weight_decay_list=no_decay)
        return [{**group, "lr": self.learning_rate} for group in groups]

    def optimizer(
        self, groups: list[dict[str, Any]], model: nn.Module, replayed_on: torch.device | None = None
    ) -> torch.optim.AdamW:
        """AdamW over the backbone's groups and whatever else ``model`` has.

        On ``replayed_on``, where steps are recorded and replayed, the rates are tensors that can change in place.
        """
        known = {id(parameter) for group in groups for parameter in group["params"]}
        added = [p for p in model.parameters() if id(p) not in known and p.requires_grad]
        if added:
            groups = [*groups, {"params": added, "lr": self.canonicalizer_rate, "weight_decay": 0.0}]
        if replayed_on is not None:
            groups = [{**group, "lr": torch.tensor(group["lr"], device=replayed_on)} for group in groups]
        return torch.optim.AdamW(groups, fused=True, capturable=replayed_on is not None)


class Schedule:
    """The learning rate as a function of the step; for ``plateau`` also of the training loss so far."""

    def __init__(self, settings: Optimization, optimizer: Any, per_epoch: int) -> None:
        self.settings, self.optimizer, self.per_epoch = settings, optimizer, per_epoch
        self.peaks = [float(group["lr"]) * group.get("lr_scale", 1.0) for group in optimizer.param_groups]
        self.best, self.waited, self.drops = math.inf, 0, 0

    def factor(self, step: int) -> float:
        """The rate at ``step`` over its highest."""
        settings, epoch = self.settings, step / self.per_epoch
        if epoch < settings.warmup_epochs:
            return (epoch + 1 / self.per_epoch) / (settings.warmup_epochs + 1 / self.per_epoch)
        if settings.schedule == "cosine":
            done = (epoch - settings.warmup_epochs) / max(settings.epochs - settings.warmup_epochs, 1e-9)
            return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        if settings.schedule == "step":
            return settings.decay_rate ** int(epoch / settings.decay_epochs)
        return settings.decay_rate**self.drops

    def before_step(self, step: int) -> None:
        """Set the rate of step number ``step``."""
        factor = self.factor(step)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(factor * peak)
            else:
                group["lr"] = factor * peak

    def after_epoch(self, loss: float) -> None:
        """Take note of an epoch's mean training loss."""
        if self.settings.schedule != "plateau":
            return
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        if self.waited >= self.settings.decay_epochs:
            self.drops, self.waited = self.drops + 1, 0

    def state(self) -> dict[str, float]:
        """What the rate depends on beside the step."""
        return {"best": self.best, "waited": self.waited, "drops": self.drops}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of ``state``."""
        self.best, self.waited, self.drops = float(state["best"]), int(state["waited"]), int(state["drops"])
