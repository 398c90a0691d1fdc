"""Rows of a result: the records of runs, grouped by backbone and method, over their seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

__all__ = ["PAPER_ROW", "SITES_TITLE", "Groups", "Record", "grouped", "site_rows", "spread"]

# The row of the paper that each of our rows is compared with, where the names differ.
PAPER_ROW = {"dec_joint": "dec", "dec_compose": "dec", "dec_compose_joint": "dec"}

SITES_TITLE = "#### Canonicalizers by site, means over the training images of the last epoch"

Record = dict[str, Any]  # one run of a result
Groups = dict[tuple[str, str], list[Record]]  # by backbone and row


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
    """Return solver statistics of each canonicalizer in the last epoch."""
    rows = []
    for (backbone, _), runs in groups.items():
        last = [run["last_epoch"] for run in runs]
        for path in [name.removesuffix("/residual") for name in last[0] if name.endswith("/residual")]:
            at_input = path == "input" and "supervision" in last[0]
            rows.append(
                {
                    "backbone": backbone,
                    "row": runs[0]["label"],
                    "site": path,
                    "residual": statistics.fmean(e[f"{path}/residual"] for e in last),
                    "steps": statistics.fmean(e[f"{path}/steps"] for e in last),
                    "displacement, % of the side": 100
                    * statistics.fmean(epoch[f"{path}/displacement"] for epoch in last),
                    "supervision error": statistics.fmean(e["supervision"] for e in last) if at_input else "–",
                }
            )
    return rows
