"""Markdown tables."""

from __future__ import annotations

from typing import Any

__all__ = ["plain", "render_rows", "render_table"]


def render_table(table: dict[str, Any]) -> str:
    """Return a table with its ``title`` and ``note``; each of its ``rows`` is a dictionary."""
    return "\n".join([f"### {plain(table['title'])}", "", plain(table["note"]), "", render_rows(table["rows"])])


def render_rows(rows: list[dict[str, Any]], *, own: bool = False) -> str:
    """Return a table whose columns are the keys of the first row; ``own`` texts are Markdown, others are escaped.

    >>> print(render_rows([{"seeds": 3, "InvE": 0.125}]))
    | seeds | InvE |
    |---|---|
    | 3 | 0.125 |
    """
    cell = str if own else _cell
    names = list(rows[0]) if rows else []
    lines = ["| " + " | ".join(map(cell, names)) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(cell(row[name]) for name in names) + " |" for row in rows])


def plain(text: object) -> str:
    """Return a text of a results file on one line, such that Markdown shows no HTML, link or image of it.

    >>> plain("<img src=x> [a](b)")
    '&lt;img src=x> [a]\\\\(b)'
    """
    escaped = " ".join(str(text).split()).replace("<", "&lt;").replace("](", "]\\(")
    return escaped.replace("]\\(results.md#", "](results.md#")  # links of our own to a place on the page


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return plain(value).replace("|", "\\|")
    if value == 0 or 0.01 <= abs(value) < 10_000:
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:.1e}"
