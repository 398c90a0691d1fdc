"""An image under a grid, before and after a local scaling (paper, Fig. image_loc_scale_2d)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from localscale.errors import ShapeError
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.grids import draw_grid, warp_grid
from localscale.maps import identity_map
from localscale.maps.base import Map
from localscale.warp import scale

__all__ = ["draw_warp"]

LINES = 13


def draw_warp(image: Tensor, m: Map) -> Any:
    """Return a figure with the image ``(3, H, W)`` in [0,1] and S(I; l), each under a grid that moves with it.

    Convention: content at p moves to l(p), so the second grid is the image of the first under l.

    >>> len(draw_warp(torch.rand(3, 32, 32), localscale.random_map()).axes)
    2
    """
    if image.dim() != 3 or m.batch != 1:
        raise ShapeError(
            f"the image has shape {tuple(image.shape)} and there are {m.batch} maps; expected (3, height, width) and 1"
        )
    height, width = image.shape[1:]
    figure, axes = new_figure(1, 2, width=4.8, height=2.5)
    shown = {"I": (image, identity_map(dtype=m.dtype)), "S(I; l)": (scale(image[None], m)[0], m)}
    for axis, (title, (picture, moved)) in zip(axes[0], shown.items(), strict=True):
        axis.imshow(picture.clamp(0, 1).movedim(0, -1).numpy())
        draw_grid(axis, warp_grid(moved, lines=LINES, points=200)[0], (0, width - 1, height - 1, 0))
        axis.set_axis_off()
        axis.set_title(title, fontsize=8)
    return figure
