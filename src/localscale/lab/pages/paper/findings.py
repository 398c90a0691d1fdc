"""Results by backbone and row, to be put beside the paper's tables, and the words for what they say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from localscale.lab.pages.results.runs import Record, grouped, spread

__all__ = ["Findings", "Found", "Value", "beats", "cell", "find_best"]

Found = dict[tuple[str, str], list[Record]]  # runs by backbone and row, one per seed
Value = Callable[[Record], float]


@dataclass(frozen=True)
class Findings:
    """All results: the runs of trained tables, and the tables of benchmarks.

    Args:
        results: the contents of ``results/*.json`` by their names without ``.json``.
    """

    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def runs(self, source: str) -> Found:
        """Return the runs of a result by backbone and row; none if there is no such result."""
        return grouped(self.results.get(source, {}).get("runs", []))

    def rows(self, source: str, title: str) -> list[dict[str, Any]]:
        """Return the rows of a benchmark's table, by the first words of its title; none if it was not measured."""
        tables = self.results.get(source, {}).get("tables", [])
        return next((table["rows"] for table in tables if table["title"].startswith(title)), [])


def find_best(found: Found, backbone: str, rows: Iterable[str], value: Value, *, largest: bool) -> list[Record]:
    """Return the runs of the best of ``rows`` by their mean; an empty list if none was run."""
    run = [found[backbone, row] for row in rows if (backbone, row) in found]

    def mean(runs: list[Record]) -> float:
        return statistics.fmean(map(value, runs))

    return (max if largest else min)(run, key=mean, default=[])


def beats(ours: list[Record], others: list[Record], value: Value, *, largest: bool) -> str:
    """Return in words whether our mean is better; with several seeds, by more than the larger standard deviation.

    >>> a, b, c = ([{"score": s} for s in scores] for scores in ((90.0, 91.0), (85.0, 86.0), (90.4, 91.4)))
    >>> beats(a, b, lambda run: run["score"], largest=True)
    'holds'
    >>> beats(c, a, lambda run: run["score"], largest=True)
    'within the spread of seeds'
    >>> beats(b, a, lambda run: run["score"], largest=True)
    '**does not hold**'
    >>> beats([], a, lambda run: run["score"], largest=True)
    'not run'
    """
    if not (ours and others):
        return "not run"
    sides = [list(map(value, runs)) for runs in (ours, others)]
    gain = (statistics.fmean(sides[0]) - statistics.fmean(sides[1])) * (1 if largest else -1)
    if gain <= 0:
        return "**does not hold**"
    if min(map(len, sides)) == 1:
        return "holds, with one seed"
    return "holds" if gain > max(map(statistics.stdev, sides)) else "within the spread of seeds"


def cell(runs: list[Record] | None, value: Value, *, digits: int = 2) -> str:
    """Return the mean ± standard deviation of a row, or a dash if it was not run."""
    return spread(runs, value, digits=digits) if runs else "–"
