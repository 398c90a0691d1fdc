"""A contact sheet of a written dataset: one row per group of images that differ in scale only, with masks below."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from localscale.errors import ConfigError, DataError
from localscale.lab.data.images import read_image, read_labels
from localscale.lab.data.written import WrittenDataset

__all__ = ["Cell", "contact_sheet", "read_rows"]

CELL, GAP, LINE = 160, 6, 14
MASKS = ("class.png", "mask.png")
LANCZOS, NEAREST = Image.Resampling.LANCZOS, Image.Resampling.NEAREST
BACKGROUND, INK, FAINT = (255, 255, 255), (20, 20, 20), (110, 110, 110)


@dataclass(frozen=True)
class Cell:
    """One image with its coloured masks; each line of its caption has a name and scale factors."""

    pictures: list[Image.Image]
    captions: list[tuple[str, str]]


def contact_sheet(root: str | Path, *, groups: int = 6, columns: int = 8) -> Image.Image:
    """Draw the first ``groups`` groups of the dataset in ``root``, at most ``columns`` images of each.

    Groups of a single image are drawn side by side. Masks have one colour per class and a white background.
    """
    _check(groups, columns)
    dataset = WrittenDataset(root)
    rows = read_rows(dataset, groups=groups, columns=columns)
    for cell in (cell for row in rows for cell in row):
        for picture, how in zip(cell.pictures, (LANCZOS, *(NEAREST for _ in MASKS)), strict=False):
            picture.thumbnail((CELL, CELL), how)
    return _draw(rows, _title(dataset, len(dataset.groups())))


def read_rows(dataset: WrittenDataset, *, groups: int, columns: int) -> list[list[Cell]]:
    """Read the first ``groups`` groups, one per row; groups of a single image share rows.

    Of a group with more than ``columns`` images, the first, the last and evenly spaced ones between them are read.
    """
    _check(groups, columns)
    members = list(dataset.groups().values())
    if not members:
        raise DataError(f"{dataset.root} contains no image: all {len(dataset.skipped)} items were skipped")
    if all(len(group) == 1 for group in members):
        flat = [group[0] for group in members[: groups * columns]]
        rows = [flat[start : start + columns] for start in range(0, len(flat), columns)]
    else:
        rows = [_spread(group, columns) for group in members[:groups]]
    return [[_read_cell(dataset, position) for position in row] for row in rows]


def _check(groups: int, columns: int) -> None:
    if groups < 1 or columns < 1:
        raise ConfigError(f"groups and columns are {groups} and {columns}; expected at least 1 each")


def _spread(group: list[int], columns: int) -> list[int]:
    if len(group) <= columns or columns == 1:
        return group[:columns]
    return [group[round(k * (len(group) - 1) / (columns - 1))] for k in range(columns)]


def _title(dataset: WrittenDataset, groups: int) -> str:
    skipped = f", {len(dataset.skipped):,} items skipped" if dataset.skipped else ""
    return f"{dataset.root.name}: {dataset.kind}, {len(dataset):,} images in {groups:,} groups{skipped}"


def _read_cell(dataset: WrittenDataset, position: int) -> Cell:
    record = dataset.records[position]
    forms = [suffix for suffix in record["suffixes"] if suffix in ("png", "jpg")]
    if not forms:
        raise DataError(f"sample {record['key']} has no image; it has {', '.join(record['suffixes'])}")
    pictures = [read_image(dataset.read(position, forms[0]))]
    for suffix in MASKS:
        if suffix in record["suffixes"]:
            pictures.append(_colour(dataset.read(position, suffix)))
    return Cell(pictures, _captions(record))


def _captions(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the caption: a name, and the scale factors if the record has them."""
    try:
        if "objects" in record:
            return [(thing["class"].replace("_", " "), f"x{thing['scale']:.2f}") for thing in record["objects"]]
        if "scales" in record:
            return [(f"{record['label']:03d}", ""), ("", "  ".join(f"x{scale:.2f}" for scale in record["scales"]))]
        name = str(record.get("class_name", record.get("label", record["key"])))
        return [(name, f"x{record['scale']:.1f}" if "scale" in record else "")]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"sample {record['key']} has an invalid record ({error!r}); write the dataset again") from error


def _colour(data: bytes) -> Image.Image:
    """Return a coloured label map: hues a golden angle apart and five brightnesses, so that few labels look alike."""
    labels = read_labels(data)
    if set(np.unique(labels)) <= {0, 255}:
        labels = labels // 255
    hue = np.stack([labels * 0.618034 % 1 * 255, np.full(labels.shape, 170), 110 + 30 * (labels % 5)], -1)
    colours = np.asarray(Image.frombytes("HSV", labels.shape[::-1], hue.astype(np.uint8).tobytes()).convert("RGB"))
    return Image.fromarray(np.where(labels[..., None] == 0, np.uint8(244), colours))


def _draw(rows: list[list[Cell]], title: str) -> Image.Image:
    font, heading = ImageFont.load_default(11), ImageFont.load_default(15)
    # Pictures of different groups differ in height, so each row has its own.
    tall = [max(picture.height for cell in row for picture in cell.pictures) for row in rows]
    heights = [
        max(len(cell.pictures) for cell in row) * (high + GAP) + max(len(cell.captions) for cell in row) * LINE + GAP
        for row, high in zip(rows, tall, strict=True)
    ]
    width = max(len(row) for row in rows) * (CELL + GAP) + GAP
    sheet = Image.new("RGB", (max(width, 480), 30 + sum(heights)), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, 6), title, fill=INK, font=heading)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            left, top = GAP + j * (CELL + GAP), 30 + sum(heights[:i])
            for picture in cell.pictures:
                sheet.paste(picture, (left + (CELL - picture.width) // 2, top + (tall[i] - picture.height) // 2))
                top += tall[i] + GAP
            for n, (name, factor) in enumerate(cell.captions):
                text = _fit(draw, font, name, factor)
                draw.text((left, top - 2 + n * LINE), text, fill=INK if n == 0 else FAINT, font=font)
    return sheet


def _fit(draw: ImageDraw.ImageDraw, font: Any, name: str, factor: str) -> str:
    """Return name and factor in the width of a cell; a long name is cut, the factor never."""
    text, kept = f"{name} {factor}".strip(), name
    while draw.textlength(text, font=font) > CELL and len(kept) > 1:
        kept = kept[:-1].rstrip()
        text = f"{kept}. {factor}".strip()
    return text
