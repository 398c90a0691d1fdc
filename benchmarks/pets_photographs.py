"""Lay out Oxford-IIIT Pets as folders of classes, and once more with every animal at half its size."""

import dataclasses
import functools
import io
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from PIL import Image
from tqdm import tqdm

from benchmarks.pets_runs import SHARES, SMALLER, VAL
from localscale.errors import DataError
from localscale.files import write_whole
from localscale.lab.data.boxes import bounding_box
from localscale.lab.data.imagenet.compositing import composite, cut_out, soften_rim
from localscale.lab.data.imagenet.masks import Sides, hole_around
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.registries import INPAINTERS
from localscale.lab.data.images import read_image, read_labels

BORDER, OBJECT = 128, 255  # levels of a trimap
SPLITS = {"trainval": "train", "test": VAL}
SCALE = 0.5
MARGIN = 0.01  # by which the hole extends beyond the trimap's border, which is already wide
NEAR = 2  # pixels from the frame at which an animal counts as cut by it
OUTSIDE = 6  # pixels from the frame to the fixed point of such an animal, so that its soft edge stays out of sight

Fill = Callable[[np.ndarray, np.ndarray], np.ndarray]


def prepare(data: Path, out: Path, *, inpainter: str, quality: int, jobs: int) -> int:
    """Write ``out``/train, val and smaller, and the share of each validation photograph that its animal fills.

    All photographs are encoded alike, so that ``smaller`` differs from ``val`` in its contents alone.
    """
    for split, name in SPLITS.items():
        for path in _photographs(data / split):
            _write(out / name / path.parent.name / path.name, read_image(path), quality)
    photographs = _photographs(data / "test")
    shrink = functools.partial(_write_smaller, out=out, inpainter=inpainter, quality=quality)
    bar = tqdm(total=len(photographs), desc="smaller", unit="image")
    shares = {}
    with bar:
        for name, share in _mapped(shrink, photographs, jobs):
            shares[name] = share
            bar.update()
    write_whole(out / SHARES, json.dumps(shares, indent=0) + "\n")
    return len(photographs)


def shrink_animal(pixels: np.ndarray, trimap: np.ndarray, fill: Fill, scale: float = SCALE) -> np.ndarray:
    """Return the photograph with its animal at ``scale`` times its size, about its centre or the side that cuts it."""
    wide, animal = trimap >= BORDER, animal_mask(trimap)
    hole = hole_around(wide, MARGIN)
    background = soften_rim(pixels, fill(pixels, hole), hole, wide)
    # The published numbers come from this fixed point and from an animal that ends at the frame.
    cutout = dataclasses.replace(cut_out(pixels, animal), anchor=fixed_point(animal), sides=Sides())
    return composite(background, cutout, scale)[0]


def animal_mask(trimap: np.ndarray) -> np.ndarray:
    """Return the object and the half of its border that is nearer to it than to the background."""
    to_object, to_background = (
        cv2.distanceTransform((trimap != level).astype(np.uint8), cv2.DIST_L2, 5) for level in (OBJECT, 0)
    )
    return (trimap == OBJECT) | ((trimap == BORDER) & (to_object < to_background))


def fixed_point(mask: np.ndarray) -> tuple[float, float]:
    """Return the point (x, y) that stays in place: the box's centre, or along an axis just outside the side it touches.

    An animal that touches two opposite sides shrinks about its centre along that axis.

    >>> mask = np.zeros((20, 30), bool)
    >>> mask[10:, 10:20] = True
    >>> fixed_point(mask)
    (15.0, 26.0)
    """
    box, (height, width) = bounding_box(mask), mask.shape
    found = []
    for low, high, length in ((box.left, box.right, width), (box.top, box.bottom, height)):
        first, last = low <= NEAR, high >= length - NEAR
        found.append((low + high) / 2 if first == last else -OUTSIDE if first else length + OUTSIDE)
    return float(found[0]), float(found[1])


def draw_sheet(out: Path, count: int) -> Image.Image:
    """Return a contact sheet: ``count`` validation photographs, each beside the one with the smaller animal."""
    names = list(json.loads((out / SHARES).read_text(encoding="utf-8")))
    names = names[:: max(1, len(names) // count)][:count]
    side, columns = 160, 4
    sheet = Image.new("RGB", (2 * side * columns, side * -(-len(names) // columns)))
    for number, name in enumerate(names):
        for half, split in enumerate((VAL, SMALLER)):
            place = (side * (2 * (number % columns) + half), side * (number // columns))
            sheet.paste(read_image(out / split / name).resize((side, side)), place)
    return sheet


def _photographs(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*/*.jpg"))
    if not found:
        raise DataError(f"{folder} holds no CLASS/NAME.jpg; name the folder with trainval/ and test/ with --data")
    return found


def _write_smaller(path: Path, *, out: Path, inpainter: str, quality: int) -> tuple[str, float]:
    """Write one photograph with a smaller animal; return its name and the share of the photograph that it fills."""
    pixels, trimap = np.array(read_image(path)), read_labels(path.with_name(f"{path.stem}_trimap.png"))
    name = f"{path.parent.name}/{path.name}"
    smaller = shrink_animal(pixels, trimap, _inpainter(inpainter))
    _write(out / SMALLER / name, Image.fromarray(smaller), quality)
    return name, round(float((trimap == OBJECT).mean()), 4)


def _write(path: Path, image: Image.Image, quality: int) -> None:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True)  # half the resolution in colour, as the dataset's own
    write_whole(path, buffer.getvalue())


@functools.cache
def _inpainter(name: str) -> Fill:
    return INPAINTERS[name](ImageNetOptions(images=Path()))


def _mapped(call: Callable[[Path], tuple[str, float]], paths: Iterable[Path], jobs: int) -> Iterator[tuple[str, float]]:
    if jobs == 1:
        yield from map(call, paths)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(call, paths, chunksize=4)
