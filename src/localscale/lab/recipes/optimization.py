"""The optimizer, its parameter groups and the learning-rate schedule."""

from __future__ import annotations

import dataclasses
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
    """AdamW, its learning rates and their schedule."""

    epochs: int = 50
    """Number of epochs."""
    batch_size: int = 64
    """Images per step, summed over all processes."""
    learning_rate: float = 1e-4
    """Highest learning rate of the backbone and its head."""
    canonicalizer_rate: float = 1e-3
    """Highest learning rate of the parameters that a method adds; --learning-rate does not change it."""
    canonicalizer_start: float = 0.0
    """Share of the training after which the parameters that a method adds are trained; until then their rate is 0."""
    weight_decay: float = 0.05
    """Weight decay of matrices; vectors and added parameters have none."""
    layer_decay: float = 1.0
    """Learning rate of each layer relative to the next one, as in timm; 1 gives all layers the same."""
    schedule: Literal["cosine", "step", "plateau", "constant"] = "cosine"
    """Schedule of the learning rates after the warm-up."""
    warmup_epochs: float = 0.0
    """Epochs in which the learning rates rise from zero."""
    decay_epochs: float = 30.0
    """step: epochs between two drops. plateau: epochs without a lower training loss before a drop."""
    decay_rate: float = 0.7
    """step and plateau: factor of each drop."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 means no limit."""

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that cannot be trained with."""
        for name in ("epochs", "batch_size", "decay_epochs", "decay_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{_flag(name)} is {getattr(self, name)}; expected a positive number")
        for name in ("learning_rate", "canonicalizer_rate", "weight_decay", "warmup_epochs", "clip"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{_flag(name)} is {getattr(self, name)}; expected a finite number, 0 or more")
        if self.warmup_epochs >= self.epochs:
            raise ConfigError(f"--warmup-epochs is {self.warmup_epochs}; expected fewer than --epochs {self.epochs}")
        if not 0 <= self.canonicalizer_start < 1:
            raise ConfigError(f"--canonicalizer-start is {self.canonicalizer_start}; expected 0 or more and below 1")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"--layer-decay is {self.layer_decay}; expected more than 0 and at most 1")

    def with_short_warmup(self) -> Optimization:
        """Return settings whose warm-up fits into the epochs: a fifth of them if it was as long as all or longer."""
        if self.warmup_epochs < self.epochs:
            return self
        return dataclasses.replace(self, warmup_epochs=self.epochs / 5)

    def backbone_groups(self, backbone: nn.Module) -> list[dict[str, Any]]:
        """Return the parameter groups of ``backbone``, before a method wraps it: by weight decay and by depth."""
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
        """Return AdamW over the backbone's groups and a group of all other parameters of ``model``.

        ``replayed_on`` is the device of a CUDA graph: there the learning rates are tensors, changed in place.
        """
        known = {id(parameter) for group in groups for parameter in group["params"]}
        added = [p for p in model.parameters() if id(p) not in known and p.requires_grad]
        if added:
            late = {"lr": self.canonicalizer_rate, "weight_decay": 0.0, "start": self.canonicalizer_start}
            groups = [*groups, {"params": added, **late}]
        if replayed_on is not None:
            groups = [{**group, "lr": torch.tensor(group["lr"], device=replayed_on)} for group in groups]
        return torch.optim.AdamW(groups, fused=True, capturable=replayed_on is not None)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class Schedule:
    """The learning rate as a function of the step and, for ``plateau``, of the training losses so far."""

    def __init__(self, settings: Optimization, optimizer: Any, per_epoch: int) -> None:
        self.settings, self.optimizer, self.per_epoch = settings, optimizer, per_epoch
        self.peaks = [float(group["lr"]) * group.get("lr_scale", 1.0) for group in optimizer.param_groups]
        self.best, self.waited, self.drops = math.inf, 0, 0

    def factor(self, step: int) -> float:
        """Return the learning rate at ``step`` relative to the highest one."""
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
        """Set the learning rates for step number ``step``."""
        factor = self.factor(step)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            rate = factor * peak if self.begun(step, group) else 0.0
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def begun(self, step: int, group: dict[str, Any]) -> bool:
        """Return whether the parameters of a group are trained at step number ``step``."""
        return step / (self.settings.epochs * self.per_epoch) >= group.get("start", 0.0)

    def after_epoch(self, loss: float) -> None:
        """Count epochs without a lower training loss, for ``plateau``."""
        if self.settings.schedule != "plateau":
            return
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        if self.waited >= self.settings.decay_epochs:
            self.drops, self.waited = self.drops + 1, 0

    def state(self) -> dict[str, float]:
        """Return the state that a checkpoint stores."""
        return {"best": self.best, "waited": self.waited, "drops": self.drops}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self.best, self.waited, self.drops = float(state["best"]), int(state["waited"]), int(state["drops"])
