"""Recipes by name: a row of the paper's tables for one backbone, such as ``mnist-deit_tiny-dec``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from localscale.errors import ConfigError, near_misses
from localscale.lab.backbones.catalogue import BACKBONES
from localscale.lab.methods import RandomScaling
from localscale.lab.recipes.imagenet import IMAGENET
from localscale.lab.recipes.mnist import MNIST
from localscale.lab.recipes.objects import OBJECTS
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.recipes.rows import Protocol, Row
from localscale.lab.tasks import ImageNetData

__all__ = ["PROTOCOLS", "Recipe", "find_recipe", "find_row", "recipe_names"]

PROTOCOLS: dict[str, Protocol] = {"mnist": MNIST, "imagenet": IMAGENET, "objects": OBJECTS}


def recipe_names() -> Iterator[str]:
    """Yield the name of every recipe, ``TASK-BACKBONE-ROW``."""
    for task, protocol in PROTOCOLS.items():
        for backbone in BACKBONES:
            for row in protocol.rows:
                yield f"{task}-{backbone}-{row}"


def find_row(name: str) -> Row:
    """Return the row that the recipe called ``name`` is made of."""
    task, _, row = _split(name)
    return PROTOCOLS[task].rows[row]


def find_recipe(name: str) -> Recipe:
    """Combine a row and a backbone into the recipe called ``name``.

    >>> find_recipe("mnist-deit_tiny-dek")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    localscale.errors.ConfigError: no recipe 'mnist-deit_tiny-dek': did you mean mnist-deit_tiny-dec, ...
    """
    task, key, last = _split(name)
    protocol, backbone = PROTOCOLS[task], BACKBONES[key]
    row = protocol.rows[last]
    budget = protocol.budgets[row.budget]
    data = protocol.data
    if backbone.crop is not None and isinstance(data, ImageNetData):
        data = dataclasses.replace(data, crop=backbone.crop)
    sites = tuple(f"{protocol.site_prefix}{site}" for site in backbone.sites)
    return Recipe(
        name=name,
        backbone=backbone.timm_name,
        pretrained=backbone.pretrained,
        needs_start=f"{task}-{key}-{row.start}" if row.start else "",
        method=row.method(sites) if callable(row.method) else row.method,
        data=data,
        augmentation=protocol.augmentation if row.augmented else RandomScaling(probability=0.0),
        optimization=dataclasses.replace(
            protocol.optimization,
            epochs=budget.epochs,
            learning_rate=budget.learning_rate or backbone.mnist_rate,
            canonicalizer_rate=row.canonicalizer_rate or protocol.canonicalizer_rate or backbone.mnist_rate,
            canonicalizer_start=row.canonicalizer_start,
        ),
        regularization=protocol.regularization,
        head_norm=protocol.standardise_from_scratch and backbone.from_scratch,
    )


def _split(name: str) -> tuple[str, str, str]:
    task, _, rest = name.partition("-")
    backbone, _, row = rest.partition("-")
    if task not in PROTOCOLS or backbone not in BACKBONES or row not in PROTOCOLS[task].rows:
        raise ConfigError(
            f"no recipe {name!r}: {near_misses(name, list(recipe_names()))}; "
            "localscale recipes shows how names are composed; a task of your own needs --import MODULE"
        )
    return task, backbone, row
