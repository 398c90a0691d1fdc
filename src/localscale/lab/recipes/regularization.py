"""Regularization against overfitting: label smoothing, mixup, cutmix, random erasing and stochastic depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from timm.data import Mixup
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from localscale.errors import ConfigError

__all__ = ["Regularization", "mixing", "smoothing"]


@dataclass(frozen=True)
class Regularization:
    """Regularization against overfitting (App. A1, table hyper_imnet); 0 turns each kind off."""

    label_smoothing: float = 0.0
    """Probability that is spread over all classes."""
    mixup: float = 0.0
    """α of mixup."""
    cutmix: float = 0.0
    """α of cutmix."""
    random_erasing: float = 0.0
    """Probability that a rectangle of an image is erased."""
    drop_path: float = 0.0
    """Rate of stochastic depth, for backbones that have it."""

    def check(self) -> None:
        """Raise ``ConfigError`` for values outside their range."""
        for name in ("label_smoothing", "random_erasing", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} is {getattr(self, name)}; expected 0 to less than 1")
        if min(self.mixup, self.cutmix) < 0:
            raise ConfigError(f"--mixup is {self.mixup} and --cutmix {self.cutmix}; expected 0 or more")


def mixing(settings: Regularization, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Return timm's random erasing followed by mixup and cutmix, or None if all are 0; they draw on the host."""
    if not (settings.random_erasing or settings.mixup or settings.cutmix):
        return None
    erase = RandomErasing(settings.random_erasing, mode="pixel", device="cpu")
    mix = Mixup(settings.mixup, settings.cutmix, label_smoothing=settings.label_smoothing, num_classes=classes)

    def apply(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        erase.device = images.device
        images = erase(images)
        return mix(images, labels) if settings.mixup or settings.cutmix else (images, labels)

    return apply


def smoothing(settings: Regularization) -> float:
    """Return the label smoothing for the criterion: 0 with mixup, which smooths labels itself."""
    return 0.0 if settings.mixup or settings.cutmix else settings.label_smoothing
