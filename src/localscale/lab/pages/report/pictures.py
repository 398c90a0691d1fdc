"""Photographs and grids inside a page: base64 pixels, and lines over them as SVG."""

from __future__ import annotations

import base64

import torch
from PIL import Image
from torch import Tensor

from localscale.lab.data.images import encode_image
from localscale.lab.pages.report.html import Html, element
from localscale.maps.base import Map

__all__ = ["grid_paths", "picture"]

SIDE, LINES, POINTS = 144, 11, 33  # pixels a picture is stored with; lines of a grid and points on each
QUALITY = 80


def picture(image: Tensor, description: str, *, grid: Tensor | None = None) -> Html:
    """An image ``(1 or 3, H, W)`` in [0,1], small, with the lines of ``grid`` (see ``grid_paths``) over it.

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
    lines = [element("path", d=path) for path in _paths(grid)]
    drawn = element("svg", *lines, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")
    return element("div", shown, drawn, class_="picture")


def grid_paths(m: Map, index: int) -> Tensor:
    """Where an even grid's lines go under map ``index`` of a batch, ``(lines, points, 2)`` in [0,1].

    Convention: a canonical form shows at p what the image has at l(p), so l of the canonical form's even grid, drawn
    over the image, is what becomes even.
    """
    even = torch.linspace(0, 1, POINTS, dtype=m.dtype, device=m.device)
    lines = []
    for place in torch.linspace(0, 1, LINES, dtype=m.dtype, device=m.device):
        along = place.expand(POINTS)
        lines += [torch.stack((even, along), -1), torch.stack((along, even), -1)]
    points = torch.stack(lines).flatten(0, 1).expand(m.batch, -1, -1)
    return m(points)[index].reshape(len(lines), POINTS, 2).detach()


def _paths(grid: Tensor) -> list[str]:
    return ["M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in line) for line in (100 * grid).tolist()]
