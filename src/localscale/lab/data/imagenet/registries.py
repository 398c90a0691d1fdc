"""The detectors, segmenters and inpainters by name. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from localscale.errors import ConfigError, near_misses
from localscale.lab.data.imagenet.detectors import EvidenceDetector, GivenDetector, GroundingDinoDetector
from localscale.lab.data.imagenet.inpainters import LamaInpainter, PatchMatchInpainter, TeleaInpainter
from localscale.lab.data.imagenet.onnx_sam import OnnxSamSegmenter
from localscale.lab.data.imagenet.segmenters import GivenSegmenter, GrabCutSegmenter, SamSegmenter
from localscale.lab.data.imagenet.stages import Detector, Inpainter, Segmenter

__all__ = ["DETECTORS", "INPAINTERS", "SEGMENTERS", "look_up"]

Built = TypeVar("Built")

DETECTORS: dict[str, type[Detector]] = {
    "grounding-dino": GroundingDinoDetector,
    "evidence": EvidenceDetector,
    "given": GivenDetector,
}
SEGMENTERS: dict[str, type[Segmenter]] = {
    "sam": SamSegmenter,
    "onnx-sam": OnnxSamSegmenter,
    "grabcut": GrabCutSegmenter,
    "given": GivenSegmenter,
}
INPAINTERS: dict[str, type[Inpainter]] = {
    "lama": LamaInpainter,
    "patchmatch": PatchMatchInpainter,
    "telea": TeleaInpainter,
}


def look_up(registry: Mapping[str, Built], name: str, what: str) -> Built:
    """Return the entry called ``name``; if there is none, the error lists the names that come close.

    >>> look_up(SEGMENTERS, "grab-cut", "segmenter")
    Traceback (most recent call last):
        ...
    localscale.errors.ConfigError: no segmenter "grab-cut": did you mean grabcut?
    """
    if name not in registry:
        raise ConfigError(f'no {what} "{name}": {near_misses(name, registry)}')
    return registry[name]
