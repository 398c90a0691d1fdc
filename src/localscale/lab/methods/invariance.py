"""InvL: ask for invariance in the loss (paper, Eq. inv_loss)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localscale.conventions import compute_dtype
from localscale.errors import ConfigError, near_misses
from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.methods.method import Criterion, Method
from localscale.lab.randomness import Draws
from localscale.warp import unscale

__all__ = ["InvL", "answer_divergence"]

DIVERGENCES = ("squared", "kl")


def answer_divergence(logits: Tensor, scaled: Tensor, kind: str) -> Tensor:
    """How far the answers to scaled images are from the answers to the images, mean over the batch.

    ``"squared"`` is the paper's ‖M(I) − M(S(I; Φ))‖² on softmax outputs, ``"kl"`` is KL(M(I) ‖ M(S(I; Φ))).

    >>> answer_divergence(torch.zeros(1, 2), torch.zeros(1, 2), "squared")
    tensor(0.)
    """
    _check_divergence(kind)
    if kind == "squared":
        return (logits.softmax(1) - scaled.softmax(1)).square().sum(1).mean()
    return F.kl_div(scaled.log_softmax(1), logits.log_softmax(1), reduction="batchmean", log_target=True)


def _check_divergence(kind: str) -> None:
    if kind not in DIVERGENCES:
        raise ConfigError(f"no divergence {kind!r}: {near_misses(str(kind), DIVERGENCES)}")


@dataclass(frozen=True)
class InvL(Method):
    """The task's loss, and how much answers move when the image is scaled; both images in one pass."""

    weight: float = 1.0
    """Of the invariance loss."""
    divergence: Literal["squared", "kl"] = "squared"
    """The paper's squared ℓ2 between softmax outputs, or the Kullback-Leibler divergence."""
    scaling: RandomScaling = field(default_factory=RandomScaling)
    """Φ: how the second image is scaled."""

    def check(self) -> None:
        self.scaling.check()
        if not 0 <= self.weight < math.inf:
            raise ConfigError(f"the invariance loss has weight {self.weight}; expected 0 or more")
        _check_divergence(self.divergence)

    def check_answers(self, *, dense: bool) -> None:
        if dense:
            raise ConfigError("InvL wants answers that do not move, but masks move with the image; use AugL")

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        scaled = unscale(images, self.scaling.maps(draws, "invariance"))
        answers = model(torch.cat((images, scaled)))
        logits, scaled_logits = answers.to(compute_dtype(answers.dtype)).chunk(2)
        task = criterion(logits, labels)
        invariance = answer_divergence(logits, scaled_logits, self.divergence)
        return {"loss": task + self.weight * invariance, "task": task, "invariance": invariance}
