"""The interface of the methods in the paper's tables: the model around a backbone, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from localscale.adaptation.discover import usual_input_size
from localscale.conventions import resize_cubic, stretch
from localscale.errors import ConfigError
from localscale.lab.randomness import Draws

__all__ = ["Criterion", "FineTune", "Method", "Resized", "TrainingStep", "backbone_size", "check_mode"]

Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Method:
    """Base class of the methods: frozen settings without state. ``METHODS`` lists the subclasses."""

    prepared: ClassVar[str] = "learned_sizes"  # name in result.json of what ``prepare`` returns

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that cannot work."""

    def check_answers(self, *, dense: bool) -> None:
        """Raise ``ConfigError`` if the method cannot be used for segmentation (``dense``) or for classification."""

    def build(
        self,
        backbone: nn.Module,
        *,
        input_size: tuple[int, int, int] | None = None,
        source_size: tuple[int, int] | None = None,
    ) -> nn.Module:
        """Return the model to train: ``backbone``, or a module around it that starts with the same answers.

        Args:
            backbone: a classifier, or a segmenter.
            input_size: the (channels, height, width) of its images; by default what ``backbone`` declares.
            source_size: the (height, width) of the images that are given to the model, if they are larger; they are
                resized for ``backbone``, by default as a whole.
        """
        return backbone if source_size is None else Resized(backbone, backbone_size(backbone, input_size))

    def prepare(
        self, model: nn.Module, batches: Iterable[Any], *, progress: bool, checkpoint: Path | None = None
    ) -> dict[str, Any] | None:
        """Prepare ``model`` for the first training step; by default do nothing.

        ``batches`` are pairs of normalised images, without augmentation, and their labels, as ``losses`` gets them.

        Return what is to be kept in result.json, as JSON values. A long preparation writes ``checkpoint`` if it is
        interrupted, and continues from that file if it exists.
        """
        return None

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        """Return the scalars to log; training minimises ``"loss"``. By default this is the task's loss alone.

        Args:
            model: the model that ``build`` returned.
            images: normalised and augmented images ``(B, C, H, W)``.
            labels: class numbers ``(B,)``, label maps ``(B, H, W)`` or class probabilities ``(B, K)``.
            criterion: the task's loss of logits and labels.
            draws: the source of all random numbers.
        """
        return {"loss": criterion(model(images), labels)}


@dataclass(frozen=True)
class FineTune(Method):
    """Train the backbone alone; Base, Aug and Aug+ differ in the augmentation and the first weights."""


class Resized(nn.Module):
    """A backbone for larger images: they are resized to its ``size``, and maps of pixels are enlarged to theirs.

    So a control without a canonicalizer sees what an adapted model with a ``source_size`` sees through the identity.

    >>> Resized(nn.Conv2d(3, 5, 1), (8, 8))(torch.rand(2, 3, 16, 20)).shape
    torch.Size([2, 5, 16, 20])
    """

    def __init__(self, base: nn.Module, size: tuple[int, int]) -> None:
        super().__init__()
        self.base, self.size = base, size

    def forward(self, images: Tensor) -> Tensor:
        answer = self.base(resize_cubic(images, *self.size))
        return stretch(answer, images.shape[-2], images.shape[-1]) if answer.dim() == 4 else answer


def backbone_size(backbone: nn.Module, input_size: tuple[int, int, int] | None) -> tuple[int, int]:
    """Return the (height, width) of a backbone's images: those of ``input_size``, or what it declares."""
    _, height, width = input_size or usual_input_size(backbone)
    return height, width


def check_mode(mode: str, *, dense: bool) -> None:
    """Raise ``ConfigError`` unless ``mode`` is equivariant for ``dense`` labels and invariant for class labels."""
    wanted, answers = ("equivariant", "a mask") if dense else ("invariant", "one class")
    if mode != wanted:
        raise ConfigError(f"the method's mode is {mode}, but this task has {answers} per image; use {wanted}")


class TrainingStep(nn.Module):
    """A model, a method and a criterion as one module.

    Autocast and distributed data parallel wrap this module and so see every use of every parameter in a step.
    """

    def __init__(self, model: nn.Module, method: Method, criterion: Criterion) -> None:
        super().__init__()
        self.model, self.method, self.criterion = model, method, criterion

    def forward(self, images: Tensor, labels: Tensor, seed: int, index: Tensor) -> dict[str, Tensor]:
        return self.method.losses(self.model, images, labels, self.criterion, Draws(seed, index))
