"""How well the equilibria were reached on the images that were looked at."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from localscale.lab.pages.report.html import Html, element, join, section, table
from localscale.lab.pages.report.plots import draw_histogram
from localscale.lab.runs.answers import Health

__all__ = ["solver_section"]

HEAD = (
    "site",
    "images",
    "converged, %",
    "median residual",
    "largest residual",
    "mean steps",
    "moved, % of the side",
    "least determinant",
)


def solver_section(healths: dict[str, Health], tolerances: dict[str, float]) -> Html:
    """A line for each site of each run that solves for an equilibrium, and how its residuals are spread."""
    rows, drawn = [], []
    for label, health in healths.items():
        for site, found in health.items():
            cells = (
                f"{100 * statistics.fmean(found.converged):.1f}",
                f"{statistics.median(found.residual):.2e}",
                f"{_largest(found.residual):.2e}",
                f"{statistics.fmean(found.steps):.1f}",
                f"{100 * statistics.fmean(found.displacement):.2f}",
                f"{min(found.least_determinant):.3f}",
            )
            rows.append([f"{label}: {site}", f"{len(found.residual):,}", *cells])
        if health:
            residuals = {site: found.residual for site, found in health.items()}
            drawn.append(draw_histogram(residuals, f"residuals of {label}", mark=tolerances[label]))
    if not rows:
        note = "No model here solves for an equilibrium."
        return section("solver", "Solver health", element("p", note, class_="note"))
    told = ", ".join(f"{tolerances[label]:g} ({label})" for label, health in healths.items() if health)
    note = (
        f"Converged: a residual of at most {told}. A least determinant at or below 0 means that a map folds. All "
        "images of the examples count, scaled ones too."
    )
    plots = element("div", *drawn, class_="panels")
    return section("solver", "Solver health", join([table(HEAD, rows), element("p", note, class_="note"), plots]))


def _largest(values: Sequence[float]) -> float:
    """NaN and infinity are the worst there are."""
    return max(values, key=lambda value: math.inf if math.isnan(value) else value)
