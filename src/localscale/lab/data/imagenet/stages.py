"""The interfaces of the three stages that a user can choose: detector, segmenter and inpainter.

To add one, write a class that derives from an interface here and enter it in its registry in ``registries.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from localscale.lab.data.boxes import Box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.options import ImageNetOptions

__all__ = ["Detector", "Inpainter", "Photograph", "Segmenter"]


@dataclass(frozen=True)
class Photograph:
    """A labelled source image.

    ``name`` is its path below the images folder, with ``/``. ``pixels`` are ``(H, W, 3)`` 8-bit. ``source_size`` is the
    (width, height) of the upright original before it was resized. ``class_index`` is a classifier's label, or None if
    no class index says which one it is.
    """

    name: str
    pixels: np.ndarray
    source_size: tuple[int, int]
    class_name: str
    class_index: int | None = None

    @property
    def width(self) -> int:
        return self.pixels.shape[1]

    @property
    def height(self) -> int:
        return self.pixels.shape[0]


class ChosenStage:
    """A stage that the user chooses by name; every process builds its own from the options."""

    def __init__(self, options: ImageNetOptions) -> None:
        """Load the models and files that the stage needs."""

    @classmethod
    def settings(cls, options: ImageNetOptions) -> dict[str, Any]:
        """Return, as JSON, what the stage's results depend on; raise an error if a file it needs is missing."""
        return {}


class Detector(ChosenStage, ABC):
    """Find the labelled object of a photograph."""

    @abstractmethod
    def __call__(self, photograph: Photograph) -> Box | Skip:
        """Return the object's box in pixels with a score, or the reason why there is none."""


class Segmenter(ChosenStage, ABC):
    """Cut out the object in a box."""

    trusted: ClassVar[bool] = False
    """Whether its masks are used even if they disagree with the detector's box."""

    @abstractmethod
    def __call__(self, photograph: Photograph, box: Box) -> np.ndarray | Skip:
        """Return the object's mask, ``(H, W)`` booleans, or the reason why there is none."""


class Inpainter(ChosenStage, ABC):
    """Fill the hole that the object leaves."""

    @abstractmethod
    def __call__(self, pixels: np.ndarray, hole: np.ndarray) -> np.ndarray:
        """Return ``pixels`` ``(H, W, 3)`` with the ``hole`` ``(H, W)`` filled and every other pixel unchanged."""
