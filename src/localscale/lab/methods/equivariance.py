"""AugL: the equivariance error as a loss (paper, Eq. eq:eque)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from localscale.conventions import compute_dtype
from localscale.errors import ConfigError
from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.methods.method import Criterion, Method
from localscale.lab.randomness import Draws
from localscale.maps.base import Map
from localscale.warp import unscale

__all__ = ["AugL", "mask_error"]


def mask_error(logits: Tensor, scaled: Tensor, u: Map) -> Tensor:
    """Return ‖S(M(I); g) − M(S(I; g))‖² on softmax masks ``(B, K, H, W)``, mean over images and pixels, with g = u⁻¹.

    >>> logits = torch.rand(2, 3, 8, 8)
    >>> mask_error(logits, logits, localscale.identity_map())
    tensor(0.)
    """
    return (unscale(logits.softmax(1), u) - scaled.softmax(1)).square().sum(1).mean()


@dataclass(frozen=True)
class AugL(Method):
    """The task's loss plus the equivariance error of the masks; one forward pass takes images and scaled copies."""

    weight: float = 1.0
    """Weight of the equivariance loss."""
    scaling: RandomScaling = field(default_factory=RandomScaling)
    """Random scaling of the second image (Φ)."""

    def check(self) -> None:
        self.scaling.check()
        if not 0 <= self.weight < math.inf:
            raise ConfigError(f"--method.weight is {self.weight}; expected a finite number, 0 or more")

    def check_answers(self, *, dense: bool) -> None:
        if not dense:
            raise ConfigError("AugL compares masks, but this task has one class per image; use InvL")

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        u = self.scaling.maps(draws, "equivariance")
        answers = model(torch.cat((images, unscale(images, u))))
        logits, scaled = answers.to(compute_dtype(answers.dtype)).chunk(2)
        task = criterion(logits, labels)
        equivariance = mask_error(logits, scaled, u)
        return {"loss": task + self.weight * equivariance, "task": task, "equivariance": equivariance}
