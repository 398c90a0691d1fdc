"""Recipes for a user's own folder of photographs: any backbone of timm, any of a few methods, fine-tuning rates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from localscale.canonicalizer import INPUT, DECConfig
from localscale.errors import ConfigError, near_misses
from localscale.lab.backbones.catalogue import BACKBONES, sketch_of
from localscale.lab.methods import DEC, FineTune, Method, RandomScaling, SizeEquilibrium
from localscale.lab.methods.dec import NETWORK
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.recipes.rows import SOLVER, supervised_dec
from localscale.lab.tasks import FolderData

__all__ = ["FOLDER_METHODS", "control_of", "folder_recipe"]

STRENGTH = 0.5  # of the scalings that augment and supervise; natural images tolerate less than digits
FOLDER_METHODS: dict[str, tuple[str, Callable[[], Method]]] = {
    "sizes": ("learn sizes without labels, then fine-tune on canonical forms", SizeEquilibrium),
    "dec": (
        "the paper's DEC at the image, trained by the task",
        lambda: DEC(DECConfig.paper(sites=(INPUT,), network=NETWORK, solver=SOLVER)),
    ),
    "dec_compose": (
        "DEC with the compose update, supervised by known scalings",
        lambda: supervised_dec(STRENGTH),
    ),
    "aug": ("fine-tune with random local scaling of the training images", FineTune),
    "none": ("fine-tune without it", FineTune),
}


def folder_recipe(backbone: str = "resnet18", method: str = "sizes") -> Recipe:
    """Return the recipe that fine-tunes a timm model on a folder of photographs.

    ``backbone`` is a name of timm or of ``BACKBONES``, and ``method`` one of ``FOLDER_METHODS``. Image size and crop
    are those that the backbone was pretrained with.

    >>> folder_recipe("deit_tiny", "none").backbone
    'deit_tiny_patch16_224'
    """
    if method not in FOLDER_METHODS:
        raise ConfigError(f"--method is {method!r}: {near_misses(method, FOLDER_METHODS)}")
    known = BACKBONES.get(backbone)
    timm_name = known.timm_name if known else backbone
    settings: dict[str, Any] = sketch_of(timm_name).pretrained_cfg
    scaled = RandomScaling(strength=STRENGTH, probability=0.0 if method == "none" else 0.5)
    return Recipe(
        name=f"folder-{backbone}-{method}",
        backbone=timm_name,
        pretrained=known.pretrained if known else "timm",
        method=FOLDER_METHODS[method][1](),
        data=FolderData(image_size=settings["input_size"][-1], crop=settings.get("crop_pct") or 0.875),
        augmentation=scaled,
        optimization=Optimization(
            epochs=10, batch_size=32, learning_rate=5e-4, layer_decay=0.75, weight_decay=0.05, warmup_epochs=1
        ),
        regularization=Regularization(label_smoothing=0.1),
    )


def control_of(recipe: Recipe) -> Recipe:
    """Return the control of a recipe: the same images, augmentation, epochs and rates, without canonicalizers."""
    if recipe.method == FineTune() and recipe.augmentation.probability == 0:
        raise ConfigError("--control: this recipe has no canonicalizer and no scaling, so it is its own control")
    if recipe.method == FineTune():
        return dataclasses.replace(recipe, name=f"{recipe.name}-control", augmentation=RandomScaling(probability=0.0))
    return dataclasses.replace(recipe, name=f"{recipe.name}-control", method=FineTune())
