"""Curves of measurements: accuracy or probability against scale, and residuals against solver steps."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from localscale.errors import ConfigError, DataError, ShapeError, near_misses
from localscale.files import read_whole
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.palette import BLUE, GREEN, GREY, INK, PURPLE, SERIES, SKY, VERMILION, YELLOW

__all__ = ["Part", "draw_parts", "draw_per_scale", "draw_residuals", "mark_box", "read_per_scale"]

COLOURS = (GREY, VERMILION, BLUE, GREEN, PURPLE, SKY)  # the first row of a table is the baseline
MARKERS = "os^Dv"  # distinguish lines in greyscale prints, and lines of one colour
PART_TICKS = (0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5)
LEAST = 1e-8  # a residual of 0 has no place on a logarithmic axis


def read_per_scale(path: Path, rows: tuple[str, ...] = ()) -> tuple[list[str], dict[str, Tensor]]:
    """Return the scales and the accuracies per scale, in percent, from a result of ``localscale reproduce``.

    The accuracies are a dictionary from a row's label to a tensor ``(seeds, scales)``; ``rows`` selects labels.
    """
    try:
        runs = [run for run in json.loads(read_whole(path, str(path)))["runs"] if "per_scale" in run["metrics"]]
        found: dict[str, list[dict[str, float]]] = {}
        for run in runs:
            found.setdefault(run["label"], []).append(run["metrics"]["per_scale"]["accuracy"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a result of localscale reproduce ({type(error).__name__}: {error}); give --result a "
            "file that it wrote"
        ) from error
    if not found:
        raise DataError(f"{path} has no accuracy per scale; only results of MNIST and ImageNet have it")
    for row in rows:
        if row not in found:
            raise ConfigError(f"no row {row!r} in {path}: {near_misses(row, found)}")
    scales = list(next(iter(found.values()))[0])
    return scales, {
        row: 100 * torch.tensor([[seed[scale] for scale in scales] for seed in found[row]]) for row in rows or found
    }


def draw_per_scale(scales: list[float] | list[str], answers: dict[str, Tensor], *, ylabel: str) -> Any:
    """Return a figure with one line per model: mean ± one standard deviation (paper, Fig. perscale).

    Args:
        scales: the values along x.
        answers: by the model's name, values ``(images, scales)``; one row alone has no standard deviation.
        ylabel: the name of the values.

    >>> len(draw_per_scale([0.7, 1.0, 1.3], {"base": torch.rand(8, 3)}, ylabel="probability").axes)
    1
    """
    figure, axis = _new_axis("local scale", ylabel)
    places = range(len(scales))
    styles = zip(itertools.cycle(COLOURS), itertools.cycle(MARKERS), strict=False)
    for (name, values), (colour, marker) in zip(answers.items(), styles, strict=False):
        if values.dim() != 2 or values.shape[1] != len(scales):
            raise ShapeError(f"{name} has shape {tuple(values.shape)}; expected (images, {len(scales)}), one per scale")
        mean = values.double().mean(0)
        axis.plot(places, mean, marker=marker, markersize=3, color=colour, label=name)
        if len(values) > 1:
            deviation = values.double().std(0)
            low, high = mean - deviation, mean + deviation
            if values.min() >= 0 and values.max() <= 1:  # the band around probabilities stays within [0, 1]
                low, high = low.clamp_min(0), high.clamp_max(1)
            axis.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set_xticks(list(places), [str(scale) for scale in scales], fontsize=7)
    axis.legend(fontsize=6, frameon=False)
    return figure


@dataclass(frozen=True, eq=False)
class Part:
    """An image of which one part changes its size, and a value of each model at each size.

    Args:
        image: ``(3, H, W)`` in [0,1].
        box: left, top, right and bottom of the part, as fractions of the image.
        factors: the scales of the part; 1 is the image as it is.
        lines: by the model's name, one value per factor.
        ylabel: the name of the values.
    """

    image: Tensor
    box: tuple[float, float, float, float]
    factors: list[float]
    lines: dict[str, list[float]]
    ylabel: str


def draw_parts(parts: list[Part]) -> Any:
    """Return a figure of images with one part marked each, and values against the scale of that part, two to a row.

    >>> part = Part(torch.rand(3, 8, 8), (0.2, 0.2, 0.8, 0.8), [0.5, 1.0], {"base": [0.1, 0.9]}, "probability")
    >>> len(draw_parts([part, part, part]).axes)
    6
    """
    across = min(len(parts), 2)
    rows = math.ceil(len(parts) / across)
    figure, axes = new_figure(rows, 2 * across, width=5.4 * across, height=2.3 * rows)
    cells = [row[2 * n : 2 * n + 2] for row in axes for n in range(across)]
    for cell, part in zip(cells, parts, strict=False):
        _draw_part(cell[0], cell[1], part)
    for cell in cells[len(parts) :]:
        for axis in cell:
            axis.remove()
    return figure


def mark_box(axis: Any, box: tuple[float, float, float, float]) -> None:
    """Draw the border of a box, in two colours that are seen on dark and on bright images."""
    left, top, right, bottom = box
    for colour, width in ((INK, 2.2), (YELLOW, 1.2)):
        axis.plot((left, right, right, left, left), (top, top, bottom, bottom, top), color=colour, linewidth=width)


def _draw_part(shown: Any, axis: Any, part: Part) -> None:
    shown.imshow(part.image.movedim(0, 2).clamp(0, 1).numpy(), extent=(0, 1, 1, 0))
    mark_box(shown, part.box)
    shown.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
    styles = zip(itertools.cycle(COLOURS), itertools.cycle(MARKERS), strict=False)
    for (name, values), (colour, marker) in zip(part.lines.items(), styles, strict=False):
        axis.plot(part.factors, values, marker=marker, markersize=3, color=colour, label=name)
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xscale="log", ylim=(-0.02, 1.02))
    ticks = [factor for factor in PART_TICKS if min(part.factors) <= factor <= max(part.factors)]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    _label(axis, "scale of the marked part", part.ylabel)
    axis.legend(fontsize=6, frameon=False)


def draw_residuals(residuals: dict[str, Tensor], *, tolerance: float, max_steps: int | None = None) -> Any:
    """Return a figure of the relative residual at each solver step: median and 10th to 90th percentile of images.

    Args:
        residuals: by the name of the site, ``(images, steps)``; values below 1e-8 are drawn at 1e-8.
        tolerance: drawn as a horizontal line.
        max_steps: the largest number of steps of the solver, drawn as a vertical line if more steps are shown.

    >>> len(draw_residuals({"input": torch.rand(8, 5)}, tolerance=1e-3).axes)
    1
    """
    figure, axis = _new_axis("solver steps", "relative residual")
    styles = zip(itertools.cycle(SERIES), itertools.cycle(MARKERS), strict=False)
    for (name, values), (colour, marker) in zip(residuals.items(), styles, strict=False):
        steps = torch.arange(1, values.shape[1] + 1)
        share = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        # A diverged image has an infinite residual, which cannot be interpolated with a finite one.
        low, median, high = values.double().clamp(min=LEAST).quantile(share, dim=0, interpolation="nearest")
        axis.plot(steps, median, marker=marker, markersize=3, linewidth=1.2, color=colour, label=name)
        axis.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.axhline(tolerance, color=GREY, linewidth=0.8, linestyle="--", label=f"tolerance {tolerance:g}")
    if max_steps is not None and max_steps < max(values.shape[1] for values in residuals.values()):
        axis.axvline(max_steps, color=GREY, linewidth=0.8, linestyle=":", label=f"stops after {max_steps}")
    axis.set_yscale("log")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=6, frameon=False)
    return figure


def _new_axis(xlabel: str, ylabel: str) -> tuple[Any, Any]:
    figure, axes = new_figure(1, 1, width=3.3, height=2.3)
    axis = axes[0][0]
    _label(axis, xlabel, ylabel)
    return figure, axis


def _label(axis: Any, xlabel: str, ylabel: str) -> None:
    axis.set_xlabel(xlabel, fontsize=7)
    axis.set_ylabel(ylabel, fontsize=7)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
