"""Locally scaled ImageNet as a job: read → detect → segment → inpaint → composite.

One item is one source image, and gives one sample per scale, or a reason why it gives none.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from localscale.errors import DataError
from localscale.lab.data.boxes import Box, bounding_box
from localscale.lab.data.generation.job import Job, Sample, Skip, Stage
from localscale.lab.data.imagenet.compositing import check_mask, composite, cut_out, hole_around, soften_rim
from localscale.lab.data.imagenet.listing import Listing, list_images
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.pictures import Picture
from localscale.lab.data.imagenet.settings import describe
from localscale.lab.data.imagenet.stages import DETECTORS, INPAINTERS, SEGMENTERS, look_up
from localscale.lab.data.imagenet.weights import with_absolute_paths
from localscale.lab.data.images import encode_image, encode_mask, read_image

__all__ = ["KIND", "Detected", "Filled", "Read", "Segmented", "imagenet_job"]

KIND = "imagenet"
SMALLEST = 32  # pixels of the shorter side: below, an edge of a few pixels is most of the object
CHUNK = 8  # source images: seconds of work


@dataclass(frozen=True)
class Read:
    """A source image; ``original`` are its own bytes if they are a plain JPEG of exactly these pixels."""

    index: int
    label: int
    picture: Picture
    original: bytes | None


@dataclass(frozen=True)
class Detected:
    """And the box of its object."""

    read: Read
    box: Box


@dataclass(frozen=True)
class Segmented:
    """And the object's mask."""

    read: Read
    box: Box
    mask: np.ndarray


@dataclass(frozen=True)
class Filled:
    """And the image without the object."""

    read: Read
    box: Box
    mask: np.ndarray
    background: np.ndarray


def imagenet_job(options: ImageNetOptions) -> Job:
    """Everything that makes the dataset; whatever can be wrong with the options is said now."""
    options.check()
    options = with_absolute_paths(options)
    detector = look_up(DETECTORS, options.detector, "detector")
    segmenter = look_up(SEGMENTERS, options.segmenter, "segmenter")
    inpainter = look_up(INPAINTERS, options.inpainter, "inpainter")
    listing = list_images(options.images, class_index=options.class_index, limit=options.limit, seed=options.seed)
    agreement = 0.0 if options.segmenter == "given" else options.agreement
    stages = (
        Stage("read", partial(Reader, options.images, listing, options.size)),
        Stage("detect", partial(Detecting, partial(detector, options)), gpu=True),
        Stage("segment", partial(Segmenting, partial(segmenter, options), options.scales, agreement), gpu=True),
        Stage("inpaint", partial(Inpainting, partial(inpainter, options), options.margin), gpu=True),
        Stage("composite", partial(Compositor, options)),
    )
    return Job(KIND, len(listing.names), describe(options, listing), stages, CHUNK)


class Reader:
    """The first stage: an index → a picture."""

    def __init__(self, folder: Path, listing: Listing, size: int | None) -> None:
        self.folder, self.listing, self.size = folder, listing, size

    def __call__(self, index: int) -> Read | Skip:
        name = self.listing.names[index]
        folder = name.partition("/")[0]
        label = self.listing.labels[folder]
        record = {"source": name, "label": label}
        try:
            data = (self.folder / name).read_bytes()
            image = read_image(data)
        except OSError as error:
            return Skip("the image cannot be read", {**record, "detail": error.strerror or type(error).__name__})
        except DataError as error:
            return Skip("the image cannot be read", {**record, "detail": str(error)})
        if min(image.size) < SMALLEST:
            return Skip(f"the image is smaller than {SMALLEST} pixels", {**record, "size": list(image.size)})
        shown = _resize(image, self.size)
        picture = Picture(
            name=name,
            pixels=np.array(shown),
            source_size=image.size,
            class_name=self.listing.classes[label],
            class_index=label if self.listing.known else None,
        )
        return Read(index, label, picture, data if shown is image and _is_plain_jpeg(data) else None)


class Detecting:
    """The second: a picture → its object's box."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self.detector = build()

    def __call__(self, read: Read) -> Detected | Skip:
        box = self.detector(read.picture)
        return _skip(box, read) if isinstance(box, Skip) else Detected(read, box)


class Segmenting:
    """The third: a box → the object's mask, if it can be scaled."""

    def __init__(self, build: Callable[[], Any], scales: tuple[float, ...], agreement: float) -> None:
        self.segmenter, self.scales, self.agreement = build(), scales, agreement

    def __call__(self, found: Detected) -> Segmented | Skip:
        mask = self.segmenter(found.read.picture, found.box)
        problem = mask if isinstance(mask, Skip) else check_mask(mask, self.scales) or self._compare(mask, found.box)
        return Segmented(found.read, found.box, mask) if problem is None else _skip(problem, found.read, found.box)

    def _compare(self, mask: np.ndarray, box: Box) -> Skip | None:
        """A mask of a part of the box, or of much else, is seldom the object."""
        overlap = bounding_box(mask).overlap(box)
        if overlap < self.agreement:
            return Skip("the mask does not agree with the box", {"overlap": round(overlap, 4)})
        return None


class Inpainting:
    """The fourth: a mask → the image without the object."""

    def __init__(self, build: Callable[[], Any], margin: float) -> None:
        self.inpainter, self.margin = build(), margin

    def __call__(self, cut: Segmented) -> Filled | Skip:
        pixels, hole = cut.read.picture.pixels, hole_around(cut.mask, self.margin)
        if hole.all():
            return _skip(Skip("no background is left to fill from"), cut.read, cut.box)
        background = soften_rim(pixels, self.inpainter(pixels, hole), hole, cut.mask)
        return Filled(cut.read, cut.box, cut.mask, background)


class Compositor:
    """The last: an image for every scale, the original among them as it is."""

    def __init__(self, options: ImageNetOptions) -> None:
        self.options = options

    def __call__(self, filled: Filled) -> list[Sample]:
        cutout = cut_out(filled.read.picture.pixels, filled.mask, feather=self.options.feather)
        samples = []
        for scale in self.options.scales:
            if scale == 1:
                form, data = self._original(filled.read)
                mask = filled.mask
            else:
                image, mask = composite(filled.background, cutout, scale)
                form, data = self.options.image_format, encode_image(image, self.options.image_format)
            files = {form: data, "mask.png": encode_mask(mask.astype(np.uint8) * 255)}
            record = {**self._record(filled), "scale": scale, "object_area": round(float(mask.mean()), 6)}
            samples.append(Sample(f"{filled.read.index:07d}-{round(1000 * scale):04d}", files, record))
        return samples

    def _original(self, read: Read) -> tuple[str, bytes]:
        if self.options.image_format == "jpg" and read.original is not None:
            return "jpg", read.original
        return "png", encode_image(read.picture.pixels)

    def _record(self, filled: Filled) -> dict[str, Any]:
        picture = filled.read.picture
        return {
            "group": filled.read.index,
            "source": picture.name,
            "class_folder": picture.name.partition("/")[0],
            "label": filled.read.label,
            "class_name": picture.class_name,
            "box": [round(float(edge), 2) for edge in filled.box.edges],
            "box_score": round(filled.box.score, 4),
            "mask_area": round(float(filled.mask.mean()), 6),
            "detector": self.options.detector,
            "segmenter": self.options.segmenter,
            "inpainter": self.options.inpainter,
        }


def _skip(problem: Skip, read: Read, box: Box | None = None) -> Skip:
    """The same reason, with which image it was."""
    record: dict[str, Any] = {"source": read.picture.name, "label": read.label}
    if box is not None:
        record["box"] = [round(float(edge), 2) for edge in box.edges]
    return Skip(problem.reason, {**record, **problem.record})


def _resize(image: Image.Image, size: int | None) -> Image.Image:
    """With a shorter side of ``size`` pixels; the very same image where there is nothing to do."""
    if size is None or min(image.size) == size:
        return image
    factor = size / min(image.size)
    wanted = max(size, round(image.width * factor)), max(size, round(image.height * factor))
    return image.resize(wanted, Image.Resampling.LANCZOS)


def _is_plain_jpeg(data: bytes) -> bool:
    """Whether any reader sees in these bytes what ``read_image`` saw: an upright 8-bit RGB JPEG."""
    with Image.open(io.BytesIO(data)) as image:
        try:
            turned = image.getexif().get(0x0112, 1) != 1
        except (ValueError, SyntaxError, OSError, TypeError, KeyError, AttributeError):
            turned = True  # broken EXIF: others may read it otherwise
        return image.format == "JPEG" and image.mode == "RGB" and not turned
