"""What tables of every kind make of runs: rows of one backbone and method, over their seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

__all__ = ["PAPER_ROW", "Groups", "Run", "grouped", "site_rows", "spread"]

# Which of the paper's rows stands beside which of ours.
PAPER_ROW = {"dec_joint": "dec", "dec_compose": "dec", "dec_compose_joint": "dec"}

Run = dict[str, Any]
Groups = dict[tuple[str, str], list[Run]]  # by backbone and row


def grouped(runs: list[Run]) -> Groups:
    """The seeds of each row together."""
    groups: Groups = {}
    for run in runs:
        groups.setdefault((run["backbone"], run["row"]), []).append(run)
    return groups


def spread(runs: list[Run], value: Callable[[Run], float], *, digits: int = 2) -> str:
    """Mean ± standard deviation of the runs; the value alone for one."""
    values = [value(run) for run in runs]
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def site_rows(groups: Groups) -> list[dict[str, Any]]:
    """What the canonicalizers at each site did, in the last epoch."""
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
                    "residual": statistics.fmean(epoch[f"{path}/residual"] for epoch in last),
                    "steps": statistics.fmean(epoch[f"{path}/steps"] for epoch in last),
                    "moved, % of the side": 100 * statistics.fmean(epoch[f"{path}/displacement"] for epoch in last),
                    "supervision error": statistics.fmean(e["supervision"] for e in last) if at_input else "–",
                }
            )
    return rows
