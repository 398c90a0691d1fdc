"""The settings of ``fit``, checked once, and what it reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from localscale.errors import ConfigError, near_misses

__all__ = ["MONITORS", "Callback", "EpochReport", "FitSettings", "Fitted"]

MONITORS = ("accuracy", "loss", "invariance_error", "equivariance_error")  # all but the first are better if lower


@dataclass(frozen=True)
class EpochReport:
    """One epoch of ``fit``: its number from 1, the training loss, the seconds, and the metrics on validation images.

    ``metrics`` is empty without validation images. Else it holds ``"loss"``, ``"accuracy"`` (of pixels, for masks) and
    ``"invariance_error"`` or, for masks, ``"equivariance_error"``, both under random local scaling. With a loss of your
    own and labels that are neither classes nor masks, there is no accuracy.
    """

    epoch: int
    loss: float
    seconds: float
    metrics: dict[str, float]

    @property
    def finite(self) -> bool:
        """Whether the loss and all metrics are finite."""
        return all(math.isfinite(value) for value in (self.loss, *self.metrics.values()))

    def __str__(self) -> str:
        say = {
            "accuracy": lambda value: f", accuracy {100 * value:.1f} %",
            "loss": lambda value: f", val loss {value:.4f}",
            "invariance_error": lambda value: f", InvE {100 * value:.2f}e-2",
            "equivariance_error": lambda value: f", EquE {value:.4f}",
        }
        found = "".join(say[name](value) for name, value in self.metrics.items())
        return f"epoch {self.epoch}: loss {self.loss:.4f}{found}, {self.seconds:.0f} s"


Callback = Callable[[EpochReport], object]


@dataclass(frozen=True)
class Fitted:
    """The result of ``fit``: all epochs, the one whose weights the model has now, and why training ended."""

    history: tuple[EpochReport, ...]
    best: EpochReport
    ended: str


@dataclass(frozen=True)
class FitSettings:
    """All numbers of ``fit`` that decide what is learned; a resumed call must have the same."""

    epochs: int
    learning_rate: float
    head_rate: float
    canonicalizer_rate: float
    weight_decay: float
    warmup: float
    clip: float
    size_weight: float
    monitor: str

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError(f"epochs is {self.epochs}; expected at least 1")
        for name in ("learning_rate", "head_rate", "canonicalizer_rate", "weight_decay", "clip", "size_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a finite number, 0 or more")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup is {self.warmup}; expected a fraction of all steps, from 0 to less than 1")
        if self.monitor not in MONITORS:
            raise ConfigError(f"monitor is {self.monitor!r}: {near_misses(self.monitor, MONITORS)}")

    def better(self, new: EpochReport, old: EpochReport | None) -> bool:
        """Return whether ``new`` is better than ``old``; without validation images the last epoch is the best.

        An epoch with a loss or metric that is not finite is never better.
        """
        if new.metrics and self.monitor not in new.metrics:
            raise ConfigError(f"monitor is {self.monitor!r}; this model is measured by {', '.join(new.metrics)}")
        if not new.finite:
            return False
        if old is None or not new.metrics:
            return True
        sign = 1 if self.monitor == "accuracy" else -1
        return sign * new.metrics[self.monitor] > sign * old.metrics[self.monitor]
