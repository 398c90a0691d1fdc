"""Rows of a result: the records of runs, grouped by backbone and method, over their seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

__all__ = ["INERT", "SITES_TITLE", "Groups", "Record", "grouped", "inert_note", "paper_row", "site_rows", "spread"]

SITES_TITLE = "#### Canonicalizers by site, means over the training images of the last epoch"

INERT = 1e-3  # of the side: a quarter of a pixel at 224 px

Record = dict[str, Any]  # one run of a result
Groups = dict[tuple[str, str], list[Record]]  # by backbone and row


def paper_row(row: str) -> str:
    """Return the row of the paper that one of our rows is compared with.

    >>> paper_row("dec_joint"), paper_row("canon")
    ('dec', 'canon')
    """
    return "dec" if row.startswith("dec") else row


def grouped(runs: list[Record]) -> Groups:
    """Group runs that differ in their seed only."""
    groups: Groups = {}
    for run in runs:
        groups.setdefault((run["backbone"], run["row"]), []).append(run)
    return groups


def spread(runs: list[Record], value: Callable[[Record], float], *, digits: int = 2) -> str:
    """Return mean ± standard deviation over runs, or the value of a single run."""
    values = [value(run) for run in runs]
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def site_rows(groups: Groups) -> list[dict[str, Any]]:
    """Return solver statistics of each canonicalizer in the last epoch; one whose maps hardly move is inert."""
    rows = []
    varies = any(name.endswith("/variation") for runs in groups.values() for name in runs[0]["last_epoch"])
    for (backbone, _), runs in groups.items():
        last = [run["last_epoch"] for run in runs]
        for path in [name.removesuffix("/residual") for name in last[0] if name.endswith("/residual")]:
            at_input = path == "input" and "supervision" in last[0]
            moved = statistics.fmean(epoch[f"{path}/displacement"] for epoch in last)
            rows.append(
                {
                    "backbone": backbone,
                    "row": runs[0]["label"],
                    "site": path,
                    "residual": statistics.fmean(e[f"{path}/residual"] for e in last),
                    "steps": statistics.fmean(e[f"{path}/steps"] for e in last),
                    "displacement, % of the side": 100 * moved,
                    **({"variation, %": _variation(last, path)} if varies else {}),  # older runs lack it
                    "moves": "inert" if moved < INERT else "yes",
                    "supervision error": statistics.fmean(e["supervision"] for e in last) if at_input else "–",
                }
            )
    return rows


def _variation(last: list[dict[str, float]], path: str) -> float | str:
    """Return the mean distance of a map from the mean map of its batch, in % of the side."""
    name = f"{path}/variation"
    return 100 * statistics.fmean(epoch[name] for epoch in last) if all(name in epoch for epoch in last) else "–"


def inert_note(rows: list[dict[str, Any]]) -> str:
    """Return a sentence that says which canonicalizers are inert, and by which threshold.

    >>> inert_note([{"backbone": "vit", "row": "DEC", "site": "input", "moves": "yes"}])
    ''
    """
    inert = [f"{row['row']} of {row['backbone']} at {row['site']}" for row in rows if row["moves"] == "inert"]
    if not inert:
        return ""
    return (
        f"Inert, because their maps move points by less than {100 * INERT:g} % of the side: {', '.join(inert)}. "
        "The model answers nearly as if they were not there.\n\n"
    )
