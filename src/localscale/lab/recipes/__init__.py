"""Every row of the paper's tables, for every backbone, by name: ``mnist-deit_tiny-dec``."""

from __future__ import annotations

from localscale.errors import ConfigError, near_misses
from localscale.lab.backbones.catalogue import BACKBONES
from localscale.lab.recipes.imagenet import IMAGENET_ROWS
from localscale.lab.recipes.mnist import MNIST_ROWS
from localscale.lab.recipes.objects import OBJECTS_ROWS
from localscale.lab.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe", "find_recipe"]

ROWS = {"mnist": MNIST_ROWS, "imagenet": IMAGENET_ROWS, "objects": OBJECTS_ROWS}

RECIPES: dict[str, Recipe] = {
    f"{task}-{key}-{row}": make(f"{task}-{key}", row, backbone)
    for task, rows in ROWS.items()
    for key, backbone in BACKBONES.items()
    for row, make in rows.items()
}


def find_recipe(name: str) -> Recipe:
    """The recipe called ``name``.

    >>> find_recipe("mnist-deit_tiny-dek")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    localscale.errors.ConfigError: no recipe 'mnist-deit_tiny-dek': did you mean mnist-deit_tiny-dec, ...
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}: {near_misses(name, RECIPES)}; localscale recipes lists all")
    return RECIPES[name]
