"""Look up configuration values by name, and write them as JSON.

A registry is a dictionary from a name to a frozen dataclass. A value comes as an instance (``Anderson(max_steps=8)``),
as a registered name (``"anderson"``), as a name with its first field (``"phantom(3)"``), or as a dictionary
(``{"kind": "anderson", "max_steps": 8}``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from localscale.errors import ConfigError, near_misses

__all__ = ["choose", "describe", "refuse_unknown"]

T = TypeVar("T")


def choose(what: str, value: object, registry: Mapping[str, type[T]]) -> T:
    """Return ``value`` as an instance of a class in ``registry``; ``what`` names the argument in errors.

    >>> from localscale.equilibrium import GRADIENTS
    >>> choose("gradient", "phantom(3)", GRADIENTS)
    Phantom(steps=3, damping=1.0)
    """
    if type(value) in registry.values():
        return value  # type: ignore[return-value]
    first: list[int] = []
    fields: dict[str, Any] = {}
    kind = value
    if isinstance(value, dict):
        fields = dict(value)
        kind = fields.pop("kind", None)
    elif isinstance(value, str) and (counted := re.fullmatch(r"(\w+)\((\d+)\)", value)):
        kind, first = counted[1], [int(counted[2])]
    if not isinstance(kind, str) or kind not in registry:
        raise ConfigError(f"{what} is {kind!r}: {near_misses(str(kind), registry)}")
    refuse_unknown(registry[kind].__name__, fields, _fields_of(registry[kind]))
    try:
        return registry[kind](*first, **fields)
    except TypeError as error:
        raise ConfigError(f"{what} is {value!r}, which is not a value of {kind}: {error}") from error


def describe(value: Any, *registries: Mapping[str, type[Any]]) -> Any:
    """Return ``value`` as a JSON value; a registered dataclass becomes a dictionary with its ``"kind"``.

    >>> from localscale.equilibrium import GRADIENTS, Phantom
    >>> describe(Phantom(3), GRADIENTS)
    {'kind': 'phantom', 'steps': 3, 'damping': 1.0}
    """
    if isinstance(value, tuple | list):
        return [describe(item, *registries) for item in value]
    for registry in registries:
        for kind, known in registry.items():
            if type(value) is known:
                fields = {name: describe(getattr(value, name), *registries) for name in _fields_of(known)}
                return {"kind": kind, **fields}
    return value


def refuse_unknown(owner: str, given: Iterable[str], known: list[str]) -> None:
    """Raise ``ConfigError`` with the near misses if a name in ``given`` is not a field of ``owner``."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{owner} has no field {name!r}: {near_misses(str(name), known)}")


def _fields_of(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]
