"""Matplotlib figures as SVG inside the page, transparent and in the text colour of the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from localscale.lab.pages.report.html import Html, element
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.palette import SERIES

__all__ = ["Series", "draw_histogram", "draw_panels", "draw_scales"]

INK = "#010203"  # placeholder that becomes the text colour of the page
SPAN = 5  # values within this factor of each other are drawn on a linear axis
STYLES = ("-", "--", ":", "-.")
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

    figure, axis = _new_axis()
    finite = [value for _, values in series.values() for value in values if math.isfinite(value)]
    for k, (label, (x, y)) in enumerate(series.items()):
        marker = "o" if len(x) < 12 else None
        style = STYLES[k % len(STYLES)]
        axis.plot(x, y, color=SERIES[k % len(SERIES)], linestyle=style, marker=marker, markersize=3, label=label)
    if logarithmic and finite and 0 < min(finite) < max(finite) / SPAN:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("epoch")
    axis.xaxis.get_major_locator().set_params(integer=True)
    _legend(axis)
    return _figure(figure, name)


def draw_scales(scales: Sequence[str], accuracies: Mapping[str, Sequence[float]], label: str) -> Html:
    """Return a plot of accuracy in percent at every scale, one line per run; ``label`` names the scales."""
    figure, axis = _new_axis(width=4.6)
    for k, (name, values) in enumerate(accuracies.items()):
        colour = SERIES[k % len(SERIES)]
        axis.plot(range(len(scales)), values, color=colour, linestyle=STYLES[k % len(STYLES)], marker="o", label=name)
    axis.set_xticks(range(len(scales)), scales)
    axis.set_xlabel(label)
    axis.set_ylabel("accuracy, %")
    _legend(axis)
    return _figure(figure, "accuracy per scale")


def draw_histogram(values: Mapping[str, Sequence[float]], title: str, *, mark: float) -> Html:
    """Return histograms of the logarithm of residuals, one line per name, with the tolerance ``mark``."""
    figure, axis = _new_axis(width=4.6)
    least = 1e-8  # smaller residuals are rounding errors
    logs = {
        name: [math.log10(max(value, least)) for value in found if math.isfinite(value)]
        for name, found in values.items()
    }
    everything = [math.log10(mark), *(value for found in logs.values() for value in found)]
    span = (min(everything) - 0.25, max(everything) + 0.25)
    for k, (name, found) in enumerate(logs.items()):
        colour, style = SERIES[k % len(SERIES)], STYLES[k % len(STYLES)]
        axis.hist(found, bins=24, range=span, histtype="step", color=colour, linestyle=style, linewidth=1.5, label=name)
    axis.axvline(math.log10(mark), color=INK, linewidth=0.8, linestyle=":", label=f"tolerance {mark:g}")
    axis.set_xlabel("log10 of the residual")
    axis.set_ylabel("images")
    _legend(axis)
    return _figure(figure, title)


def _new_axis(width: float = 3.4) -> tuple[Any, Any]:
    figure, axes = new_figure(1, 1, width=width, height=2.3)
    axis = axes[0, 0]
    axis.tick_params(colors=INK, labelsize=8)
    for name, side in axis.spines.items():
        side.set_visible(name in ("left", "bottom"))
        side.set_color(INK)
    for label in (axis.xaxis.label, axis.yaxis.label, axis.yaxis.get_offset_text()):
        label.set(color=INK, fontsize=8)
    axis.grid(color="#888888", alpha=0.25, linewidth=0.6)
    return figure, axis


def _legend(axis: Any) -> None:
    axis.legend(fontsize=7, frameon=False, labelcolor=INK)


def _figure(figure: Any, title: str) -> Html:
    """Return the drawing without prologue, metadata, size and ids, which could clash between figures."""
    import matplotlib

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
