"""Markdown tables."""

from __future__ import annotations

from typing import Any

__all__ = ["render_rows", "render_table"]


def render_table(table: dict[str, Any]) -> str:
    """Return a table with its ``title`` and ``note``; each of its ``rows`` is a dictionary."""
    return "\n".join([f"### {table['title']}", "", table["note"], "", render_rows(table["rows"])])


def render_rows(rows: list[dict[str, Any]]) -> str:
    """Return a table whose columns are the keys of the first row.

    >>> print(render_rows([{"seeds": 3, "InvE": 0.125}]))
    | seeds | InvE |
    |---|---|
    | 3 | 0.125 |
    """
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in rows])


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 0.01 <= abs(value) < 10_000:
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:.1e}"
