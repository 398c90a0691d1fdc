"""Read labelled boxes from a CSV file with one row for each object.

Convention: the edges are fractions of the upright image's width and height, from 0 (left, top) to 1 (right, bottom).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.lab.data.imagenet.stages import Photograph

__all__ = ["BoxTable", "load_box_table"]

EDGES = ("left", "top", "right", "bottom")
COLUMNS = ("image", *EDGES)
SLACK = 0.05  # edges may lie this far outside the image; they are moved to its frame


@dataclass(frozen=True)
class Row:
    """The text of one row's edges, and the row's number in the file."""

    number: int
    edges: tuple[str, ...]


@dataclass(frozen=True)
class BoxTable:
    """The rows of a CSV file by the image that they name."""

    file: str
    rows: Mapping[str, Sequence[Row]]

    def find(self, photograph: Photograph) -> Box | None:
        """Return the largest box of a photograph in its pixels, or None if no row names the photograph.

        A row names ``class/image.jpg`` by this path or by its last part, with or without the ending. If one of the
        photograph's rows is wrong, the largest box is not known, so that ``DataError`` is raised.
        """
        path = PurePosixPath(photograph.name)
        names = (photograph.name, str(path.with_suffix("")), path.name, path.stem)
        rows = next((self.rows[name] for name in names if name in self.rows), None)
        if rows is None:
            return None
        largest = max(map(self._parse, rows), key=lambda box: box.area)
        return largest.resized(photograph.width, photograph.height)

    def _parse(self, row: Row) -> Box:
        try:
            box = Box(*(_fraction(name, text) for name, text in zip(EDGES, row.edges, strict=True)))
            if max(box.left, box.top) >= 1 or min(box.right, box.bottom) <= 0:
                raise DataError(f"box {box.edges} lies outside the image")
            return box.clipped(1, 1)
        except DataError as error:
            raise DataError(f"{self.file}, row {row.number}: {error}") from error


def load_box_table(path: Path) -> BoxTable:
    """Read a CSV file with the columns image, left, top, right and bottom; other columns are ignored.

    A file without these columns, or with a row that names no image, raises ``DataError``. The numbers of a row are
    checked when ``BoxTable.find`` reads it, so that one wrong row costs one image.
    """
    rows: dict[str, list[Row]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(f"{path.name} has no column {', '.join(missing)}; expected {','.join(COLUMNS)}")
            for entry in reader:
                name = (entry["image"] or "").strip()
                if not name:
                    raise DataError(f"{path.name}, row {reader.line_num}: no image is named")
                row = Row(reader.line_num, tuple(entry[edge] or "" for edge in EDGES))
                rows.setdefault(name, []).append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path.name} cannot be read as CSV: {error}") from error
    if not rows:
        raise DataError(f"{path.name} holds no boxes; expected rows {','.join(COLUMNS)}")
    return BoxTable(path.name, rows)


def _fraction(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not -SLACK <= number <= 1 + SLACK:
        raise DataError(f'{name} is "{text}"; expected a fraction of the image, from 0 to 1')
    return number
