"""Build HTML elements and data URLs; strings that are not ``Html`` are escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

import torch
from PIL import Image, ImageOps
from torch import Tensor

from localscale.lab.data.images import encode_image

__all__ = ["Html", "data_url", "element", "join", "section", "table"]

VOID = ("img", "meta", "br")


class Html(str):
    """A string of HTML, which is inserted without escaping."""

    __slots__ = ()


def join(parts: Iterable[object]) -> Html:
    """Concatenate parts; escape those that are not ``Html``.

    >>> join([Html("<b>1</b>"), " < ", 2])
    '<b>1</b> &lt; 2'
    """
    return Html("".join(part if isinstance(part, Html) else html.escape(str(part)) for part in parts))


def element(name: str, /, *content: object, **attributes: str) -> Html:
    """Return one element; ``class_`` names the attribute class, other underscores become hyphens.

    >>> element("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{join(content)}</{name}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table whose first column holds row headers; it scrolls sideways on narrow screens.

    >>> '<th scope="row">this run</th><td>91.2</td>' in table(["", "accuracy"], [["this run", 91.2]])
    True
    """
    top = element("tr", *(element("th", cell, scope="col") for cell in head))
    lines = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    whole = element("table", element("thead", top), element("tbody", *lines))
    return element("div", whole, class_="wide", tabindex="0")


def section(anchor: str, title: str, *content: object) -> Html:
    """Return a section of the page with the link target ``anchor``."""
    return element("section", element("h2", title), *content, id=anchor)


def data_url(
    image: Tensor | Image.Image, *, forms: tuple[str, ...] = ("jpg",), quality: int = 92, largest: int | None = None
) -> str:
    """Encode an image as a data URL in the smallest of ``forms``.

    Args:
        image: a tensor is ``(1 or 3, H, W)`` in [0,1].
        forms: ``"jpg"`` and ``"png"``; one alone is faster.
        quality: JPEG quality.
        largest: largest side in pixels; larger images are reduced.
    """
    if isinstance(image, Tensor):
        pixels = (255 * image.detach().clamp(0, 1) + 0.5).to(torch.uint8).movedim(0, -1).squeeze(-1).cpu()
        image = Image.fromarray(pixels.contiguous().numpy())
    if largest is not None and max(image.size) > largest:
        image = ImageOps.contain(image, (largest, largest), Image.Resampling.LANCZOS)
    encoded = {form: encode_image(image, form, quality=quality) for form in forms}
    form = min(encoded, key=lambda name: len(encoded[name]))
    return f"data:image/{'png' if form == 'png' else 'jpeg'};base64,{base64.b64encode(encoded[form]).decode()}"
