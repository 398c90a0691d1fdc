"""The panels of the page, as HTML."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from localscale.adaptation import AdaptedModel
from localscale.adaptation.source import canonical_size
from localscale.canonicalizer import INPUT, SiteReport
from localscale.conventions import lattice
from localscale.lab.pages.app.drawing import frame, grid, handles, outline, panel, polygon
from localscale.lab.pages.app.knots import Knots, inverse_error
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.scaling import LARGEST, SMALLEST
from localscale.lab.pages.app.views import ScaledView, View, likeliest
from localscale.lab.pages.html import Html, element, join
from localscale.maps import Map, identity_map
from localscale.warp import scale, unscale

__all__ = ["about_panel", "answers_panel", "curve_panel", "knots_panels", "mark_panel", "pictures_panel", "sites_panel"]

LINES = 11  # of a grid over an image, in each direction
POINTS = lattice(33, 33, dtype=torch.float32).reshape(1, -1, 2)  # where the local scale is measured
PLOT_WIDTH, PLOT_HEIGHT = 1180, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 1160, 10, 174  # edges of the plot
FACTORS = (0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.5)  # marked on the axis
HOW_TO_MARK = {"box": "click two corners, or drag", "brush": "hold the button and paint"}
READS_DIGITS = (
    "This model reads three digits, white on black, and nothing else. It answers any other image with a number, too, "
    "which means nothing."
)
SITES = (
    "A site is a place in the model with a canonicalizer. There a solver searches for a warp, drawn as a grid, until "
    "the residual is small (converged) or the steps are used up. Undoing the warp gives the canonical form, which the "
    "rest of the model reads."
)
NO_SITES = "This model has no canonicalizers, so no warps were learned."


def about_panel(pair: Pair) -> Html:
    """Show the lines about the models."""
    return join(element("p", note, class_="ls-about") for note in pair.notes)


def mark_panel(view: View, mode: str) -> Html:
    """Show the image in which a part can be marked; ``mode`` is ``"box"`` or ``"brush"``."""
    picture = frame(view.input[0], "the image", outline(view.box), kind="ls-pad", data_mode=mode)
    return panel("Mark a part", HOW_TO_MARK[mode], picture)


def pictures_panel(scaled: ScaledView) -> Html:
    """Show the image with its marked part scaled and, beside it, its canonical form, if the model has one."""
    limit = "largest" if scaled.factor < scaled.requested else "smallest"
    fits = math.isclose(scaled.factor, scaled.requested, abs_tol=5e-3)
    note = "" if fits else f", the {limit} that fits"
    picture = frame(scaled.image[0], "the image with its marked part scaled", outline(scaled.box))
    shown = [panel("The image", f"marked part ×{scaled.factor:.2f}{note}", picture)]
    if scaled.canonical is not None:
        form = frame(scaled.canonical.image[0], "the canonical form", polygon(scaled.canonical.border))
        shown.append(panel("What the model sees", f"marked part ×{scaled.canonical.factor:.2f}", form))
    return element("div", *shown, class_="ls-pictures")


def answers_panel(pair: Pair, view: View, scaled: ScaledView) -> Html:
    """Show the five likeliest classes of the control and of the model, side by side."""
    tables = []
    for label, kind, probabilities in _series(pair, scaled.predictions.control, scaled.predictions.model):
        rows = [
            element(
                "tr",
                element("th", pair.name_of(number), scope="row", title=pair.name_of(number)),
                element("td", element("div", class_="ls-bar", style=f"width: {100 * share:.1f}%")),
                element("td", f"{100 * share:.1f} %"),
            )
            for number, share in likeliest(probabilities[0])
        ]
        tables.append(element("table", element("caption", label), element("tbody", *rows), class_=f"ls-top {kind}"))
    meaningless = pair.reads_digits and not view.label_known
    note = element("p", READS_DIGITS, class_="ls-about") if meaningless else ""
    return join((element("div", *tables, class_="ls-tops"), note))


def curve_panel(pair: Pair, view: View, factor: float) -> Html:
    """Plot the probability of one class against the scale, a line per model, with a vertical line at ``factor``.

    The plot is SVG because Matplotlib would be too slow for a plot that follows the slider.
    """
    curve = view.curve
    marks = []
    for at in FACTORS:
        marks += [_line("ls-rule", _x(at), TOP, _x(at), BOTTOM), _text(f"×{at:g}", _x(at), PLOT_HEIGHT - 7, "middle")]
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        marks += [_line("ls-rule", LEFT, y, RIGHT, y), _text(f"{100 * share:.0f} %", LEFT - 8, y + 5, "end")]
    marks.append(_line("ls-now", _x(factor), TOP, _x(factor), BOTTOM))
    keys = []
    for label, kind, shares in _series(pair, curve.control, curve.model):
        keys.append(element("span", label, class_=f"ls-key {kind}"))
        points = [(f"{_x(at):.1f}", f"{_y(share):.1f}") for at, share in zip(curve.factors, shares, strict=True)]
        marks.append(element("polyline", class_=kind, points=" ".join(map(",".join, points))))
        marks += [element("circle", class_=kind, cx=x, cy=y, r="3.5") for x, y in points]
    size = f"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}"
    drawn = element("svg", *marks, viewBox=size, role="img", aria_label="probability against scale")
    which = "the number in the image" if view.label_known else "the model's answer at ×1"
    title = element(
        "figcaption",
        element("b", f"Probability of {pair.name_of(curve.label)}"),
        f" ({which}) against the scale of the marked part",
        *keys,
    )
    return element("figure", title, drawn, class_="ls-panel ls-curve")


def sites_panel(pair: Pair, scaled: ScaledView) -> Html:
    """Show, for each site, the map over the image, the canonical form, and how the equilibrium was reached.

    The image is drawn as it enters each site. In invariant mode every site passes on its canonical form; in
    equivariant mode only the site at the input does, and the others scale their features back.
    """
    if not isinstance(pair.model, AdaptedModel):
        return element("div", element("p", NO_SITES, class_="ls-about"), class_="ls-sites")
    shown = f"This is the image of the first tab, its marked part at ×{scaled.factor:.2f}. {SITES}"
    image, parts = scaled.image, [element("p", shown, class_="ls-about")]
    for path, site in scaled.predictions.sites.items():
        canonical = unscale(image, site.map, size=canonical_size(pair.model) if path == INPUT else None)
        parts.append(_site(path, site, image, canonical))
        if path == INPUT or pair.model.dec_config.mode == "invariant":
            image = canonical
    return element("div", *parts, class_="ls-sites")


def _site(path: str, site: SiteReport, image: Tensor, canonical: Tensor) -> Html:
    m = site.map.detach()
    facts = {
        "residual": f"{float(site.residual[0]):.1e}",
        "solver steps": str(int(site.steps[0])),
        "converged": "yes" if bool(site.converged[0]) else "no",
    }
    found = frame(image[0], f"the image under the map of {path}", grid(m, LINES))
    undone = frame(canonical[0], f"canonical form by the map of {path}", grid(identity_map(dtype=m.dtype), LINES))
    return element(
        "div",
        panel(path, f": the warp found for {'the image' if path == INPUT else 'its features'}", found),
        panel("Canonical form", ": the warp undone", undone),
        _table(facts | _map_facts(m)),
        class_="ls-site",
    )


def knots_panels(image: Tensor, knots: Knots) -> tuple[Html, Html]:
    """Show the warped image ``(1, 3, H, W)`` with knots to drag; beside it, the inverse and the map's numbers."""
    m = knots.map()
    lines = 2 * knots.positions.shape[-1] - 1
    warped = scale(image, m)
    drag = frame(warped[0], "the warped image", grid(m, lines), handles(knots.positions), kind="ls-knots")
    inverse = frame(unscale(image, m)[0], "the image under the inverse map", grid(m.inverse(), lines))
    both = frame(unscale(warped, m)[0], "scaled and scaled back", grid(identity_map(dtype=m.dtype), lines))
    back = (
        panel("The exact inverse", ": I warped by l⁻¹", inverse),
        panel("There and back", ": I warped by l, then by l⁻¹", both),
    )
    error = inverse_error(knots.map(torch.float64)) * (max(image.shape[-2:]) - 1)
    facts = _map_facts(m) | {"error of the inverse": f"{error:.1g} pixels at most"}
    drag_panel = panel("Drag a knot", ": the image I, warped by the map l", drag)
    return drag_panel, join((element("div", *back, class_="ls-back"), _table(facts)))


def _series(pair: Pair, control: Any, model: Any) -> list[tuple[str, str, Any]]:
    """Return label, style class and values of the control, if there is one, and of the model."""
    series = [(pair.label, "ls-model", model)]
    if pair.control_label is not None:
        series.insert(0, (pair.control_label, "ls-control", control))
    return series


def _x(factor: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(factor / SMALLEST) / math.log(LARGEST / SMALLEST)


def _y(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    return element("line", class_=kind, x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}")


def _text(words: str, x: float, y: float, anchor: str) -> Html:
    return element("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _map_facts(m: Map) -> dict[str, str]:
    scales = m.local_scale(POINTS.to(m.dtype))
    return {
        "local scale": f"{float(scales.min()):.2f} to {float(scales.max()):.2f}",
        "smallest determinant": f"{float(m.min_determinant()[0]):.2f}",
        "mean displacement": f"{100 * float(m.mean_displacement()[0]):.2f} % of the side",
    }


def _table(facts: dict[str, str]) -> Html:
    rows = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in facts.items()]
    return element("table", element("tbody", *rows), class_="ls-facts")
