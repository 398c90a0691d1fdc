"""The job that writes locally scaled ImageNet: read → detect → segment → inpaint → composite.

An item is one source image. It becomes one sample per scale, or a ``Skip`` with the reason.
"""

from __future__ import annotations

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
from localscale.lab.data.imagenet.compositing import composite, cut_out, soften_rim
from localscale.lab.data.imagenet.image_list import ImageList, list_images
from localscale.lab.data.imagenet.masks import Sides, attach_to_frame, check_area, check_inside, hole_around
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.registries import DETECTORS, INPAINTERS, SEGMENTERS, look_up
from localscale.lab.data.imagenet.stages import Photograph, Segmenter
from localscale.lab.data.images import encode_image, encode_mask, open_image, read_image

__all__ = ["KIND", "Detected", "Filled", "Read", "Segmented", "imagenet_job"]

KIND = "imagenet"
PIXEL_VERSION = 2  # increase it whenever the same settings give other pixels
SMALLEST = 32  # shorter side in pixels; in a smaller image the soft edge would cover most of the object
CHUNK = 8  # source images, which take some seconds


@dataclass(frozen=True)
class Read:
    """A source image; ``original`` holds the file's bytes if it is a plain JPEG with exactly these pixels."""

    index: int
    label: int
    photograph: Photograph
    original: bytes | None


@dataclass(frozen=True)
class Detected(Read):
    """A source image with the box of its object."""

    box: Box


@dataclass(frozen=True)
class Segmented(Detected):
    """A source image with the box and the mask of its object."""

    mask: np.ndarray


@dataclass(frozen=True)
class Filled(Segmented):
    """A source image with the box and the mask of its object, and the image without the object."""

    background: np.ndarray


def imagenet_job(options: ImageNetOptions) -> Job:
    """Return the job that writes the dataset described by ``options``; raise if an option or its file is wrong."""
    options.check()
    options = options.with_absolute_paths()
    detector = look_up(DETECTORS, options.detector, "detector")
    segmenter = look_up(SEGMENTERS, options.segmenter, "segmenter")
    inpainter = look_up(INPAINTERS, options.inpainter, "inpainter")
    images = list_images(options.images, class_index=options.class_index, limit=options.limit, seed=options.seed)
    settings = {
        "look": PIXEL_VERSION,
        "images": options.images.name,
        "listing": images.digest,
        "count": len(images.names),
        "seed": options.seed,
        "scales": list(options.scales),
        "frame": options.frame,
        "min_area": options.min_area,
        "max_area": options.max_area,
        "size": options.size,
        "image_format": options.image_format,
        "feather": options.feather,
        "margin": options.margin,
        "agreement": options.agreement,
        "device": options.device.partition(":")[0],
        "detector": {"name": options.detector, **detector.settings(options)},
        "segmenter": {"name": options.segmenter, **segmenter.settings(options)},
        "inpainter": {"name": options.inpainter, **inpainter.settings(options)},
        "classes": list(images.classes),
    }
    stages = (
        Stage("read", partial(ReadStage, options.images, images, options.size)),
        Stage("detect", partial(DetectStage, partial(detector, options)), gpu=True),
        Stage("segment", partial(SegmentStage, partial(segmenter, options), options), gpu=True),
        Stage("inpaint", partial(InpaintStage, partial(inpainter, options), options.margin), gpu=True),
        Stage("composite", partial(CompositeStage, options)),
    )
    return Job(KIND, len(images.names), settings, stages, CHUNK)


class ReadStage:
    """Read the source image with an index."""

    def __init__(self, folder: Path, images: ImageList, size: int | None) -> None:
        self.folder, self.images, self.size = folder, images, size

    def __call__(self, index: int) -> Read | Skip:
        name = self.images.names[index]
        label = self.images.labels[name.partition("/")[0]]
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
        photograph = Photograph(
            name=name,
            pixels=np.array(shown),
            source_size=image.size,
            class_name=self.images.classes[label],
            class_index=label if self.images.known else None,
        )
        return Read(index, label, photograph, data if shown is image and _is_plain_jpeg(data) else None)


class DetectStage:
    """Find the object's box."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self.detector = build()

    def __call__(self, read: Read) -> Detected | Skip:
        box = self.detector(read.photograph)
        return _skip(box, read) if isinstance(box, Skip) else Detected(**vars(read), box=box)


class SegmentStage:
    """Find the object's mask, and check that the object can be rescaled."""

    def __init__(self, build: Callable[[], Segmenter], options: ImageNetOptions) -> None:
        self.segmenter, self.options = build(), options

    def __call__(self, found: Detected) -> Segmented | Skip:
        mask = self.segmenter(found.photograph, found.box)
        if isinstance(mask, Skip):
            return _skip(mask, found)
        if self.options.frame == "clip":
            mask = attach_to_frame(mask)
        problem = self._check(mask, found.box)
        return Segmented(**vars(found), mask=mask) if problem is None else _skip(problem, found)

    def _check(self, mask: np.ndarray, box: Box) -> Skip | None:
        problem = check_area(mask, self.options.min_area, self.options.max_area)
        if problem is None and self.options.frame == "inside":
            problem = check_inside(mask, self.options.scales)
        return problem or (None if self.segmenter.trusted else self._compare(mask, box))

    def _compare(self, mask: np.ndarray, box: Box) -> Skip | None:
        """Return a skip if the mask covers only a part of the box, or much outside it: then one of the two is wrong."""
        overlap = bounding_box(mask).overlap(box)
        if overlap < self.options.agreement:
            return Skip("the mask does not agree with the box", {"overlap": round(overlap, 4)})
        return None


class InpaintStage:
    """Remove the object from the image."""

    def __init__(self, build: Callable[[], Any], margin: float) -> None:
        self.inpainter, self.margin = build(), margin

    def __call__(self, cut: Segmented) -> Filled | Skip:
        pixels, hole = cut.photograph.pixels, hole_around(cut.mask, self.margin)
        if hole.all():
            return _skip(Skip("no background is left to fill from"), cut)
        background = soften_rim(pixels, self.inpainter(pixels, hole), hole, cut.mask)
        return Filled(**vars(cut), background=background)


class CompositeStage:
    """Paste the object at every scale; scale 1 is the unchanged original."""

    def __init__(self, options: ImageNetOptions) -> None:
        self.options = options

    def __call__(self, filled: Filled) -> list[Sample]:
        cutout = cut_out(filled.photograph.pixels, filled.mask, feather=self.options.feather)
        samples = []
        for scale in self.options.scales:
            if scale == 1:
                form, data = self._original(filled)
                mask = filled.mask
            else:
                image, mask = composite(filled.background, cutout, scale)
                form, data = self.options.image_format, encode_image(image, self.options.image_format)
            files = {form: data, "mask.png": encode_mask(mask.astype(np.uint8) * 255)}
            record = {**self._record(filled), "scale": scale, "object_area": round(float(mask.mean()), 6)}
            samples.append(Sample(f"{filled.index:07d}-{round(1000 * scale):04d}", files, record))
        return samples

    def _original(self, read: Read) -> tuple[str, bytes]:
        if self.options.image_format == "jpg" and read.original is not None:
            return "jpg", read.original
        return "png", encode_image(read.photograph.pixels)

    def _record(self, filled: Filled) -> dict[str, Any]:
        photograph = filled.photograph
        return {
            "group": filled.index,
            "source": photograph.name,
            "class_folder": photograph.name.partition("/")[0],
            "label": filled.label,
            "class_name": photograph.class_name,
            "box": _rounded(filled.box),
            "box_score": round(filled.box.score, 4),
            "mask_area": round(float(filled.mask.mean()), 6),
            "touches": Sides.of(filled.mask).names,
            "detector": self.options.detector,
            "segmenter": self.options.segmenter,
            "inpainter": self.options.inpainter,
        }


def _skip(problem: Skip, read: Read) -> Skip:
    """Return the same skip with the image's name, its label and, if known, its box in the record."""
    record: dict[str, Any] = {"source": read.photograph.name, "label": read.label}
    if isinstance(read, Detected):
        record["box"] = _rounded(read.box)
    return Skip(problem.reason, {**record, **problem.record})


def _rounded(box: Box) -> list[float]:
    return [round(float(edge), 2) for edge in box.edges]


def _resize(image: Image.Image, size: int | None) -> Image.Image:
    """Resize so that the shorter side has ``size`` pixels; return the same object if nothing changes."""
    if size is None or min(image.size) == size:
        return image
    factor = size / min(image.size)
    wanted = max(size, round(image.width * factor)), max(size, round(image.height * factor))
    return image.resize(wanted, Image.Resampling.LANCZOS)


def _is_plain_jpeg(data: bytes) -> bool:
    """Return whether the bytes are an upright 8-bit RGB JPEG, which every decoder reads as ``read_image`` does."""
    with open_image(data) as image:
        try:
            turned = image.getexif().get(0x0112, 1) != 1
        except (ValueError, SyntaxError, OSError, TypeError, KeyError, AttributeError):
            turned = True  # the EXIF data are broken, and other decoders may interpret them differently
        return image.format == "JPEG" and image.mode == "RGB" and not turned
