"""Draw the probability of a class against the scale of the marked part, as SVG.

Matplotlib would be too slow: the curve is drawn again at every move of the slider.
"""

from __future__ import annotations

import math

from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.scaling import LARGEST, SMALLEST
from localscale.lab.pages.app.views import View
from localscale.lab.pages.report.html import Html, element, join

__all__ = ["draw_curve"]

WIDTH, HEIGHT = 1180, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 1160, 10, 174  # edges of the plot
FACTORS = (0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.5)  # marked on the axis


def draw_curve(pair: Pair, view: View, factor: float) -> Html:
    """Draw both models' curves, and a vertical line at ``factor``."""
    curve = view.curve
    marks = []
    for at in FACTORS:
        marks += [_line("ls-rule", _x(at), TOP, _x(at), BOTTOM), _text(f"×{at:g}", _x(at), HEIGHT - 7, "middle")]
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        marks += [_line("ls-rule", LEFT, y, RIGHT, y), _text(f"{100 * share:.0f} %", LEFT - 8, y + 5, "end")]
    marks.append(_line("ls-now", _x(factor), TOP, _x(factor), BOTTOM))
    for kind, shares in (("base", curve.base), ("dec", curve.dec)):
        points = [(f"{_x(at):.1f}", f"{_y(share):.1f}") for at, share in zip(curve.factors, shares, strict=True)]
        marks.append(element("polyline", class_=kind, points=" ".join(map(",".join, points))))
        marks += [element("circle", class_=kind, cx=x, cy=y, r="3.5") for x, y in points]
    drawn = element("svg", *marks, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label="probability against scale")
    which = "the number in the image" if view.label_known else "DEC's answer for the unscaled image"
    title = join(
        (
            element("b", f"Probability of {pair.name_of(curve.label)}"),
            f" ({which}) against the scale of the marked part",
            element("span", pair.base_label, class_="ls-key base"),
            element("span", "DEC", class_="ls-key dec"),
        )
    )
    return element("figure", element("figcaption", title), drawn, class_="ls-panel ls-curve")


def _x(factor: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(factor / SMALLEST) / math.log(LARGEST / SMALLEST)


def _y(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    return element("line", class_=kind, x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}")


def _text(words: str, x: float, y: float, anchor: str) -> Html:
    return element("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
