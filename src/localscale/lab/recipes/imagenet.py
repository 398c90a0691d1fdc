"""Locally scaled ImageNet (paper, Tab. imagenet_results and per_scale_imnet), with the settings of App. A1.

Base is timm's weights trained on for 20 epochs; every other row goes on from Base for 20 more. ``base_plus`` is the
equal-budget control, ``dec_joint`` and ``dec_compose_joint`` train with the backbone from timm's weights for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from localscale.lab.backbones.catalogue import Backbone
from localscale.lab.methods import DEC, Canon, InvL, RandomScaling
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.recipes.rows import direct, make, optim, supervised
from localscale.lab.tasks.imagenet import ImageNetData

__all__ = ["IMAGENET_ROWS"]

EPOCHS = 20
GENTLE = 0.5  # natural images: digits bear more


def _optimization(epochs: int, canonicalizer_rate: float) -> Optimization:
    return Optimization(
        epochs=epochs,
        batch_size=80,
        learning_rate=1e-7,
        canonicalizer_rate=canonicalizer_rate,
        weight_decay=0.05,
        layer_decay=0.75,
        schedule="cosine",
        warmup_epochs=5,
    )


@dataclass(frozen=True)
class ImageNetRecipe(Recipe):
    """What the rows share: App. A1, table hyper_imnet."""

    epochs_by_default: ClassVar[int] = EPOCHS
    starts_from: ClassVar[str] = "base"
    canonicalizer_rate: ClassVar[float] = 1e-4  # the backbone's, a thousandth of it, would leave them where they start

    data: ImageNetData = field(default_factory=ImageNetData)
    augmentation: RandomScaling = field(default_factory=lambda: RandomScaling(probability=0.0))
    regularization: Regularization = field(
        default_factory=lambda: Regularization(label_smoothing=0.1, mixup=0.8, random_erasing=0.25)
    )


@dataclass(frozen=True)
class ImageNetBase(ImageNetRecipe):
    """Base: timm's weights, fine-tuned without anything about local scale.

    localscale train imagenet-deit_tiny-base --data.train-root imagenet/train --data.test-root out/imagenet
    """

    starts_from: ClassVar[str] = ""


@dataclass(frozen=True)
class ImageNetBasePlus(ImageNetRecipe):
    """The equal-budget control: Base trained on for as long as every other row.

    localscale train imagenet-deit_tiny-base_plus --start runs/imagenet-deit_tiny-base/seed0 --data.train-root …
    """


@dataclass(frozen=True)
class ImageNetAug(ImageNetRecipe):
    """Aug: Base trained on with random monotone scaling of every second image.

    localscale train imagenet-deit_tiny-aug --start runs/imagenet-deit_tiny-base/seed0 --data.train-root …
    """

    augmentation: RandomScaling = field(default_factory=lambda: RandomScaling(strength=GENTLE, probability=0.5))


@dataclass(frozen=True)
class ImageNetCanon(ImageNetAug):
    """Canon: each image tried against 25 configurations.

    localscale train imagenet-deit_tiny-canon --start runs/imagenet-deit_tiny-base/seed0 --data.train-root …
    """

    method: Canon = field(default_factory=lambda: Canon(configurations=25, canon_strength=GENTLE))


@dataclass(frozen=True)
class ImageNetInvL(ImageNetAug):
    """InvL: a loss on how much answers move when the image is scaled.

    localscale train imagenet-deit_tiny-invl --start runs/imagenet-deit_tiny-base/seed0 --data.train-root …
    """

    method: InvL = field(default_factory=lambda: InvL(scaling=RandomScaling(strength=GENTLE)))


@dataclass(frozen=True)
class ImageNetOptim(ImageNetAug):
    """Optim: canonicalization by a differentiable inner optimisation of an energy, its steps unrolled.

    localscale train imagenet-deit_tiny-optim --start runs/imagenet-deit_tiny-base/seed0 --data.train-root …
    """

    method: DEC = field(default_factory=optim)


@dataclass(frozen=True)
class ImageNetDEC(ImageNetAug):
    """DEC as in the paper: the direct update, learned by the task's loss alone.

    localscale train imagenet-deit_tiny-dec --start runs/imagenet-deit_tiny-base/seed0 --data.train-root …
    """

    method: DEC = field(default_factory=direct)


@dataclass(frozen=True)
class ImageNetDECJoint(ImageNetDEC):
    """DEC as in the paper, trained with the backbone from timm's weights.

    localscale train imagenet-deit_tiny-dec_joint --data.train-root … --data.test-root …
    """

    epochs_by_default: ClassVar[int] = 2 * EPOCHS
    starts_from: ClassVar[str] = ""


@dataclass(frozen=True)
class ImageNetDECCompose(ImageNetAug):
    """DEC with the compose update and equivariance supervision.

    localscale train imagenet-deit_tiny-dec_compose --start runs/imagenet-deit_tiny-base/seed0 --data.train-root …
    """

    canonicalizer_rate: ClassVar[float] = 1e-3

    method: DEC = field(default_factory=lambda: supervised(strength=GENTLE))


@dataclass(frozen=True)
class ImageNetDECComposeJoint(ImageNetDECCompose):
    """DEC with the compose update and equivariance supervision, trained with the backbone from timm's weights.

    localscale train imagenet-deit_tiny-dec_compose_joint --data.train-root … --data.test-root …
    """

    epochs_by_default: ClassVar[int] = 2 * EPOCHS
    starts_from: ClassVar[str] = ""


KINDS: dict[str, type[ImageNetRecipe]] = {
    "base": ImageNetBase,
    "base_plus": ImageNetBasePlus,
    "aug": ImageNetAug,
    "canon": ImageNetCanon,
    "invl": ImageNetInvL,
    "optim": ImageNetOptim,
    "dec": ImageNetDEC,
    "dec_joint": ImageNetDECJoint,
    "dec_compose": ImageNetDECCompose,
    "dec_compose_joint": ImageNetDECComposeJoint,
}


def _make(prefix: str, row: str, backbone: Backbone) -> Recipe:
    kind = KINDS[row]
    optimization = _optimization(kind.epochs_by_default, kind.canonicalizer_rate)
    return make(kind, prefix, row, backbone, optimization)


IMAGENET_ROWS: dict[str, Callable[[str, str, Backbone], Recipe]] = dict.fromkeys(KINDS, _make)
