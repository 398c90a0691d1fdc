"""Curves of what was measured: answers against scale, and residuals against iterations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from localscale.errors import ShapeError
from localscale.figures.files import BLUE, GREY, ORANGE, new_figure

__all__ = ["draw_per_scale", "draw_residuals"]

COLOURS = (GREY, ORANGE, BLUE, "#009E73", "#CC79A7", "#56B4E9")


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
            axis.fill_between(places, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
    axis.set_xticks(list(places), [str(scale) for scale in scales], fontsize=7)
    axis.set_xlabel("local scale", fontsize=7)
    axis.set_ylabel(ylabel, fontsize=7)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def draw_residuals(residuals: dict[str, Tensor], *, tolerance: float) -> Any:
    """A matplotlib figure: the relative residual after each evaluation, median and full range over images.

    Args:
        residuals: by the site's (or solver's) name, ``(images, steps)``.
        tolerance: drawn as a line.

    >>> len(draw_residuals({"input": torch.rand(8, 5)}, tolerance=1e-3).axes)
    1
    """
    figure, axes = new_figure(1, 1, width=3.3, height=2.3)
    axis = axes[0][0]
    for (name, values), colour in zip(residuals.items(), COLOURS[1:] * len(residuals), strict=False):
        steps = torch.arange(1, values.shape[1] + 1)
        axis.plot(steps, values.median(0).values, marker="o", markersize=3, color=colour, label=name)
        axis.fill_between(steps, values.amin(0), values.amax(0), color=colour, alpha=0.15, linewidth=0)
    axis.axhline(tolerance, color=GREY, linewidth=0.8, linestyle="--", label=f"tolerance {tolerance:g}")
    axis.set_yscale("log")
    axis.set_xlabel("evaluations", fontsize=7)
    axis.set_ylabel("relative residual", fontsize=7)
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure
