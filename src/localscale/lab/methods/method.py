"""What the methods of the paper's tables have in common: how they change a backbone, and what they minimise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from localscale.errors import ConfigError
from localscale.lab.randomness import Draws

__all__ = ["Criterion", "FineTune", "Method", "TrainingStep", "check_mode"]

Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Method:
    """A row of a table: frozen settings, no state."""

    def check(self) -> None:
        """Refuse settings that cannot work."""

    def check_answers(self, *, dense: bool) -> None:
        """Refuse to work on a model that answers for every pixel (``dense``), or on one that does not."""

    def build(self, backbone: nn.Module) -> nn.Module:
        """The model to train: ``backbone``, or something around it. At first its answers are the backbone's."""
        return backbone

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        """Scalars to log, of which ``"loss"`` is minimised; by default the task's loss alone.

        Args:
            model: what ``build`` returned.
            images: normalised and augmented, ``(B, C, H, W)``.
            labels: class numbers ``(B,)``, or ``(B, H, W)`` for every pixel, or distributions ``(B, K)``.
            criterion: the task's loss of logits and labels.
            draws: the source of everything random.
        """
        return {"loss": criterion(model(images), labels)}


@dataclass(frozen=True)
class FineTune(Method):
    """The backbone alone: Base, Aug and Aug+ differ in what it is trained on and from where."""


def check_mode(mode: str, *, dense: bool) -> None:
    """Refuse to canonicalize masks without scaling them back, or to scale back what is no mask."""
    wanted, answers = ("equivariant", "a mask") if dense else ("invariant", "one class")
    if mode != wanted:
        raise ConfigError(f'the method\'s mode is "{mode}", but each image has {answers} for an answer; use "{wanted}"')


class TrainingStep(nn.Module):
    """A model, a method and a criterion as one module, so that whatever wraps modules wraps all of a step.

    Autocast, distributed data parallel and compilation then see every use of every parameter.
    """

    def __init__(self, model: nn.Module, method: Method, criterion: Criterion) -> None:
        super().__init__()
        self.model, self.method, self.criterion = model, method, criterion

    def forward(self, images: Tensor, labels: Tensor, seed: int, index: Tensor) -> dict[str, Tensor]:
        return self.method.losses(self.model, images, labels, self.criterion, Draws(seed, index))
