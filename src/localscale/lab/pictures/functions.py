"""Global against local scaling of a function of one variable (paper, Fig. scaling_functions)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.palette import BLUE, GREY, ORANGE
from localscale.maps import MonotoneMap

__all__ = ["draw_functions"]

POINTS = 400
LOCAL = (0.0, 0.7, 1.0)  # the images of three even knots under the local scaling


def draw_functions(factor: float = 2.0) -> Any:
    """Return a figure of both scalings: the position that each x is read from, and a signal before and after.

    >>> len(draw_functions().axes)
    4
    """
    figure, axes = new_figure(2, 2, width=4.8, height=3.6)
    x = torch.linspace(0, 1, POINTS, dtype=torch.float64)
    values = torch.tensor([LOCAL], dtype=torch.float64)
    local = MonotoneMap(torch.linspace(0, 1, len(LOCAL), dtype=torch.float64)[None], values).inverse()
    for row, (name, read_at) in enumerate({"global": x / factor, "local": local(x[None])[0]}.items()):
        left, right = axes[row]
        left.plot(x, x, color=GREY, linewidth=0.8, linestyle="--")
        left.plot(x, read_at, color=BLUE)
        left.set_ylabel(f"{name}\nplace that is read", fontsize=7)
        right.plot(x, _signal(x), color=GREY, linewidth=0.8, linestyle="--", label="f(x)")
        right.plot(x, _signal(read_at), color=ORANGE, label="f(x/a)" if row == 0 else "S(f; l)(x)")
        right.legend(fontsize=6, frameon=False)
    axes[0][0].set_title(f"x ↦ x/a, a = {factor:g}", fontsize=8)
    axes[1][0].set_title("x ↦ l⁻¹(x)", fontsize=8)
    for axis in axes.flat:
        axis.tick_params(labelsize=6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _signal(x: Tensor) -> Tensor:
    """Return a signal of two bumps, the second one higher."""
    return torch.exp(-(((x - 0.25) / 0.07) ** 2)) + 1.5 * torch.exp(-(((x - 0.7) / 0.09) ** 2))
