"""Labelled photographs in memory: the central crops that classifiers take, and how much of them objects fill."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from tqdm import tqdm

from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.lab.data.imagenet.box_table import Row, load_box_table
from localscale.lab.data.imagenet.image_list import list_images
from localscale.lab.data.images import read_image

SIDE, SOURCE = 224, 448  # pixels that a classifier takes, and those of a source that shows the same
SHOWN = 0.875  # the part of the shorter side in which objects are measured
# Classes of ImageNet that are places or surfaces rather than things in front of something.
SCENES = (
    *("alp", "breakwater", "cliff", "coral reef", "dam", "geyser", "lakeside", "pier", "promontory", "sandbar"),
    *("seashore", "valley", "volcano"),
)
TEXTURES = (
    *("bubble", "chain mail", "chainlink fence", "crossword puzzle", "doormat", "honeycomb", "jigsaw puzzle", "maze"),
    *("prayer rug", "quilt", "shower curtain", "spider web", "stone wall", "thatch", "tile roof", "velvet"),
    *("window screen", "wool"),
)

Crops = dict[tuple[float, int], Tensor]  # by crop fraction and side: 8-bit pixels


@dataclass(frozen=True)
class Photographs:
    """Photographs with labels ``(N,)``, their crops ``(N, 3, side, side)`` in 8 bits, the share of the largest object
    ``(N,)``, and which of them are of a kind ``(N,)``, by its name.
    """

    crops: Crops
    labels: Tensor
    shares: Tensor
    kinds: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.labels)


def read_photographs(data: Path, crops: Iterable[float], *, limit: int | None = None) -> Photographs:
    """Read ``data``/val/CLASS/IMAGE with ``data``/class_index.json and ``data``/boxes.csv, every image once.

    Args:
        data: the folder.
        crops: the crop fractions of the classifiers; each is kept at both sides, 224 and 448 px.
        limit: read only so many images, spread over the classes.
    """
    listing = list_images(data / "val", limit=limit, what="--data")
    if not listing.known:
        raise DataError(f"{data} holds no class_index.json that lists the class folders of {data / 'val'}")
    table = load_box_table(data / "boxes.csv")
    wanted = [(crop, side) for crop in sorted(set(crops)) for side in (SIDE, SOURCE)]
    cut = {(crop, side): central_crop(crop, side) for crop, side in wanted}

    def read(name: str) -> tuple[dict[tuple[float, int], Tensor], float, int]:
        path = data / "val" / name
        image = read_image(path)
        rows = table.rows.get(path.stem)
        if rows is None:
            raise DataError(f"boxes.csv has no row for {path.stem}; it needs a box for every image")
        return {key: crop(image) for key, crop in cut.items()}, largest_share(rows, image, SHOWN), len(rows)

    count = len(listing.names)
    pixels = {(crop, side): torch.empty(count, 3, side, side, dtype=torch.uint8) for crop, side in wanted}
    shares, things = torch.empty(count), torch.empty(count, dtype=torch.int64)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding and resizing release the global interpreter lock
        found = tqdm(_ahead(pool, read, listing.names), total=count, desc="reading", unit="image", leave=False)
        for number, (crops_of_image, share, boxes) in enumerate(found):
            shares[number], things[number] = share, boxes
            for key, crop in crops_of_image.items():
                pixels[key][number] = crop
    labels = torch.tensor([listing.labels[name.split("/")[0]] for name in listing.names])
    names = [listing.classes[label] for label in labels.tolist()]
    kinds = {"one thing": things == 1, "two things": things == 2, "three or more things": things > 2}
    for kind, classes in (("scenes", SCENES), ("textures", TEXTURES)):
        kinds[kind] = torch.tensor([name.replace("_", " ") in classes for name in names])
    return Photographs(pixels, labels, shares, kinds)


def central_crop(crop: float, side: int) -> v2.Transform:
    """Return the transform to the central crop: the shorter side becomes side / crop pixels, bicubic."""
    return v2.Compose(
        [
            v2.Resize(int(side / crop), interpolation=InterpolationMode.BICUBIC, antialias=True),
            v2.CenterCrop(side),
            v2.PILToTensor(),
        ]
    )


def largest_share(rows: Sequence[Row], image: Image.Image, crop: float) -> float:
    """Return the share of the central crop that the largest box in it fills; 0 if all boxes lie outside.

    >>> largest_share([Row(1, ("0", "0", "0.5", "1"))], Image.new("RGB", (200, 100)), 1.0)
    0.5
    """
    side = crop * min(image.size)
    left, top = ((length - side) / 2 for length in image.size)
    shares = [0.0]
    for row in rows:
        box = Box(*map(float, row.edges)).resized(*image.size)
        width = min(box.right, left + side) - max(box.left, left)
        height = min(box.bottom, top + side) - max(box.top, top)
        shares.append(max(width, 0) * max(height, 0) / side**2)
    return max(shares)


def _ahead(pool: ThreadPoolExecutor, read, names: Sequence[str]) -> Iterator:  # type: ignore[no-untyped-def]
    """Yield ``read(name)`` in order, a few images ahead of the consumer."""
    distance = 256
    for start in range(0, len(names), distance):
        yield from pool.map(read, names[start : start + distance])
