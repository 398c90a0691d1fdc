"""One photograph through the stages that make locally scaled ImageNet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.compositing import Cutout, composite, cut_out
from localscale.lab.data.imagenet.job import Detected, DetectStage, InpaintStage, Read, SegmentStage
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.registries import DETECTORS, INPAINTERS, SEGMENTERS, look_up
from localscale.lab.data.imagenet.stages import Photograph
from localscale.lab.data.images import read_image

__all__ = ["Scaled", "scale_object"]


@dataclass(frozen=True, eq=False)
class Scaled:
    """The outputs of all stages for one photograph; images are ``(H, W, 3)`` 8-bit, masks ``(H, W)`` booleans."""

    photograph: np.ndarray
    box: Box
    mask: np.ndarray
    cutout: Cutout
    background: np.ndarray
    image: np.ndarray


def scale_object(
    image: Path, options: ImageNetOptions, *, scale: float, box: Box | None = None, class_name: str = "object"
) -> Scaled:
    """Find the object in an image file, cut it out, fill the hole, and paste the object back at ``scale``.

    Args:
        image: an image file.
        options: the stages to use and their settings; ``images`` and ``limit`` have no effect.
        scale: factor of the object's size.
        box: the object's box as fractions of the image; ``None`` asks the detector.
        class_name: the words by which the detector looks for the object.
    """
    options.check()
    picture = read_image(image)
    photograph = Photograph(image.name, np.array(picture), picture.size, class_name)
    item: Any = Read(0, 0, photograph, None)
    stages: list[Callable[[Any], Any]] = [
        SegmentStage(partial(look_up(SEGMENTERS, options.segmenter, "segmenter"), options), options),
        InpaintStage(partial(look_up(INPAINTERS, options.inpainter, "inpainter"), options), options.margin),
    ]
    if box is None:
        stages.insert(0, DetectStage(partial(look_up(DETECTORS, options.detector, "detector"), options)))
    else:
        left, right, top, bottom = (
            end * side
            for side, ends in zip(picture.size, ((box.left, box.right), (box.top, box.bottom)), strict=True)
            for end in ends
        )
        item = Detected(**vars(item), box=Box(left, top, right, bottom))
    for stage in stages:
        item = stage(item)
        if isinstance(item, Skip):
            raise DataError(f"{image}: {item.reason}; name the object's box with --box, or choose other stages")
    cutout = cut_out(photograph.pixels, item.mask, feather=options.feather)
    scaled, _ = composite(item.background, cutout, scale)
    return Scaled(photograph.pixels, item.box, item.mask, cutout, item.background, scaled)
