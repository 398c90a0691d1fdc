"""Read what the browser sends; a visitor can send anything, so every value is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.scaling import box_around, box_between

__all__ = ["read_knot", "read_mark", "read_number", "read_whole_number", "read_word"]

MOST_POINTS = 20_000  # of a stroke of the brush
SHOWN = 60  # characters of a value in an error


def read_number(value: Any, name: str, low: float, high: float) -> float:
    """Return a number from ``low`` to ``high``.

    >>> read_number(1, "the size", 0.4, 2.5)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _refused(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def read_whole_number(value: Any, name: str, low: int, high: int) -> int:
    """Return a whole number from ``low`` to ``high``, which JavaScript may send as 3.0."""
    number = read_number(value, name, low, high)
    if number != int(number):
        raise _refused(name, value, "a whole number")
    return int(number)


def read_word(value: Any, name: str, words: Sequence[str]) -> Any:
    """Return one of ``words``."""
    if not isinstance(value, str) or value not in words:
        raise _refused(name, value, " or ".join(words))
    return value


def read_mark(data: Any) -> Box:
    """Return the box that a visitor marked: ``{"corners": [[x, y], [x, y]]}`` or ``{"stroke": […], "radius": 0.03}``.

    >>> read_mark({"corners": [[0, 0], [1, 1]]})
    Box(left=0.0, top=0.0, right=1.0, bottom=1.0)
    """
    if isinstance(data, dict) and "stroke" in data:
        radius = read_number(data.get("radius"), "the radius of the brush", 0, 0.5)
        return box_around(_points(data["stroke"], "the stroke", 0, MOST_POINTS), radius)
    first, second = _points(data.get("corners") if isinstance(data, dict) else data, "the corners of the box", 2, 2)
    return box_between(first, second)


def read_knot(data: Any) -> tuple[int, int, tuple[float, float]]:
    """Return row, column and wanted position of a knot: ``{"row": 1, "column": 2, "x": 0.4, "y": 0.3}``."""
    values = data if isinstance(data, dict) else {}
    row, column = (read_whole_number(values.get(name), f"the {name} of the knot", 0, 100) for name in ("row", "column"))
    (at,) = _points([[values.get("x"), values.get("y")]], "the position of the knot", 1, 1)
    return row, column, at


def _points(values: Any, name: str, least: int, most: int) -> list[tuple[float, float]]:
    if not isinstance(values, list) or not least <= len(values) <= most or not all(map(_is_point, values)):
        raise _refused(name, values, "pairs of finite numbers")
    return [(float(x), float(y)) for x, y in values]


def _is_point(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e9 for x in value)
        and all(map(math.isfinite, value))
    )


def _refused(name: str, value: Any, expected: str) -> DataError:
    shown = repr(value)[:SHOWN] if isinstance(value, int | float | str) else type(value).__name__
    return DataError(f"{name} is {shown}; expected {expected}: reload the page")
