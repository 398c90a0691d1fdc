"""InvL: the invariance error as a loss (paper, Eq. inv_loss)."""

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
    """Return the distance between the answers to images and to scaled images, mean over the batch.

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
        raise ConfigError(f"the divergence is {kind!r}: {near_misses(str(kind), DIVERGENCES)}")


@dataclass(frozen=True)
class InvL(Method):
    """The task's loss plus the invariance error of the answers; one forward pass takes images and scaled copies."""

    weight: float = 1.0
    """Weight of the invariance loss."""
    divergence: Literal["squared", "kl"] = "squared"
    """squared: the paper's squared ℓ2 between softmax outputs; kl: the Kullback-Leibler divergence."""
    scaling: RandomScaling = field(default_factory=RandomScaling)
    """Random scaling of the second image (Φ)."""

    def check(self) -> None:
        self.scaling.check()
        if not 0 <= self.weight < math.inf:
            raise ConfigError(f"--method.weight is {self.weight}; expected a finite number, 0 or more")
        _check_divergence(self.divergence)

    def check_answers(self, *, dense: bool) -> None:
        if dense:
            raise ConfigError("InvL compares classes, but masks move with the image; use AugL")

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        scaled = unscale(images, self.scaling.maps(draws, "invariance"))
        answers = model(torch.cat((images, scaled)))
        logits, scaled_logits = answers.to(compute_dtype(answers.dtype)).chunk(2)
        task = criterion(logits, labels)
        invariance = answer_divergence(logits, scaled_logits, self.divergence)
        return {"loss": task + self.weight * invariance, "task": task, "invariance": invariance}
