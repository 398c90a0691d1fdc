"""Locally scaled MNIST (paper, Tab. mnist_results and per_scale_mnist): 6,000 images to learn a thousand numbers.

The paper trains Aug for 50 epochs and everything else for 40 more from its weights (App. A1). Rows that end in
``_joint`` train canonicalizers and backbone together from the start, for the 90 epochs of both, and ``aug_long`` is
their control. ``base`` takes the place of pretraining where there are no weights. The paper does not give the
augmentation; ours scales the three rows and columns of digits by up to e² against each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from localscale.lab.backbones.catalogue import Backbone
from localscale.lab.methods import DEC, Canon, InvL, RandomScaling
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.recipes.rows import direct, make, optim, supervised
from localscale.lab.tasks.mnist import MNISTData

__all__ = ["MNIST_ROWS"]

FIRST, MORE = 50, 40  # epochs from pretrained weights, and from Aug's


def _augmentation() -> RandomScaling:
    return RandomScaling(strength=2.0, probability=1.0, knots=4, family="separable")


@dataclass(frozen=True)
class MNISTRecipe(Recipe):
    """What the rows share."""

    epochs_by_default: ClassVar[int] = FIRST
    starts_from: ClassVar[str] = ""
    canonicalizer_rate: ClassVar[float] = 0.0  # the backbone's

    data: MNISTData = field(default_factory=MNISTData)
    augmentation: RandomScaling = field(default_factory=_augmentation)


@dataclass(frozen=True)
class MNISTBase(MNISTRecipe):
    """Base: the backbone alone, on the images as they are; for backbones that come without weights.

    localscale train mnist-resformer_tiny-base
    """

    augmentation: RandomScaling = field(default_factory=lambda: RandomScaling(probability=0.0))


@dataclass(frozen=True)
class MNISTAug(MNISTRecipe):
    """Aug: the backbone alone, with random monotone scaling.

    localscale train mnist-deit_tiny-aug
    """


@dataclass(frozen=True)
class MNISTAugLong(MNISTRecipe):
    """The control of the ``_joint`` rows: Aug with their number of epochs.

    localscale train mnist-deit_tiny-aug_long
    """

    epochs_by_default: ClassVar[int] = FIRST + MORE


@dataclass(frozen=True)
class MNISTAugPlus(MNISTRecipe):
    """Aug+, the equal-budget control: Aug's weights trained on for as long as every other row.

    localscale train mnist-deit_tiny-aug_plus --start runs/mnist-deit_tiny-aug/seed0
    """

    epochs_by_default: ClassVar[int] = MORE
    starts_from: ClassVar[str] = "aug"


@dataclass(frozen=True)
class MNISTCanon(MNISTAugPlus):
    """Canon: each image tried against 64 configurations, the one of least energy kept.

    localscale train mnist-deit_tiny-canon --start runs/mnist-deit_tiny-aug/seed0
    """

    method: Canon = field(default_factory=Canon)


@dataclass(frozen=True)
class MNISTInvL(MNISTAugPlus):
    """InvL: a loss on how much answers move when the image is scaled.

    localscale train mnist-deit_tiny-invl --start runs/mnist-deit_tiny-aug/seed0
    """

    method: InvL = field(default_factory=lambda: InvL(scaling=_augmentation()))


@dataclass(frozen=True)
class MNISTDEC(MNISTAugPlus):
    """DEC as in the paper: the direct update at the image and in the backbone, learned by the task's loss alone.

    localscale train mnist-deit_tiny-dec --start runs/mnist-deit_tiny-aug/seed0
    """

    method: DEC = field(default_factory=direct)


@dataclass(frozen=True)
class MNISTDECJoint(MNISTDEC):
    """DEC as in the paper, but trained with the backbone from the start.

    localscale train mnist-deit_tiny-dec_joint
    """

    epochs_by_default: ClassVar[int] = FIRST + MORE
    starts_from: ClassVar[str] = ""


@dataclass(frozen=True)
class MNISTDECCompose(MNISTAugPlus):
    """DEC with the compose update and equivariance supervision, added to Aug's weights.

    localscale train mnist-deit_tiny-dec_compose --start runs/mnist-deit_tiny-aug/seed0
    """

    canonicalizer_rate: ClassVar[float] = 2e-3

    method: DEC = field(default_factory=lambda: supervised(strength=2.0))


@dataclass(frozen=True)
class MNISTDECComposeJoint(MNISTDECCompose):
    """DEC with the compose update and equivariance supervision, trained with the backbone from the start.

    localscale train mnist-deit_tiny-dec_compose_joint
    """

    epochs_by_default: ClassVar[int] = FIRST + MORE
    starts_from: ClassVar[str] = ""


@dataclass(frozen=True)
class MNISTOptim(MNISTAugPlus):
    """Optim: canonicalization by a differentiable inner optimisation of an energy, its steps unrolled.

    localscale train mnist-deit_tiny-optim --start runs/mnist-deit_tiny-aug/seed0
    """

    method: DEC = field(default_factory=optim)


KINDS: dict[str, type[MNISTRecipe]] = {
    "base": MNISTBase,
    "aug": MNISTAug,
    "aug_plus": MNISTAugPlus,
    "aug_long": MNISTAugLong,
    "canon": MNISTCanon,
    "invl": MNISTInvL,
    "optim": MNISTOptim,
    "dec": MNISTDEC,
    "dec_joint": MNISTDECJoint,
    "dec_compose": MNISTDECCompose,
    "dec_compose_joint": MNISTDECComposeJoint,
}


def _make(prefix: str, row: str, backbone: Backbone) -> Recipe:
    kind = KINDS[row]
    optimization = Optimization(
        epochs=kind.epochs_by_default,
        learning_rate=backbone.mnist_rate,
        canonicalizer_rate=kind.canonicalizer_rate or backbone.mnist_rate,
    )
    return dataclasses.replace(make(kind, prefix, row, backbone, optimization), head_norm=backbone.from_scratch)


MNIST_ROWS: dict[str, Callable[[str, str, Backbone], Recipe]] = dict.fromkeys(KINDS, _make)
