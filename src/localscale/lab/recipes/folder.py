"""Recipes for a user's own images: any backbone of timm, any of a few methods, fine-tuning rates."""

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
from localscale.lab.recipes.rows import SOLVER, supervised_dec, taught_sizes
from localscale.lab.tasks import FolderData, MaskFolderData, TaskData

__all__ = ["FOLDER_METHODS", "FOLDER_TASKS", "control_of", "folder_recipe", "own_recipe"]

STRENGTH = 0.5  # of the scalings that augment and supervise; natural images tolerate less than digits
TARGET = 0.2  # in segmentation; things often fill a photograph, so there is little room to magnify them
FOLDER_METHODS: dict[str, tuple[str, Callable[[str], Method]]] = {
    "sizes": (
        "learn sizes, without labels or from the masks of a segmentation task, then fine-tune on canonical forms",
        lambda mode: taught_sizes(1000, TARGET) if mode == "equivariant" else SizeEquilibrium(learning_steps=1000),
    ),
    "dec": (
        "the paper's DEC at the image, trained by the task",
        lambda mode: DEC(DECConfig.paper(sites=(INPUT,), mode=mode, network=NETWORK, solver=SOLVER)),
    ),
    "dec_compose": (
        "DEC with the compose update, supervised by known scalings",
        lambda mode: supervised_dec(STRENGTH, mode),
    ),
    "aug": ("fine-tune with random local scaling of the training images", lambda mode: FineTune()),
    "none": ("fine-tune without it", lambda mode: FineTune()),
}
FOLDER_TASKS = ("classification", "segmentation")


def folder_recipe(backbone: str = "resnet18", method: str = "sizes", task: str = "classification") -> Recipe:
    """Return the recipe that fine-tunes a timm model on a folder of photographs, with or without masks.

    ``backbone`` is a name of timm or of ``BACKBONES``, ``method`` one of ``FOLDER_METHODS`` and ``task`` one of
    ``FOLDER_TASKS``. Image size and crop are those that the backbone was pretrained with.

    >>> folder_recipe("deit_tiny", "none").backbone
    'deit_tiny_patch16_224'
    >>> folder_recipe("resnet18", "sizes", "segmentation").method.config.mode
    'equivariant'
    """
    if task not in FOLDER_TASKS:
        raise ConfigError(f"--task is {task!r}: {near_misses(task, FOLDER_TASKS)}")
    settings: dict[str, Any] = sketch_of(_timm_name(backbone)).pretrained_cfg
    size = settings["input_size"][-1]
    if task == "segmentation":
        return own_recipe("masks", MaskFolderData(image_size=size), backbone, method)
    return own_recipe("folder", FolderData(image_size=size, crop=settings.get("crop_pct") or 0.875), backbone, method)


def own_recipe(task: str, data: TaskData, backbone: str = "resnet18", method: str = "sizes") -> Recipe:
    """Return the recipe that fine-tunes a timm model on ``data``, settings of the task called ``task``."""
    if method not in FOLDER_METHODS:
        raise ConfigError(f"--method is {method!r}: {near_misses(method, FOLDER_METHODS)}")
    known = BACKBONES.get(backbone)
    scaled = RandomScaling(strength=STRENGTH, probability=0.0 if method == "none" else 0.5)
    return Recipe(
        name=f"{task}-{backbone}-{method}",
        backbone=_timm_name(backbone),
        pretrained=known.pretrained if known else "timm",
        method=FOLDER_METHODS[method][1]("equivariant" if data.dense else "invariant"),
        data=data,
        augmentation=scaled,
        optimization=Optimization(
            epochs=10,
            batch_size=8 if data.dense else 32,
            learning_rate=2e-4 if data.dense else 5e-4,
            layer_decay=1.0 if data.dense else 0.75,  # all layers of a segmenter's head are new
            weight_decay=0.05,
            warmup_epochs=1,
        ),
        regularization=Regularization(label_smoothing=0.0 if data.dense else 0.1),
        head_width=128 if data.dense else Recipe.head_width,
    )


def control_of(recipe: Recipe) -> Recipe:
    """Return the control of a recipe: the same images, augmentation, epochs and rates, without canonicalizers."""
    if recipe.method == FineTune() and recipe.augmentation.probability == 0:
        raise ConfigError("--control: this recipe has no canonicalizer and no scaling, so it is its own control")
    if recipe.method == FineTune():
        return dataclasses.replace(recipe, name=f"{recipe.name}-control", augmentation=RandomScaling(probability=0.0))
    return dataclasses.replace(recipe, name=f"{recipe.name}-control", method=FineTune())


def _timm_name(backbone: str) -> str:
    return BACKBONES[backbone].timm_name if backbone in BACKBONES else backbone
