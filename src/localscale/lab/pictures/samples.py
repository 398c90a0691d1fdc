"""Samples of datasets on disk: one group per row, its images side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from localscale.errors import ShapeError
from localscale.lab.data.written import WrittenDataset
from localscale.lab.pictures.contact_sheet import Cell, read_rows
from localscale.lab.pictures.files import blank_figure

__all__ = ["draw_samples", "read_samples"]

TITLES = {"mnist": "locally scaled MNIST", "objects": "locally scaled objects", "imagenet": "locally scaled ImageNet"}

# inches
CELL, GAP, MARGIN = 1.15, 0.05, 0.05
NAME, TITLE, CAPTION = 0.26, 0.2, 0.15
LONGEST = 22  # characters of a name beside a row


def read_samples(given: str, *, groups: int, columns: int) -> tuple[str, list[list[Cell]]]:
    """Return title and rows of the dataset in the folder ``given``; ``TITLE=FOLDER`` sets the title."""
    name, equals, folder = given.partition("=")
    if not equals or Path(given).is_dir():
        name, folder = "", given
    dataset = WrittenDataset(folder)
    return name or TITLES.get(dataset.kind, dataset.kind), read_rows(dataset, groups=groups, columns=columns)


def draw_samples(datasets: list[tuple[str, list[list[Cell]]]]) -> Any:
    """Return a figure with a title and rows of images for each dataset, and the scale factors under each image.

    Args:
        datasets: title and rows of each dataset, from ``read_samples``.

    >>> from PIL import Image
    >>> row = [Cell([Image.new("L", (8, 8))], [("7", "x1.0")]) for _ in range(3)]
    >>> len(draw_samples([("numbers", [row, row])]).axes[0].images)
    6
    """
    columns = max((len(row) for _, rows in datasets for row in rows), default=0)
    if not columns:
        raise ShapeError("there is no image to draw; expected at least one dataset with one row")
    lines = [_height(row) + CAPTION + GAP for _, rows in datasets for row in rows]
    top = 2 * MARGIN + len(datasets) * TITLE + (len(datasets) - 1) * GAP + sum(lines)
    figure, axis = blank_figure(width=2 * MARGIN + NAME + columns * (CELL + GAP) - GAP, height=top)
    top -= MARGIN
    for name, rows in datasets:
        axis.text(MARGIN + NAME, top, name, fontsize=9, va="top")
        top -= TITLE
        for row in rows:
            _draw_row(axis, row, top)
            top -= _height(row) + CAPTION + GAP
        top -= GAP
    return figure


def _draw_row(axis: Any, row: list[Cell], top: float) -> None:
    height, shared = _height(row), len({_name(cell) for cell in row}) == 1
    if shared:
        axis.text(
            MARGIN + NAME - GAP, top - height / 2, _name(row[0]),
            rotation=90, ha="right", va="center", multialignment="center", fontsize=6.5, linespacing=1.1,
        )  # fmt: skip
    for k, cell in enumerate(row):
        left, image = MARGIN + NAME + k * (CELL + GAP), cell.pictures[0]
        width, tall = _size(cell)
        across, low = left + (CELL - width) / 2, top - (height + tall) / 2
        extent = (across, across + width, low, low + tall)
        axis.imshow(np.asarray(image.convert("RGB")), extent=extent, aspect="auto", interpolation="antialiased")
        factors = " ".join(factor for _, factor in cell.captions if factor).replace("x", "×").replace("  ", " ")
        caption = factors if shared else f"{_name(cell)}: {factors}"
        axis.text(left + CELL / 2, top - height - 0.02, caption, ha="center", va="top", fontsize=6.5)


def _size(cell: Cell) -> tuple[float, float]:
    """Return width and height in inches of an image that fills its cell."""
    width, height = cell.pictures[0].size
    return CELL * width / max(width, height), CELL * height / max(width, height)


def _height(row: list[Cell]) -> float:
    return max(_size(cell)[1] for cell in row)


def _name(cell: Cell) -> str:
    """Return the names of the things in the image, one per line."""
    names = [name for name, _ in cell.captions if name]
    return "\n".join(name if len(name) <= LONGEST else f"{name[: LONGEST - 1].rstrip()}…" for name in names)
