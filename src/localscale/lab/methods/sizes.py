"""The size equilibrium: learn the sizes of things, without labels or from masks, then train on canonical forms."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from localscale.adaptation import AdaptedModel, adapt, learn_sizes
from localscale.adaptation.size_sites import size_canonicalizers
from localscale.canonicalizer import DECConfig, SiteReport, SizeNetwork
from localscale.canonicalizer.shipped import SHIPPED
from localscale.canonicalizer.site import INPUT
from localscale.errors import ConfigError, near_misses
from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.methods.dec import site_scalars
from localscale.lab.methods.method import Criterion, Method, check_mode
from localscale.lab.randomness import Draws
from localscale.warp import unscale

__all__ = ["SizeEquilibrium"]

IGNORED = -100  # label of pixels that do not count, as in the tasks

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SizeEquilibrium(Method):
    """Scale the things in an image to one size before the backbone sees it."""

    config: DECConfig = field(default_factory=DECConfig)
    """Settings of the canonicalizer at the image."""
    shipped: str = ""
    """Name of a canonicalizer that comes with the package, photographs, to use instead of ``config``."""
    learning_steps: int = 2000
    """Steps of learning sizes before the backbone is trained."""
    masks: bool = False
    """Learn from the masks of the training images where things are and how large they are; class 0 is background."""
    along: float = 0.0
    """Weight of the size loss while the backbone is trained; 0 keeps the size network fixed."""
    canonical_scaling: RandomScaling = field(default_factory=lambda: RandomScaling(probability=0.0))
    """Random scaling of the canonical forms in training. Scaling the images hardly changes their canonical forms."""

    def check(self) -> None:
        if self.shipped and self.shipped not in SHIPPED:
            raise ConfigError(f"--method.shipped is {self.shipped!r}: {near_misses(self.shipped, SHIPPED)}")
        if self.shipped and (self.learning_steps or self.along):
            raise ConfigError(
                f"--method.shipped {self.shipped} names a canonicalizer that has learned sizes already; add "
                "--method.learning-steps 0 --method.along 0"
            )
        if not isinstance(self.config.network, SizeNetwork) or INPUT not in self.config.sites:
            raise ConfigError('the size equilibrium needs a SizeNetwork at the site "input"')
        if self.masks and self.config.network.weight != "learned":
            raise ConfigError(
                f"--method.masks teaches weights, and --method.config.network.weight is "
                f"{self.config.network.weight}; add --method.config.network.weight learned"
            )
        self.canonical_scaling.check()
        if self.canonical_scaling.probability and (self.config.sites != (INPUT,) or self.config.mode != "invariant"):
            raise ConfigError(
                '--method.canonical-scaling.probability must be 0, unless "input" is the only site and the '
                "mode is invariant"
            )
        if self.learning_steps < 0 or self.along < 0:
            raise ConfigError(
                f"--method.learning-steps is {self.learning_steps} and --method.along {self.along}; expected 0 or more"
            )

    def check_answers(self, *, dense: bool) -> None:
        check_mode(self.config.mode, dense=dense)
        if self.masks and not dense:
            raise ConfigError("--method.masks needs masks, but this task has one class per image; leave it out")

    def build(
        self,
        backbone: nn.Module,
        *,
        input_size: tuple[int, int, int] | None = None,
        source_size: tuple[int, int] | None = None,
    ) -> AdaptedModel:
        config = self.shipped or self.config
        model = adapt(backbone, config, input_size=input_size, source_size=source_size)
        if not self.along:
            for canonicalizer in size_canonicalizers(model).values():
                canonicalizer.requires_grad_(False)
        return model

    def prepare(
        self, model: nn.Module, batches: Iterable[Any], *, progress: bool, checkpoint: Path | None = None
    ) -> dict[str, Any] | None:
        assert isinstance(model, AdaptedModel)
        found = None
        if self.learning_steps:
            found = learn_sizes(
                model,
                batches,
                things="masks" if self.masks else None,
                ignore_index=IGNORED,
                steps=self.learning_steps,
                checkpoint=checkpoint,
                progress=progress,
            )
        for path, canonicalizer in size_canonicalizers(model).items():
            if not self.along and float(canonicalizer.network.trust) == 0:
                logger.warning(
                    "the size network at %s has not learned sizes, so the model is trained and used as if it had none: "
                    "raise --method.learning-steps %d, or learn sizes along with the task (--method.along 1)",
                    path,
                    self.learning_steps,
                )
        return None if found is None else {k: v for k, v in dataclasses.asdict(found).items() if v is not None}

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        assert isinstance(model, AdaptedModel)
        logits, report = self._answer(model, images, draws)
        task = criterion(logits, labels)
        found = {"loss": task, "task": task} | site_scalars(report)
        if self.along:
            found["sizes"] = model.size_loss(images, masks=labels if self.masks else None, ignore_index=IGNORED)
            found["loss"] = task + self.along * found["sizes"]
        return found

    def _answer(self, model: AdaptedModel, images: Tensor, draws: Draws) -> tuple[Tensor, dict[str, SiteReport]]:
        """Return the model's logits on canonical forms, which are scaled at random if the settings say so."""
        if not self.canonical_scaling.probability:
            return model(images, return_report=True)
        report = model.size_canonicalizer()(images)
        canonical = unscale(images, report.applied @ self.canonical_scaling.maps(draws, "canonical"))
        with model.disabled():
            return model(canonical), {INPUT: report}
