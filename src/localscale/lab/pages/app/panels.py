"""The parts of the page that show something, as HTML."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from localscale.canonicalizer import INPUT, SiteReport
from localscale.conventions import lattice
from localscale.lab.pages.app.answers import best
from localscale.lab.pages.app.drawing import frame, grid, handles, outline, panel
from localscale.lab.pages.app.knots import Knots, way_back_error
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.views import Look, View
from localscale.lab.pages.report.html import Html, element, join
from localscale.maps import Map, identity_map
from localscale.warp import scale, unscale

__all__ = ["answers_panel", "knots_panels", "look_panel", "mark_panel", "sites_panel"]

LINES = 11  # of a grid over an image
HOW = {"box": "click two corners, or drag", "brush": "press and paint over it"}


def mark_panel(view: View, mode: str) -> Html:
    """The image to mark a part of; ``mode`` is ``"box"`` or ``"brush"``."""
    picture = frame(view.seen[0], "the image", outline(view.box), kind="ls-pad", data_mode=mode)
    return panel(join((element("b", "Mark a part: "), HOW[mode])), picture)


def look_panel(found: Look) -> Html:
    """The locally scaled image."""
    end = "largest" if found.factor < found.asked else "smallest"
    told = "" if math.isclose(found.factor, found.asked, abs_tol=5e-3) else f", the {end} that fits this box"
    picture = frame(found.image[0], "the locally scaled image", outline(found.box))
    return panel(join((element("b", f"Scaled ×{found.factor:.2f}"), told)), picture)


def answers_panel(pair: Pair, found: Look) -> Html:
    """The five likeliest classes of base and DEC, side by side."""
    tables = []
    for label, kind, probabilities in (
        (pair.base_label, "base", found.answers.base),
        ("DEC", "dec", found.answers.dec),
    ):
        rows = [
            element(
                "tr",
                element("th", pair.name_of(number), scope="row", title=pair.name_of(number)),
                element("td", element("div", class_="ls-bar", style=f"width: {100 * share:.1f}%")),
                element("td", f"{100 * share:.1f} %"),
            )
            for number, share in best(probabilities[0])
        ]
        tables.append(element("table", element("caption", label), element("tbody", *rows), class_=f"ls-top {kind}"))
    return element("div", *tables, class_="ls-tops")


def sites_panel(pair: Pair, found: Look) -> Html:
    """The map found at each site over the image, the canonical form, and how the equilibrium was reached.

    What enters a site was moved by the sites before it, and is drawn so; in equivariant mode all but the input scale
    it back.
    """
    told = f"The image as the first tab has it, its marked part at ×{found.factor:.2f}."
    shown, parts = found.image, [element("p", told, class_="ls-about")]
    for path, site in found.answers.sites.items():
        canonical = unscale(shown, site.map)
        parts.append(_site(path, site, shown, canonical))
        if path == INPUT or pair.dec.config.mode == "invariant":
            shown = canonical
    return element("div", *parts, class_="ls-sites")


def _site(path: str, site: SiteReport, image: Tensor, canonical: Tensor) -> Html:
    m = site.map.detach()
    where = "the image" if path == INPUT else "its features"
    facts = {
        "residual": f"{float(site.residual[0]):.1e}",
        "steps": str(int(site.steps[0])),
        "converged": "yes" if bool(site.converged[0]) else "no",
        "moved on average": f"{100 * float(m.mean_displacement()[0]):.2f} % of the side",
        "local scale": _range(m.local_scale(_points(m.dtype))),
        "least determinant": f"{float(m.min_determinant()[0]):.2f}",
    }
    return element(
        "div",
        panel(
            join((element("b", path), f": the map found for {where}")),
            frame(image[0], f"the image under the map of {path}", grid(m, LINES)),
        ),
        panel(
            join((element("b", "Canonical form"), ": the same grid, made even")),
            frame(canonical[0], f"canonical form by the map of {path}", grid(_identity(m), LINES)),
        ),
        _facts(facts),
        class_="ls-site",
    )


def knots_panels(image: Tensor, knots: Knots) -> tuple[Html, Html]:
    """The warped image ``(1, 3, H, W)`` with knots to drag; what the exact inverse does, and the map's numbers."""
    m = knots.map()
    lines = 2 * knots.places.shape[-1] - 1
    warped = scale(image, m)
    drag = panel(
        join((element("b", "Drag a knot"), ": S(I; l) and its grid")),
        frame(warped[0], "the warped image", grid(m, lines), handles(knots.places), kind="ls-knots"),
    )
    error = way_back_error(knots.map(torch.float64))
    facts = {
        "local scale": _range(m.local_scale(_points(m.dtype))),
        "least determinant": f"{float(m.min_determinant()[0]):.2f}",
        "moved on average": f"{100 * float(m.mean_displacement()[0]):.2f} % of the side",
        "error of the inverse": f"{error * (max(image.shape[-2:]) - 1):.1g} px at most",
    }
    back = (
        panel(
            join((element("b", "The exact inverse"), ": S(I; l⁻¹)")),
            frame(unscale(image, m)[0], "the image under the inverse map", grid(m.inverse(), lines)),
        ),
        panel(
            join((element("b", "There and back"), ": S(S(I; l); l⁻¹)")),
            frame(unscale(warped, m)[0], "scaled and scaled back", grid(_identity(m), lines)),
        ),
    )
    return drag, join((element("div", *back, class_="ls-back"), _facts(facts)))


def _identity(m: Map) -> Map:
    return identity_map(dtype=m.dtype)


def _points(dtype: torch.dtype) -> Tensor:
    return lattice(33, 33, dtype=dtype).reshape(1, -1, 2)


def _range(values: Tensor) -> str:
    return f"{float(values.min()):.2f} to {float(values.max()):.2f}"


def _facts(facts: dict[str, str]) -> Html:
    rows = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in facts.items()]
    return element("table", element("tbody", *rows), class_="ls-facts")
