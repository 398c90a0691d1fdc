"""The panels of the page, as HTML."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from localscale.canonicalizer import INPUT, SiteReport
from localscale.conventions import lattice
from localscale.lab.pages.app.drawing import frame, grid, handles, outline, panel
from localscale.lab.pages.app.knots import Knots, inverse_error
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.predictions import likeliest
from localscale.lab.pages.app.views import ScaledView, View
from localscale.lab.pages.report.html import Html, element, join
from localscale.maps import Map, identity_map
from localscale.warp import scale, unscale

__all__ = ["answers_panel", "knots_panels", "mark_panel", "scaled_panel", "sites_panel"]

LINES = 11  # of a grid over an image, in each direction
POINTS = lattice(33, 33, dtype=torch.float32).reshape(1, -1, 2)  # where the local scale is measured
HOW_TO_MARK = {"box": "click two corners, or drag", "brush": "hold the button and paint"}
NOT_A_NUMBER = (
    "This model reads three-digit numbers, white on black. It also answers a photograph or drawing with a number, "
    "which then means nothing."
)
SITES = (
    "At each of its sites, places in the model, DEC searches for a warp of the image, drawn as a grid. The canonical "
    "form is the image with this warp undone; the rest of the model works on it."
)


def mark_panel(view: View, mode: str) -> Html:
    """Show the image in which a part can be marked; ``mode`` is ``"box"`` or ``"brush"``."""
    picture = frame(view.seen[0], "the image", outline(view.box), kind="ls-pad", data_mode=mode)
    return panel(join((element("b", "Mark a part: "), HOW_TO_MARK[mode])), picture)


def scaled_panel(scaled: ScaledView) -> Html:
    """Show the image with its marked part scaled."""
    limit = "largest" if scaled.factor < scaled.requested else "smallest"
    fits = math.isclose(scaled.factor, scaled.requested, abs_tol=5e-3)
    note = "" if fits else f", the {limit} scale that fits this box"
    picture = frame(scaled.image[0], "the image with its marked part scaled", outline(scaled.box))
    return panel(join((element("b", f"Scaled ×{scaled.factor:.2f}"), note)), picture)


def answers_panel(pair: Pair, view: View, scaled: ScaledView) -> Html:
    """Show the five likeliest classes without DEC and with it, side by side."""
    predictions = scaled.predictions
    tables = []
    for label, kind, probabilities in ((pair.base_label, "base", predictions.base), ("DEC", "dec", predictions.dec)):
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
    note = element("p", NOT_A_NUMBER, class_="ls-about") if meaningless else ""
    return join((element("div", *tables, class_="ls-tops"), note))


def sites_panel(pair: Pair, scaled: ScaledView) -> Html:
    """Show, for each site, the map over the image, the canonical form, and the numbers of the search.

    The image is drawn as it enters each site. In invariant mode every site passes on its canonical form; in
    equivariant mode only the site at the input does, and the others scale their features back.
    """
    shown = f"The image is the one of the first tab, its marked part at ×{scaled.factor:.2f}. {SITES}"
    image, parts = scaled.image, [element("p", shown, class_="ls-about")]
    for path, site in scaled.predictions.sites.items():
        canonical = unscale(image, site.map)
        parts.append(_site(path, site, image, canonical))
        if path == INPUT or pair.dec.config.mode == "invariant":
            image = canonical
    return element("div", *parts, class_="ls-sites")


def _site(path: str, site: SiteReport, image: Tensor, canonical: Tensor) -> Html:
    m = site.map.detach()
    facts = {
        "residual (0 at the equilibrium)": f"{float(site.residual[0]):.1e}",
        "solver steps": str(int(site.steps[0])),
        "converged": "yes" if bool(site.converged[0]) else "no",
    }
    return element(
        "div",
        panel(
            join((element("b", path), f": the warp found for {'the image' if path == INPUT else 'its features'}")),
            frame(image[0], f"the image under the map of {path}", grid(m, LINES)),
        ),
        panel(
            join((element("b", "Canonical form"), ": the warp undone, the grid even")),
            frame(canonical[0], f"canonical form by the map of {path}", grid(identity_map(dtype=m.dtype), LINES)),
        ),
        _table(facts | _map_facts(m)),
        class_="ls-site",
    )


def knots_panels(image: Tensor, knots: Knots) -> tuple[Html, Html]:
    """Show the warped image ``(1, 3, H, W)`` with knots to drag; beside it, the inverse and the map's numbers."""
    m = knots.map()
    lines = 2 * knots.positions.shape[-1] - 1
    warped = scale(image, m)
    drag = panel(
        join((element("b", "Drag a knot"), ": the image I and its grid follow the map l")),
        frame(warped[0], "the warped image", grid(m, lines), handles(knots.positions), kind="ls-knots"),
    )
    inverse = panel(
        join((element("b", "The exact inverse"), ": I warped by l⁻¹")),
        frame(unscale(image, m)[0], "the image under the inverse map", grid(m.inverse(), lines)),
    )
    both = panel(
        join((element("b", "There and back"), ": I warped by l, then by l⁻¹")),
        frame(unscale(warped, m)[0], "scaled and scaled back", grid(identity_map(dtype=m.dtype), lines)),
    )
    error = inverse_error(knots.map(torch.float64)) * (max(image.shape[-2:]) - 1)
    facts = _map_facts(m) | {"error of the inverse": f"{error:.1g} pixels at most"}
    return drag, join((element("div", inverse, both, class_="ls-back"), _table(facts)))


def _map_facts(m: Map) -> dict[str, str]:
    scales = m.local_scale(POINTS.to(m.dtype))
    return {
        "local scale": f"{float(scales.min()):.2f} to {float(scales.max()):.2f}",
        "smallest determinant (no folds above 0)": f"{float(m.min_determinant()[0]):.2f}",
        "mean displacement": f"{100 * float(m.mean_displacement()[0]):.2f} % of the side",
    }


def _table(facts: dict[str, str]) -> Html:
    rows = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in facts.items()]
    return element("table", element("tbody", *rows), class_="ls-facts")
