"""Locally scaled objects (paper, Tab. lsos_results): a DPT head over the backbone, with the settings of App. A1.

Aug is trained for 120 epochs at 1e-4, the rate falling to 0.7 of itself every 30; every other row goes on from its
weights for 60 at 2e-5. Rows that end in ``_joint`` train canonicalizer and model together from the start, for the
epochs of both, and ``aug_long`` is their control. Batch size and augmentation are not given; ours are 32 images, every
second one scaled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from localscale.lab.backbones.catalogue import Backbone
from localscale.lab.methods import DEC, AugL, Canon, RandomScaling
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.recipes.rows import direct, make, supervised
from localscale.lab.tasks.objects import ObjectsData

__all__ = ["OBJECTS_ROWS"]

FIRST, MORE = 120, 60  # epochs from pretrained weights, and from Aug's
RATES = {FIRST: 1e-4, MORE: 2e-5, FIRST + MORE: 1e-4}
STRENGTH = 1.0  # of every scaling


def _equivariant(method: DEC) -> DEC:
    return dataclasses.replace(method, mode="equivariant")


@dataclass(frozen=True)
class ObjectsRecipe(Recipe):
    """What the rows share."""

    epochs_by_default: ClassVar[int] = FIRST
    starts_from: ClassVar[str] = ""
    canonicalizer_rate: ClassVar[float] = 1e-4

    data: ObjectsData = field(default_factory=ObjectsData)
    augmentation: RandomScaling = field(default_factory=lambda: RandomScaling(strength=STRENGTH, probability=0.5))


@dataclass(frozen=True)
class ObjectsAug(ObjectsRecipe):
    """Aug: backbone and head, with random monotone scaling of images and masks.

    localscale train objects-deit_tiny-aug --data.train-root out/objects --data.test-root out/objects_test
    """


@dataclass(frozen=True)
class ObjectsAugLong(ObjectsRecipe):
    """The control of the ``_joint`` rows: Aug with their number of epochs.

    localscale train objects-deit_tiny-aug_long --data.train-root … --data.test-root …
    """

    epochs_by_default: ClassVar[int] = FIRST + MORE


@dataclass(frozen=True)
class ObjectsAugPlus(ObjectsRecipe):
    """Aug+, the equal-budget control: Aug's weights trained on for as long as every other row.

    localscale train objects-deit_tiny-aug_plus --start runs/objects-deit_tiny-aug/seed0 --data.train-root …
    """

    epochs_by_default: ClassVar[int] = MORE
    starts_from: ClassVar[str] = "aug"


@dataclass(frozen=True)
class ObjectsCanon(ObjectsAugPlus):
    """Canon: each image tried against 64 configurations, the masks of the best one scaled back.

    localscale train objects-deit_tiny-canon --start runs/objects-deit_tiny-aug/seed0 --data.train-root …
    """

    method: Canon = field(default_factory=lambda: Canon(mode="equivariant"))


@dataclass(frozen=True)
class ObjectsAugL(ObjectsAugPlus):
    """AugL: the equivariance error as a loss.

    localscale train objects-deit_tiny-augl --start runs/objects-deit_tiny-aug/seed0 --data.train-root …
    """

    method: AugL = field(default_factory=lambda: AugL(scaling=RandomScaling(strength=STRENGTH)))


@dataclass(frozen=True)
class ObjectsDEC(ObjectsAugPlus):
    """DEC as in the paper: the direct update at the image and in the backbone, learned by the task's loss alone.

    localscale train objects-deit_tiny-dec --start runs/objects-deit_tiny-aug/seed0 --data.train-root …
    """

    method: DEC = field(default_factory=lambda: _equivariant(direct()))


@dataclass(frozen=True)
class ObjectsDECCompose(ObjectsAugPlus):
    """DEC with the compose update and equivariance supervision, added to Aug's weights.

    localscale train objects-deit_tiny-dec_compose --start runs/objects-deit_tiny-aug/seed0 --data.train-root …
    """

    canonicalizer_rate: ClassVar[float] = 1e-3

    method: DEC = field(default_factory=lambda: _equivariant(supervised(strength=STRENGTH)))


@dataclass(frozen=True)
class ObjectsDECComposeJoint(ObjectsDECCompose):
    """DEC with the compose update and equivariance supervision, trained with the model from the start.

    localscale train objects-deit_tiny-dec_compose_joint --data.train-root … --data.test-root …
    """

    epochs_by_default: ClassVar[int] = FIRST + MORE
    starts_from: ClassVar[str] = ""


KINDS: dict[str, type[ObjectsRecipe]] = {
    "aug": ObjectsAug,
    "aug_plus": ObjectsAugPlus,
    "aug_long": ObjectsAugLong,
    "canon": ObjectsCanon,
    "augl": ObjectsAugL,
    "dec": ObjectsDEC,
    "dec_compose": ObjectsDECCompose,
    "dec_compose_joint": ObjectsDECComposeJoint,
}


def _make(prefix: str, row: str, backbone: Backbone) -> Recipe:
    kind = KINDS[row]
    optimization = Optimization(
        epochs=kind.epochs_by_default,
        batch_size=32,
        learning_rate=RATES[kind.epochs_by_default],
        canonicalizer_rate=kind.canonicalizer_rate,
        schedule="step",
        decay_epochs=30,
        decay_rate=0.7,
    )
    within = dataclasses.replace(backbone, sites=tuple(f"backbone.{site}" for site in backbone.sites))
    return make(kind, prefix, row, within, optimization)


OBJECTS_ROWS: dict[str, Callable[[str, str, Backbone], Recipe]] = dict.fromkeys(KINDS, _make)
