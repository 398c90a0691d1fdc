"""Look up configuration values by name, and write them as JSON.

A registry is a dictionary from a name to a frozen dataclass. A value comes as an instance (``Anderson(max_steps=8)``),
as a registered name (``"anderson"``), as a name with its first field (``"phantom(3)"``), or as a dictionary
(``{"kind": "anderson", "max_steps": 8}``). The fields of every value have the types of their annotations.
"""

from __future__ import annotations

import dataclasses
import numbers
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from localscale.errors import ConfigError, near_misses

__all__ = ["Checked", "check_types", "choose", "describe", "refuse_unknown"]

T = TypeVar("T")
NAMES = {bool: "True or False", int: "an integer", float: "a number", str: "a text", types.NoneType: "None"}


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


class Checked:
    """Base of frozen dataclasses whose fields must have the types of their annotations.

    A ``__post_init__`` of a class below calls ``super().__post_init__()`` first.
    """

    def __post_init__(self) -> None:
        check_types(self)


def check_types(value: Any, *, but: tuple[str, ...] = ()) -> None:
    """Raise ``ConfigError`` unless the fields of a dataclass have the types of their annotations; lists become tuples.

    ``but`` names fields that are not checked. An integer is a number, and True is neither.

    >>> from localscale.equilibrium import Anderson
    >>> Anderson(max_steps=3.5)
    Traceback (most recent call last):
        ...
    localscale.errors.ConfigError: max_steps is 3.5; expected an integer
    """
    kind: Any = type(value)
    for name, annotation in _types_of(kind).items():
        if name in but:
            continue
        given = getattr(value, name)
        try:
            found = _typed(given, annotation)
        except TypeError:
            raise ConfigError(f"{name} is {given!r}; expected {_words(annotation)}") from None
        if found is not given:
            object.__setattr__(value, name, found)


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


TYPES: dict[type[Any], dict[str, Any]] = {}  # not functools.cache, of which torch.compile warns


def _types_of(kind: type[Any]) -> dict[str, Any]:
    if kind not in TYPES:
        try:
            found = typing.get_type_hints(kind)
        except NameError:  # an annotation that only type checkers can read
            found = {}
        TYPES[kind] = {field.name: found[field.name] for field in dataclasses.fields(kind) if field.name in found}
    return TYPES[kind]


def _typed(value: Any, annotation: Any) -> Any:
    """Return ``value`` as a value of ``annotation``; raise ``TypeError`` if it is none."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        for part in parts:
            try:
                return _typed(value, part)
            except TypeError:
                continue
        raise TypeError
    if origin is tuple and isinstance(value, tuple | list):
        if len(parts) == 2 and parts[1] is Ellipsis:
            parts = len(value) * parts[:1]
        if len(parts) != len(value):
            raise TypeError
        found = tuple(_typed(item, part) for item, part in zip(value, parts, strict=True))
        same = isinstance(value, tuple) and all(new is old for new, old in zip(found, value, strict=True))
        return value if same else found
    if origin is Literal:
        fits = any(type(value) is type(part) and value == part for part in parts)
    elif annotation in (int, float):
        kind = numbers.Integral if annotation is int else numbers.Real
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if fits and not isinstance(value, int | float):  # a number of NumPy, which JSON does not take
            return annotation(value)
    else:
        plain = origin or annotation
        fits = not isinstance(plain, type) or isinstance(value, plain)
    if not fits:
        raise TypeError
    return value


def _words(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_words, parts))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple:
        inner = [_words(part) for part in parts if part is not Ellipsis]
        return f"a tuple ({', '.join(inner)}{', …' if Ellipsis in parts else ''})"
    return NAMES.get(annotation) or f"a value of {getattr(annotation, '__name__', annotation)}"
