"""Pictures inside the page: base64 pixels with an optional SVG grid over them."""

from __future__ import annotations

import base64

import torch
from PIL import Image
from torch import Tensor

from localscale.lab.data.images import encode_image
from localscale.lab.pages.report.html import Html, element
from localscale.lab.pictures.grids import svg_paths

__all__ = ["picture"]

SIDE, QUALITY = 144, 80  # pixels and JPEG quality of a stored picture


def picture(image: Tensor, description: str, *, grid: Tensor | None = None) -> Html:
    """Return a small picture of an image ``(1 or 3, H, W)`` in [0,1], with the lines of ``grid`` ``(L, P, 2)`` over it.

    >>> picture(torch.zeros(1, 4, 4), "a digit").count("data:image/")
    1
    """
    pixels = (255 * image.detach().clamp(0, 1) + 0.5).to(torch.uint8).cpu()
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.movedim(0, -1).contiguous().numpy()
    small = Image.fromarray(array)
    if max(small.size) > SIDE:
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    stored = {form: encode_image(small, form, quality=QUALITY) for form in ("png", "jpg")}
    form = min(stored, key=lambda name: len(stored[name]))  # digits are smaller as PNG, photographs as JPEG
    source = f"data:image/{'png' if form == 'png' else 'jpeg'};base64,{base64.b64encode(stored[form]).decode()}"
    shown = element("img", src=source, alt=description)
    if grid is None:
        return element("div", shown, class_="picture")
    lines = [element("path", d=path) for path in svg_paths(grid, 100)]
    drawn = element("svg", *lines, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")
    return element("div", shown, drawn, class_="picture")
