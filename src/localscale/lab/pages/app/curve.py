"""Probability against scale, as a drawing that is cheap enough to be made at every move of the slider."""

from __future__ import annotations

import math

from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.scaling import LARGEST, SMALLEST
from localscale.lab.pages.app.views import View
from localscale.lab.pages.report.html import Html, element, join

__all__ = ["draw_curve"]

WIDTH, HEIGHT = 1180, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 10, 26  # margins
FACTORS = (0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.5)


def draw_curve(pair: Pair, view: View, factor: float) -> Html:
    """How sure base and DEC are of one class at each factor, and a line where the slider stands."""
    curve = view.curve
    marks = [mark for at in FACTORS for mark in _scale_mark(at)]
    marks += [mark for share in (0.0, 0.5, 1.0) for mark in _share_mark(share)]
    marks.append(_line("ls-now", _across(factor), TOP, _across(factor), HEIGHT - BOTTOM))
    for kind, shares in (("base", curve.base), ("dec", curve.dec)):
        points = [(_across(at), _up(share)) for at, share in zip(curve.factors, shares, strict=True)]
        marks.append(element("polyline", class_=kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points)))
        marks += [element("circle", class_=kind, cx=f"{x:.1f}", cy=f"{y:.1f}", r="3.5") for x, y in points]
    drawn = element("svg", *marks, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label="probability against scale")
    why = "what is drawn" if view.drawn else "DEC's answer on the image as it is"
    title = join(
        (
            element("b", f"Probability of {pair.name_of(curve.label)}"),
            f", {why}, against the scale of the marked part",
            element("span", pair.base_label, class_="ls-key base"),
            element("span", "DEC", class_="ls-key dec"),
        )
    )
    return element("figure", element("figcaption", title), drawn, class_="ls-panel ls-curve")


def _across(factor: float) -> float:
    share = math.log(factor / SMALLEST) / math.log(LARGEST / SMALLEST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _up(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    return element("line", class_=kind, x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}")


def _text(words: str, x: float, y: float, anchor: str) -> Html:
    return element("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _scale_mark(factor: float) -> tuple[Html, Html]:
    x = _across(factor)
    return _line("ls-rule", x, TOP, x, HEIGHT - BOTTOM), _text(f"×{factor:g}", x, HEIGHT - 7, "middle")


def _share_mark(share: float) -> tuple[Html, Html]:
    y = _up(share)
    return _line("ls-rule", LEFT, y, WIDTH - RIGHT, y), _text(f"{100 * share:.0f} %", LEFT - 8, y + 5, "end")
