"""Section with solver statistics on the tested images."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from localscale.lab.pages.html import Html, element, join, section, table
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
    "displacement, % of the side",
    "least determinant",
)


def solver_section(healths: dict[str, Health], tolerances: dict[str, float]) -> Html:
    """Return solver statistics and a histogram of residuals for each site of each run."""
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
        note = "These models have no equilibrium to solve."
        return section("solver", "Solver health", element("p", note, class_="note"))
    told = ", ".join(f"{tolerances[label]:g} ({label})" for label, health in healths.items() if health)
    note = (
        f"An image has converged if its residual is at most {told}. A map folds if its least determinant is 0 or "
        "below. The statistics cover all images of the examples, including scaled ones."
    )
    plots = element("div", *drawn, class_="panels")
    return section("solver", "Solver health", join([table(HEAD, rows), element("p", note, class_="note"), plots]))


def _largest(values: Sequence[float]) -> float:
    """Return the largest value; NaN counts as infinity."""
    return max(values, key=lambda value: math.inf if math.isnan(value) else value)
