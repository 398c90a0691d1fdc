"""Tables of methods: the paper's figures beside ours, row by row, and whether DEC is the best."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from localscale.lab.pages.paper.findings import Findings, Found, Value, beats, cell, find_best
from localscale.lab.pages.results.markdown import render_rows
from localscale.lab.pages.results.paper import family_of_backbone
from localscale.lab.pages.results.runs import Record, paper_row
from localscale.lab.recipes import PROTOCOLS

__all__ = ["BASELINES", "DEC_ROWS", "OWN_ROWS", "Comparison", "Metric", "row_label"]

BASELINES = (
    *("base", "aug", "base_plus", "aug_plus", "aug_long", "canon", "invl", "augl"),
    *("zoom", "centre_zoom", "random_warp"),
)
DEC_ROWS = ("dec", "dec_joint")  # the paper's DEC, added to trained weights or trained with them
OWN_ROWS = ("sizes", "sizes_along", "sizes_tuned", "sizes_more", "sizes_shipped")


@dataclass(frozen=True)
class Metric:
    """A column: its name, its value for a run, its digits, and whether more is better."""

    name: str
    value: Value
    largest: bool
    digits: int = 2


@dataclass(frozen=True)
class Comparison:
    """A table of the paper that compares methods on several backbones.

    Args:
        task: name of the task, for the labels of rows.
        printed: family → row → the printed figures, one for each metric.
        metrics: the columns.
        sources: results to compare with; a row that an earlier one shows with the same figures is left out.
        command: the command that trains the whole table.
        stand_ins: the family that stands beside one of the paper's for which there are no results.
    """

    task: str
    printed: Mapping[str, Mapping[str, tuple[str, ...]]]
    metrics: tuple[Metric, ...]
    sources: tuple[str, ...]
    command: str
    stand_ins: Mapping[str, str]

    def render(self, findings: Findings) -> str:
        """Return the table, then whether DEC is the best on each backbone, then what was not run."""
        rows, claims, seen = list[dict[str, object]](), list[str](), set[tuple[object, ...]]()
        shown = set[str]()
        for family in self.printed:
            for source in self.sources:
                found = findings.runs(source)
                for backbone in self._backbones(found, family):
                    rows += self._rows(found, family, backbone, source, seen, complete=backbone not in shown)
                    shown |= {backbone, family}
                    if any((backbone, row) in found for row in DEC_ROWS) and source == self._first(findings, backbone):
                        claims += [self._claim(found, backbone)]
        parts = [render_rows(rows)] if rows else []
        if claims:
            parts += ["**DEC is better than every baseline, in each metric:**", "\n".join(claims)]
        missing = [f"{name} ({rows['dec'][0]})" for name, rows in self.printed.items() if name not in shown]
        if missing:
            parts.append(
                f"Not run, with the paper's DEC in brackets: {', '.join(missing)}. `{self.command}` trains them. "
                "[Why they were not trained](results.md#backbones-never-trained)."
            )
        return "\n\n".join(parts)

    def _first(self, findings: Findings, backbone: str) -> str:
        return next(source for source in self.sources if any(key == backbone for key, _ in findings.runs(source)))

    def _backbones(self, found: Found, family: str) -> list[str]:
        families = {family, self.stand_ins.get(family, family)}
        return list(dict.fromkeys(backbone for backbone, _ in found if family_of_backbone(backbone) in families))

    def _rows(
        self, found: Found, family: str, backbone: str, source: str, seen: set[tuple[object, ...]], *, complete: bool
    ) -> list[dict[str, object]]:
        """Return the rows of a backbone; if ``complete``, also the paper's rows that were not run."""
        rows = []
        for row in (*BASELINES, *DEC_ROWS, *OWN_ROWS):
            runs = found.get((backbone, row), [])
            figures = tuple(cell(runs, metric.value, digits=metric.digits) for metric in self.metrics)
            if not (runs or (complete and row in self.printed[family])) or (backbone, row, figures) in seen:
                continue
            seen.add((backbone, row, figures))
            rows.append(self._row(family, backbone, row, source, runs, figures))
        return rows

    def _row(
        self, family: str, backbone: str, row: str, source: str, runs: list[Record], figures: tuple[str, ...]
    ) -> dict[str, object]:
        printed = self.printed[family].get(paper_row(row), ("–",) * len(self.metrics))
        columns: dict[str, object] = {"paper": family, "here": backbone, "row": row_label(self.task, row, runs)}
        for metric, figure, paper in zip(self.metrics, figures, printed, strict=True):
            columns |= {metric.name: figure, f"paper: {metric.name}": paper}
        about = ", ".join(_about(row, runs)) if runs else ""
        return {**columns, "run": f"[{about}](results.md#{source})" if runs else "not run"}

    def _claim(self, found: Found, backbone: str) -> str:
        parts = []
        for metric in self.metrics:
            ours, best = (
                find_best(found, backbone, rows, metric.value, largest=metric.largest) for rows in (DEC_ROWS, BASELINES)
            )
            means = [f"{statistics.fmean(map(metric.value, runs)):.{metric.digits}f}" for runs in (ours, best) if runs]
            said = beats(ours, best, metric.value, largest=metric.largest)
            against = f"{means[0]} against {means[1]} of {best[0]['label']}: " if len(means) == 2 else ""
            parts.append(f"{metric.name}: {against}{said}")
        return f"- {backbone}. {'. '.join(parts)}."


def row_label(task: str, row: str, runs: list[Record]) -> str:
    """Return the label that a row has in the results, or that of its recipe if it was not run."""
    return runs[0]["label"] if runs else PROTOCOLS[task].rows[row].label


def _about(row: str, runs: list[Record]) -> list[str]:
    """Return epochs, seeds and test images of a row; of the paper's DEC also its modules, solver and learning rate."""
    first = runs[0]
    seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
    about = [f"{first['budget_epochs']} epochs", seeds, f"{first['metrics']['images']:,} images"]
    if row in DEC_ROWS and "recipe" in first:
        method = first["recipe"]["method"]
        config = method.get("config", method)  # older results have no config
        solver = config["solver"] if isinstance(config["solver"], str) else config["solver"]["kind"]
        rate = first["recipe"]["optimization"]["canonicalizer_rate"]
        count = len(config["sites"])
        about += [f"{count} modules" if count > 1 else "1 module", {"plain": "picard"}.get(solver, solver)]
        about += [f"canonicalizer rate {rate:g}"] if rate is not None else []
    return about
