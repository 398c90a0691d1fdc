"""The model and the task of a recipe, before its method adapts the model."""

from __future__ import annotations

from typing import Any

from torch import nn

from localscale.heads import segmenter
from localscale.lab.backbones.catalogue import (
    create_backbone,
    normalisation,
    sketch_of,
    standardise_head,
    whole_patches,
)
from localscale.lab.recipes.recipe import Recipe

__all__ = ["create_model", "make_task"]


def create_model(recipe: Recipe, classes: int, *, pretrained: str, fresh_head: bool = False) -> nn.Module:
    """Return a classifier, or a segmenter if the data has masks, for ``classes`` classes.

    ``pretrained`` and ``fresh_head`` are those of ``create_backbone``.
    """
    dense, size = recipe.data.dense, recipe.data.image_size
    backbone = create_backbone(
        recipe.backbone,
        classes=0 if dense else classes,
        pretrained=pretrained,
        image_size=whole_patches(recipe.backbone, size) if dense else size,
        drop_path=recipe.regularization.drop_path,
        fresh_head=fresh_head and not dense,
    )
    if recipe.head_norm:
        standardise_head(backbone)
    return segmenter(backbone, classes, width=recipe.head_width) if dense else backbone


def make_task(recipe: Recipe) -> Any:
    """Open the data of a recipe as a task, normalised for its backbone."""
    return recipe.loaded_data.task(normalisation(sketch_of(recipe.backbone)), recipe.optimization.batch_size)
