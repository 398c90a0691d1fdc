"""Draw how time and memory of a solve grow with its settings, from benchmark results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localscale.errors import DataError
from localscale.files import read_whole
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.palette import BLUE, ORANGE

__all__ = ["draw_growth", "read_growth"]

TITLE = "How the cost of a solve grows"
LINES = {"forward": (BLUE, "o"), "forward and backward": (ORANGE, "s")}
UNITS = {"ms": "time, ms", "peak MiB": "peak memory, MiB"}

Growth = dict[str, list[dict[str, float]]]  # by the setting that was varied, one row per value


def read_growth(path: Path) -> Growth:
    """Read the growth table from a file that ``python -m benchmarks --suite speed`` wrote."""
    try:
        tables = json.loads(read_whole(path, str(path)))["tables"]
        rows = [row for table in tables if table["title"] == TITLE for row in table["rows"]]
        found: Growth = {}
        for row in rows:
            kept = {key: float(row[key]) for key in ("value", *(f"{line} {unit}" for line in LINES for unit in UNITS))}
            found.setdefault(row["axis"], []).append(kept)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a benchmark result ({type(error).__name__}: {error}); give --result a file that "
            "python -m benchmarks --suite speed wrote"
        ) from error
    if not found:
        raise DataError(f"{path} has no table {TITLE!r}; measure it with python -m benchmarks --suite speed")
    return found


def draw_growth(growth: Growth) -> Any:
    """Return a figure with time above and memory below, one column for each setting that was varied.

    >>> row = {"value": 1.0} | {f"{line} {unit}": 2.0 for line in LINES for unit in UNITS}
    >>> len(draw_growth({"batch": [row], "steps": [row]}).axes)
    4
    """
    figure, axes = new_figure(len(UNITS), len(growth), width=1.4 * len(growth) + 0.3, height=3.4)
    for column, (name, rows) in enumerate(growth.items()):
        for axis, (unit, label) in zip((line[column] for line in axes), UNITS.items(), strict=True):
            for line, (colour, marker) in LINES.items():
                values = [row[f"{line} {unit}"] for row in rows]
                axis.plot([row["value"] for row in rows], values, marker=marker, markersize=3, color=colour, label=line)
            axis.set_ylim(bottom=0)
            axis.set_xlim(left=0)
            axis.tick_params(labelsize=6)
            axis.spines[["top", "right"]].set_visible(False)
            if column == 0:
                axis.set_ylabel(label, fontsize=7)
        axes[-1][column].set_xlabel(name, fontsize=7)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=7, frameon=False
    )
    return figure
