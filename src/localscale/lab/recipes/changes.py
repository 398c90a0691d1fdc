"""Changes to recipes as values, and the command-line flags that make them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from localscale.errors import ConfigError, near_misses
from localscale.lab.recipes.recipe import Recipe

__all__ = ["Changes", "flags_between", "with_changes"]

Changes = Mapping[str, Any]
"""Fields to replace, nested as the parts of a recipe are: ``{"seed": 1, "data": {"variants": 4}}``."""

UNPREFIXED = ("optimization", "regularization")  # their flags are --epochs, not --optimization.epochs


def with_changes(value: Any, changes: Changes) -> Any:
    """Return a recipe, or a part of one, with some fields replaced.

    >>> with_changes(Recipe(), {"optimization": {"epochs": 3}}).optimization.epochs
    3
    """
    names = [field.name for field in dataclasses.fields(value)]
    for name in changes:
        if name not in names:
            raise ConfigError(f"{type(value).__name__} has no field {name!r}: {near_misses(name, names)}")
    new = {
        name: with_changes(getattr(value, name), change) if isinstance(change, Mapping) else change
        for name, change in changes.items()
    }
    return dataclasses.replace(value, **new)


def flags_between(before: Recipe, after: Recipe) -> list[str]:
    """Return the flags of ``localscale train`` that turn the recipe ``before`` into ``after``.

    >>> flags_between(Recipe(), with_changes(Recipe(), {"seed": 2, "optimization": {"epochs": 3}}))
    ['--epochs', '3', '--seed', '2']
    """
    return _flags(before, after, "")


def _flags(before: Any, after: Any, prefix: str) -> list[str]:
    found: list[str] = []
    for field in dataclasses.fields(after):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(new) and type(old) is type(new):
            found += _flags(old, new, "" if name in UNPREFIXED else f"{name}.")
        else:
            found += _flag(name.replace("_", "-"), new)
    return found


def _flag(name: str, value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        raise ConfigError(f"no flag sets {name} to {value}; give the change a row of its own")
    if isinstance(value, bool):
        head, _, last = name.rpartition(".")
        return [f"--{name}" if value else f"--{head}{'.' if head else ''}no-{last}"]
    return [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
