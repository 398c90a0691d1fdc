"""An image and a grid over it, before and after a local scaling (paper, Fig. image_loc_scale_2d)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from localscale.errors import ShapeError
from localscale.lab.pictures.files import BLUE, new_figure
from localscale.maps.base import Map
from localscale.warp import scale

__all__ = ["draw_warp"]

LINES, POINTS = 13, 200


def draw_warp(image: Tensor, m: Map) -> Any:
    """A matplotlib figure: the image ``(3, H, W)`` in [0,1] and S(I; l), each under the grid that moves along.

    What lies at p before lies at l(p) after, so the second grid is the first one's image under l.

    >>> len(draw_warp(torch.rand(3, 32, 32), localscale.random_map()).axes)
    2
    """
    if image.dim() != 3 or m.batch != 1:
        raise ShapeError(
            f"the image has shape {tuple(image.shape)} and there are {m.batch} maps; expected (3, height, width) and 1"
        )
    height, width = image.shape[1:]
    figure, axes = new_figure(1, 2, width=4.8, height=2.5)
    even = torch.linspace(0, 1, POINTS, dtype=m.dtype)
    for axis, picture, moved in zip(axes[0], (image, scale(image[None], m)[0]), (False, True), strict=True):
        axis.imshow(picture.clamp(0, 1).movedim(0, -1).numpy())
        for place in torch.linspace(0, 1, LINES, dtype=m.dtype):
            for points in (
                torch.stack((even, place.expand(POINTS)), -1),
                torch.stack((place.expand(POINTS), even), -1),
            ):
                x, y = (m(points[None])[0] if moved else points).detach().unbind(-1)
                axis.plot(x * (width - 1), y * (height - 1), color=BLUE, linewidth=0.6, alpha=0.9)
        axis.set_axis_off()
        axis.set_title("S(I; l)" if moved else "I", fontsize=8)
    return figure
