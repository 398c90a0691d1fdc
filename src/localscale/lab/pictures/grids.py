"""The drawing of a warped grid, for Matplotlib and for SVG."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from localscale.lab.pictures.palette import BLUE
from localscale.maps.base import Map

__all__ = ["draw_grid", "svg_paths", "warp_grid"]


def warp_grid(m: Map, *, lines: int = 11, points: int = 100) -> Tensor:
    """Return the images under ``m`` of the lines of an even grid, ``(B, 2 · lines, points, 2)`` in (x, y) order.

    Horizontal and vertical lines alternate, from the top left.

    Convention: drawn over the scaled image S(I; l), the grid shows where the content of I moved. Drawn over I, it shows
    the positions at which the canonical form S⁻¹(I; l) samples I.

    >>> warp_grid(localscale.identity_map(), lines=3, points=2)[0, 2].tolist()  # the middle horizontal line
    [[0.0, 0.5], [1.0, 0.5]]
    """
    along = torch.linspace(0, 1, points, dtype=m.dtype, device=m.device).expand(lines, -1)
    across = torch.linspace(0, 1, lines, dtype=m.dtype, device=m.device)[:, None].expand(-1, points)
    even = torch.stack((torch.stack((along, across), -1), torch.stack((across, along), -1)), 1)
    return m(even.reshape(1, -1, 2).expand(m.batch, -1, -1)).detach().reshape(m.batch, 2 * lines, points, 2)


def draw_grid(
    axis: Any, grid: Tensor, extent: tuple[float, float, float, float], *, colour: str = BLUE, width: float = 0.6
) -> None:
    """Draw the lines of ``grid`` ``(L, P, 2)`` on a Matplotlib axis.

    Args:
        axis: the axis.
        grid: one grid of ``warp_grid``.
        extent: left, right, bottom and top of the image, as for ``imshow``.
        colour: the colour of the lines.
        width: the width of the lines in points.
    """
    left, right, bottom, top = extent
    for x, y in grid.cpu().movedim(-1, 1):
        axis.plot(left + (right - left) * x, top + (bottom - top) * y, color=colour, linewidth=width)


def svg_paths(grid: Tensor, side: int) -> list[str]:
    """Return the path of each line of ``grid`` ``(L, P, 2)``, in a square of ``side`` units.

    >>> svg_paths(warp_grid(localscale.identity_map(), lines=2, points=2)[0], 100)[0]
    'M0.0,0.0 100.0,0.0'
    """
    return ["M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in line) for line in (side * grid).tolist()]
