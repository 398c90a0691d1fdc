"""What keeps a large model from learning a small dataset by heart (App. A1, table hyper_imnet)."""

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
    """What keeps a large model from learning a small dataset by heart (App. A1, table hyper_imnet)."""

    label_smoothing: float = 0.0
    """Probability spread over all classes."""
    mixup: float = 0.0
    """α of mixup; 0 is none."""
    cutmix: float = 0.0
    """α of cutmix; 0 is none."""
    random_erasing: float = 0.0
    """Probability that a rectangle of an image is erased."""
    drop_path: float = 0.0
    """Rate of stochastic depth, where the backbone has it."""

    def check(self) -> None:
        """Refuse what is no probability."""
        for name in ("label_smoothing", "random_erasing", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 0 to less than 1")
        if min(self.mixup, self.cutmix) < 0:
            raise ConfigError(f"mixup is {self.mixup} and cutmix {self.cutmix}; expected 0 or more")


def mixing(settings: Regularization, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Random erasing, then mixup, as timm does them; None without either. They throw their dice on the host."""
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
    """Label smoothing left to the criterion: mixup smooths its own labels."""
    return 0.0 if settings.mixup or settings.cutmix else settings.label_smoothing
