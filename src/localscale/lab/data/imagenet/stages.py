"""The three stages with a choice, their interfaces, and who can take them.

A new detector, segmenter or inpainter is a class that is built from ``ImageNetOptions``, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import numpy as np

from localscale.errors import ConfigError, near_misses
from localscale.lab.data.boxes import Box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.detectors import EvidenceDetector, GivenDetector, GroundingDinoDetector
from localscale.lab.data.imagenet.inpainters import LamaInpainter, PatchMatchInpainter, TeleaInpainter
from localscale.lab.data.imagenet.onnx_sam import OnnxSamSegmenter
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.pictures import Picture
from localscale.lab.data.imagenet.segmenters import GivenSegmenter, GrabCutSegmenter, SamSegmenter

__all__ = ["DETECTORS", "INPAINTERS", "SEGMENTERS", "Detector", "Inpainter", "Segmenter", "look_up"]

Built = TypeVar("Built")


class Detector(Protocol):
    """Finds the labelled object: a box with a score, or why there is none."""

    def __call__(self, picture: Picture) -> Box | Skip: ...


class Segmenter(Protocol):
    """Cuts out what a box holds: a mask ``(H, W)`` of booleans, or why there is none."""

    def __call__(self, picture: Picture, box: Box) -> np.ndarray | Skip: ...


class Inpainter(Protocol):
    """Fills a hole ``(H, W)`` in pixels ``(H, W, 3)``; outside the hole nothing changes."""

    def __call__(self, pixels: np.ndarray, hole: np.ndarray) -> np.ndarray: ...


DETECTORS: dict[str, Callable[[ImageNetOptions], Detector]] = {
    "grounding-dino": GroundingDinoDetector,
    "evidence": EvidenceDetector,
    "given": GivenDetector,
}
SEGMENTERS: dict[str, Callable[[ImageNetOptions], Segmenter]] = {
    "sam": SamSegmenter,
    "onnx-sam": OnnxSamSegmenter,
    "grabcut": GrabCutSegmenter,
    "given": GivenSegmenter,
}
INPAINTERS: dict[str, Callable[[ImageNetOptions], Inpainter]] = {
    "lama": LamaInpainter,
    "patchmatch": PatchMatchInpainter,
    "telea": TeleaInpainter,
}


def look_up(registry: Mapping[str, Built], name: str, what: str) -> Built:
    """The entry called ``name``.

    >>> look_up(SEGMENTERS, "grab-cut", "segmenter")
    Traceback (most recent call last):
        ...
    localscale.errors.ConfigError: no segmenter "grab-cut": did you mean grabcut?
    """
    if name not in registry:
        raise ConfigError(f'no {what} "{name}": {near_misses(name, registry)}')
    return registry[name]
