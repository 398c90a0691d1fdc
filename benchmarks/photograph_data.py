"""Read photographs, the boxes of the things in them, and cut-out things, as tensors of bytes."""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from localscale.errors import DataError
from localscale.lab.data.images import FORMATS

__all__ = ["Cutouts", "Photographs", "read_boxes", "read_cutouts", "read_pets", "read_photographs"]

SIDE = 256  # pixels of a square photograph
MOST = 12  # boxes of a photograph that are kept, the largest ones
KINDS = (".webp", ".jpg", ".jpeg", ".png")
THREADS = 16
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Photographs:
    """Squares ``(N, 3, 256, 256)`` from the middle of photographs, as bytes, and the boxes in them ``(N, 12, 4)``.

    A box is (left, top, right, bottom) in fractions of the square. The larger ones come first; missing ones are NaN.
    """

    images: Tensor
    boxes: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: str) -> "Photographs":
        """Return the same photographs on ``device``."""
        return Photographs(self.images.to(device), self.boxes.to(device))

    def at(self, index: Tensor) -> "Photographs":
        """Return the photographs number ``index``."""
        return Photographs(self.images[index], self.boxes[index])

    def __add__(self, other: "Photographs") -> "Photographs":
        return Photographs(torch.cat((self.images, other.images)), torch.cat((self.boxes, other.boxes)))


@dataclass(frozen=True, eq=False)
class Cutouts:
    """Cut-out things ``(N, 4, 256, 256)``, RGBA bytes in the upper left corner, and their widths and heights."""

    images: Tensor
    sizes: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: str) -> "Cutouts":
        """Return the same things on ``device``."""
        return Cutouts(self.images.to(device), self.sizes.to(device))


def read_boxes(path: Path) -> dict[str, list[Box]]:
    """Return the boxes of each photograph, by the name of its file without the ending.

    The columns are image, left, top, right and bottom; positions are fractions of the photograph.
    """
    found: dict[str, list[Box]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            left, top, right, bottom = (float(row[name]) for name in ("left", "top", "right", "bottom"))
            found[row["image"]].append((left, top, right, bottom))
    return dict(found)


def read_photographs(folder: Path, boxes: dict[str, list[Box]]) -> Photographs:
    """Return the photographs with known boxes that ``folder`` and the folders in it hold."""
    files = [file for file in _files(folder) if file.stem in boxes]
    if not files:
        raise DataError(f"no photograph in {folder} has boxes; expected files named as the boxes' column image")
    return _squares(files, [boxes[file.stem] for file in files])


def read_pets(folder: Path) -> Photographs:
    """Return the photographs ``NAME.jpg`` that have a ``NAME_trimap.png``, with the box around the animal."""
    pairs = [(file, file.with_name(f"{file.stem}_trimap.png")) for file in _files(folder)]
    pairs = [(file, trimap) for file, trimap in pairs if trimap.is_file()]
    if not pairs:
        raise DataError(f"no photograph in {folder} has a trimap beside it; expected NAME.jpg and NAME_trimap.png")
    boxes = _map(lambda pair: [_box_around(np.asarray(Image.open(pair[1], formats=["PNG"])) > 0)], pairs)
    return _squares([file for file, _ in pairs], boxes)


def read_cutouts(folder: Path, boxes: dict[str, list[Box]]) -> tuple[Photographs | None, Cutouts]:
    """Return the backgrounds, which files ``b_*.webp`` hold, if there are any, and the things of all other files.

    A background ``b_CLASS__NAME.webp`` is a photograph whose thing was removed; it is left out if it had several.
    """
    files = [file for file in _files(folder) if not file.name.startswith("b_")]
    grounds = [file for file in _files(folder) if file.name.startswith("b_")]
    grounds = [file for file in grounds if len(boxes.get(file.stem.rpartition("__")[2], [()])) == 1]
    if not files:
        raise DataError(
            f"no cut-out thing is in {folder}; expected WebP files with alpha, and b_*.webp for backgrounds"
        )
    images, sizes = zip(*_map(_cutout, files), strict=True)
    things = Cutouts(torch.stack(images), torch.tensor(sizes, dtype=torch.float32))
    return _squares(grounds, [[] for _ in grounds]) if grounds else None, things


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in KINDS)


def _map(f: Callable, items: Iterable) -> list:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(f, items))


def _squares(files: Sequence[Path], boxes: Sequence[Sequence[Box]]) -> Photographs:
    found = _map(lambda pair: _square(*pair), zip(files, boxes, strict=True))
    images, known = zip(*found, strict=True)
    return Photographs(torch.stack(images), torch.stack(known))


def _square(file: Path, boxes: Sequence[Box]) -> tuple[Tensor, Tensor]:
    """Return the middle of a photograph whose shorter side is resized to the square, and the boxes in it."""
    with Image.open(file, formats=FORMATS) as opened:
        opened.draft("RGB", (SIDE, SIDE))  # JPEG alone decodes fewer pixels
        image = opened.convert("RGB")
    scale = SIDE / min(image.size)
    width, height = (max(SIDE, round(side * scale)) for side in image.size)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    square = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + SIDE, top + SIDE))
    size, start = torch.tensor([width, height] * 2), torch.tensor([left, top] * 2)
    known = (torch.tensor(boxes).view(-1, 4) * size - start) / SIDE
    area = (known.clamp(0, 1)[:, 2:] - known.clamp(0, 1)[:, :2]).clamp_min(0).prod(dim=1)
    kept = known[area.argsort(descending=True)][:MOST]
    padded = torch.full((MOST, 4), torch.nan)
    padded[: len(kept)] = kept
    return torch.from_numpy(np.array(square)).permute(2, 0, 1), padded


def _cutout(file: Path) -> tuple[Tensor, tuple[int, int]]:
    with Image.open(file, formats=FORMATS) as opened:
        image = opened.convert("RGBA")
    image.thumbnail((SIDE, SIDE))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    padded = torch.zeros(4, SIDE, SIDE, dtype=torch.uint8)
    padded[:, : image.height, : image.width] = pixels
    return padded, image.size


def _box_around(mask: np.ndarray) -> Box:
    """Return the box around the pixels of a mask, in fractions of it."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return 0.0, 0.0, 0.0, 0.0
    height, width = mask.shape
    return columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height
