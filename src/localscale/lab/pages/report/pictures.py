"""Pictures inside the page: base64 pixels with an optional SVG grid over them."""

from __future__ import annotations

from torch import Tensor

from localscale.lab.pages.html import Html, data_url, element
from localscale.lab.pictures.grids import svg_paths

__all__ = ["picture"]


def picture(image: Tensor, description: str, *, grid: Tensor | None = None) -> Html:
    """Return a small picture of an image ``(1 or 3, H, W)`` in [0,1], with the lines of ``grid`` ``(L, P, 2)`` over it.

    >>> picture(torch.zeros(1, 4, 4), "a digit").count("data:image/")
    1
    """
    shown = element("img", src=data_url(image, forms=("jpg", "png"), quality=80, largest=144), alt=description)
    if grid is None:
        return element("div", shown, class_="picture")
    lines = [element("path", d=path) for path in svg_paths(grid, 100)]
    drawn = element("svg", *lines, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")
    return element("div", shown, drawn, class_="picture")
