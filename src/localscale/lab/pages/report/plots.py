"""Matplotlib figures as SVG inside the page, transparent and in the text colour of the page."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from localscale.lab.pages.html import Html, element
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.palette import SERIES

__all__ = ["Series", "draw_histogram", "draw_panels", "draw_scales"]

INK = "#010203"  # placeholder that becomes the text colour of the page
SPAN = 5  # values within this factor of each other are drawn on a linear axis
LEAST = 1e-8  # smaller residuals are rounding errors
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # a label to x and y


def draw_panels(panels: Mapping[str, Series], *, logarithmic: Sequence[str] = ()) -> Html:
    """Return one figure per panel; panels in ``logarithmic`` have a log axis if their values differ enough.

    >>> draw_panels({"loss": {"this run": ([1, 2], [0.5, 0.25])}}).count("<svg")
    1
    """
    return element(
        "div", *(_panel(name, series, name in logarithmic) for name, series in panels.items()), class_="panels"
    )


def _panel(name: str, series: Series, logarithmic: bool) -> Html:
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axis = _new_axis("epoch")
    finite = [value for _, values in series.values() for value in values if math.isfinite(value)]
    for (label, (x, y)), style in zip(series.items(), _styles(), strict=False):
        axis.plot(x, y, **style, marker="o" if len(x) < 12 else None, markersize=3, label=label)
    if logarithmic and finite and 0 < min(finite) < max(finite) / SPAN:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.get_major_locator().set_params(integer=True)
    return _figure(figure, name)


def draw_scales(scales: Sequence[str], accuracies: Mapping[str, Sequence[float]], label: str) -> Html:
    """Return a plot of accuracy in percent at every scale, one line per run; ``label`` names the scales."""
    figure, axis = _new_axis(label, "accuracy, %", width=4.6)
    for (name, values), style in zip(accuracies.items(), _styles(), strict=False):
        axis.plot(range(len(scales)), values, **style, marker="o", label=name)
    axis.set_xticks(range(len(scales)), scales)
    return _figure(figure, "accuracy per scale")


def draw_histogram(values: Mapping[str, Sequence[float]], title: str, *, mark: float) -> Html:
    """Return histograms of the logarithm of residuals, one line per name, with the tolerance ``mark``."""
    figure, axis = _new_axis("log10 of the residual", "images", width=4.6)
    logs = {
        name: [math.log10(max(value, LEAST)) for value in found if math.isfinite(value)]
        for name, found in values.items()
    }
    everything = [math.log10(mark), *(value for found in logs.values() for value in found)]
    span = (min(everything) - 0.25, max(everything) + 0.25)
    for (name, found), style in zip(logs.items(), _styles(), strict=False):
        axis.hist(found, bins=24, range=span, histtype="step", **style, linewidth=1.5, label=name)
    axis.axvline(math.log10(mark), color=INK, linewidth=0.8, linestyle=":", label=f"tolerance {mark:g}")
    return _figure(figure, title)


def _styles() -> Iterator[dict[str, str]]:
    pairs = zip(itertools.cycle(SERIES), itertools.cycle(("-", "--", ":", "-.")), strict=False)
    return ({"color": colour, "linestyle": line} for colour, line in pairs)


def _new_axis(xlabel: str, ylabel: str = "", *, width: float = 3.4) -> tuple[Any, Any]:
    figure, axes = new_figure(1, 1, width=width, height=2.3)
    axis = axes[0, 0]
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.tick_params(colors=INK, labelsize=8)
    for name, side in axis.spines.items():
        side.set_visible(name in ("left", "bottom"))
        side.set_color(INK)
    for label in (axis.xaxis.label, axis.yaxis.label, axis.yaxis.get_offset_text()):
        label.set(color=INK, fontsize=8)
    axis.grid(color="#888888", alpha=0.25, linewidth=0.6)
    return figure, axis


def _figure(figure: Any, title: str) -> Html:
    """Return the figure with a legend, as SVG inside HTML.

    The XML prologue, metadata and size are removed, and also the ids, because those of two figures could be the same.
    """
    import matplotlib

    figure.axes[0].legend(fontsize=7, frameon=False, labelcolor=INK)
    content = io.StringIO()
    none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(content, format="svg", transparent=True, metadata=none)
    drawn = content.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r'<g id="[^"]*"', "<g", drawn)
    drawn = re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawn)
    drawn = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    drawn = drawn.replace(INK, "currentColor").replace("<svg", '<svg role="img"', 1)
    drawn = re.sub(r"\s*\n\s*", "\n", drawn)
    return element("figure", element("figcaption", title), Html(drawn))
