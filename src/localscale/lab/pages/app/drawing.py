"""Pictures of the page as HTML: images as data URLs, so that no file is written, and lines over them as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image
from torch import Tensor

from localscale.lab.data.boxes import Box
from localscale.lab.pages.html import Html, data_url, element, join
from localscale.lab.pictures.grids import svg_paths, warp_grid
from localscale.maps.base import Map

__all__ = ["frame", "grid", "handles", "outline", "panel", "polygon", "strip"]

POINTS = 49  # on each line of a grid
THUMBNAIL = 96  # pixels


def frame(image: Tensor, description: str, *layers: Html, kind: str = "", **attributes: str) -> Html:
    """Show an image ``(3, H, W)`` with layers over it."""
    height, width = image.shape[-2:]
    shown = element("img", src=data_url(image), alt=description, draggable="false")
    shape = f"aspect-ratio: {width} / {height}; --ratio: {width / height:.4f}"
    return element("div", shown, *layers, class_=f"ls-frame {kind}".strip(), style=shape, **attributes)


def panel(name: str, description: str, content: Html) -> Html:
    """Show a picture with its name and a description above it."""
    return element("figure", element("figcaption", element("b", name), description), content, class_="ls-panel")


def grid(m: Map, lines: int) -> Html:
    """Return the image of an even grid under the first map of ``m``.

    >>> grid(localscale.identity_map(), lines=3).count("M0.0")
    4
    """
    paths = svg_paths(warp_grid(m, lines=lines, points=POINTS)[0], 1000)
    return _over(*(element("path", d=path) for path in paths), kind="ls-grid")


def outline(box: Box) -> Html:
    """Outline a box over an image."""
    sides = {"x": box.left, "y": box.top, "width": box.right - box.left, "height": box.bottom - box.top}
    return _over(element("rect", **{name: f"{1000 * value:.1f}" for name, value in sides.items()}), kind="ls-outline")


def polygon(points: Tensor) -> Html:
    """Outline the closed polygon through ``points`` ``(P, 2)`` over an image.

    >>> polygon(torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.5, 0.25]])).count("500.0,250.0")
    1
    """
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (1000 * points).tolist())
    return _over(element("polygon", points=corners), kind="ls-outline")


def handles(positions: Tensor) -> Html:
    """Place a handle on each knot that can move; ``positions`` is ``(2, Ny, Nx)``."""
    _, rows, columns = positions.shape
    corners = {(row, column) for row in (0, rows - 1) for column in (0, columns - 1)}  # cannot move
    knots = [(row, column) for row in range(rows) for column in range(columns) if (row, column) not in corners]
    return join(
        element(
            "button",
            type="button",
            class_="ls-knot",
            style="left: {:.2f}%; top: {:.2f}%".format(*(100 * positions[:, row, column]).tolist()),
            data_row=str(row),
            data_column=str(column),
            aria_label=f"knot {row}, {column}",
        )
        for row, column in knots
    )


def strip(pictures: Sequence[tuple[str, Image.Image]], chosen: int | None) -> Html:
    """Show thumbnails that can be clicked, each with its name; ``chosen`` is the selected one."""
    buttons = [
        element(
            "button",
            element("img", src=data_url(image, largest=THUMBNAIL), alt=""),
            element("span", name),
            class_="ls-example",
            type="button",
            data_example=str(k),
            aria_pressed="true" if k == chosen else "false",
        )
        for k, (name, image) in enumerate(pictures)
    ]
    return element("div", *buttons, class_="ls-strip", role="group", aria_label="examples")


def _over(*shapes: Html, kind: str) -> Html:
    return element("svg", *shapes, viewBox="0 0 1000 1000", preserveAspectRatio="none", class_=kind, aria_hidden="true")
