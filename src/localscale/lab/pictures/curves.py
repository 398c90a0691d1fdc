"""Curves of what was measured: answers against scale, and residuals against iterations."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from localscale.errors import ShapeError
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.palette import BLUE, GREEN, GREY, PURPLE, SERIES, SKY, VERMILION

__all__ = ["draw_per_scale", "draw_residuals"]

COLOURS = (GREY, VERMILION, BLUE, GREEN, PURPLE, SKY)  # the first row of a table is the baseline
MARKERS = "os^Dvp"  # distinguish lines in greyscale prints
LEAST = 1e-8  # a residual of 0 has no place on a logarithmic axis


def draw_per_scale(scales: list[float] | list[str], answers: dict[str, Tensor], *, ylabel: str) -> Any:
    """A matplotlib figure: a line for each model, mean and one standard deviation over images (paper, Fig. perscale).

    Args:
        scales: the places along x.
        answers: by the model's name, ``(images, scales)``; a single row has no deviation.
        ylabel: what they are.

    >>> len(draw_per_scale([0.7, 1.0, 1.3], {"base": torch.rand(8, 3)}, ylabel="probability").axes)
    1
    """
    figure, axes = new_figure(1, 1, width=3.3, height=2.3)
    axis, places = axes[0][0], range(len(scales))
    for (name, values), colour in zip(answers.items(), COLOURS * len(answers), strict=False):
        if values.dim() != 2 or values.shape[1] != len(scales):
            raise ShapeError(f"{name} has shape {tuple(values.shape)}; expected (images, {len(scales)}), one per scale")
        mean = values.double().mean(0)
        axis.plot(places, mean, marker="o", markersize=3, color=colour, label=name)
        if len(values) > 1:
            deviation = values.double().std(0)
            low, high = mean - deviation, mean + deviation
            if values.min() >= 0 and values.max() <= 1:  # probabilities, which a deviation must not leave
                low, high = low.clamp_min(0), high.clamp_max(1)
            axis.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set_xticks(list(places), [str(scale) for scale in scales], fontsize=7)
    axis.set_xlabel("local scale", fontsize=7)
    axis.set_ylabel(ylabel, fontsize=7)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def draw_residuals(residuals: dict[str, Tensor], *, tolerance: float, max_steps: int | None = None) -> Any:
    """A matplotlib figure: the relative residual at each evaluation, median and 10 to 90 % of images.

    Args:
        residuals: by the site's (or solver's) name, ``(images, steps)``; what is smaller than 1e-8 is drawn there.
        tolerance: drawn as a line.
        max_steps: where the solver stops at the latest, drawn as a line if there are more steps than that.

    >>> len(draw_residuals({"input": torch.rand(8, 5)}, tolerance=1e-3).axes)
    1
    """
    figure, axes = new_figure(1, 1, width=3.3, height=2.3)
    axis = axes[0][0]
    for (name, values), (colour, marker) in zip(
        residuals.items(), itertools.cycle(zip(SERIES, MARKERS, strict=True)), strict=False
    ):
        steps = torch.arange(1, values.shape[1] + 1)
        share = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        # Of an image that was lost the residual is infinite, and nothing lies between that and a number.
        low, median, high = values.double().clamp(min=LEAST).quantile(share, dim=0, interpolation="nearest")
        axis.plot(steps, median, marker=marker, markersize=3, linewidth=1.2, color=colour, label=name)
        axis.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.axhline(tolerance, color=GREY, linewidth=0.8, linestyle="--", label=f"tolerance {tolerance:g}")
    if max_steps is not None and max_steps < max(values.shape[1] for values in residuals.values()):
        axis.axvline(max_steps, color=GREY, linewidth=0.8, linestyle=":", label=f"stopped after {max_steps}")
    axis.set_yscale("log")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("evaluations", fontsize=7)
    axis.set_ylabel("relative residual", fontsize=7)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure
