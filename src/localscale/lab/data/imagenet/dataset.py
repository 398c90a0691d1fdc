"""Read locally scaled ImageNet, image by image or grouped by source image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from localscale.errors import DataError
from localscale.lab.data.imagenet.job import KIND
from localscale.lab.data.images import read_labels
from localscale.lab.data.labelled import LabelledImages

__all__ = ["Group", "LocallyScaledImageNet"]


@dataclass(frozen=True)
class Group:
    """One source image at all its scales: ``images`` ``(S, C, H, W)``, ``scales`` ``(S,)`` and their common label."""

    images: Tensor
    scales: tuple[float, ...]
    label: Any
    source: str


class LocallyScaledImageNet(LabelledImages):
    """Images whose labelled object was made larger or smaller, as ``(image, label)``.

    ``scales`` lists the factors and ``classes`` the class names. ``groups`` maps a source image's number to the
    positions of its images, smallest scale first; image ``p`` shows its object at ``scale_of(p)``.

    >>> dataset = LocallyScaledImageNet("out/imagenet")  # doctest: +SKIP
    >>> image, label = dataset[0]  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path,
        transform: Callable[[Image.Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
    ) -> None:
        super().__init__(root, transform, target_transform, kind=KIND)
        self.scales: tuple[float, ...] = tuple(self.written.settings["scales"])
        self.classes: tuple[str, ...] = tuple(self.written.settings["classes"])
        records = self.written.records
        for positions in self.groups.values():
            positions.sort(key=lambda position: records[position]["scale"])

    def read_mask(self, position: int) -> np.ndarray:
        """Return the object's mask, ``(H, W)`` booleans."""
        return read_labels(self.written.read(position, "mask.png")) > 0

    def scale_of(self, position: int) -> float:
        """Return the factor of the object's size in image ``position``."""
        return float(self.written.records[position]["scale"])

    def read_group(self, group: int) -> Group:
        """Return one source image at all its scales; a transform must return tensors of one size."""
        if group not in self.groups:
            raise DataError(
                f"no group {group} in {self.written.root}; .groups lists the {len(self.groups)} groups there are"
            )
        positions = self.groups[group]
        pairs = [self[position] for position in positions]
        images = [image if isinstance(image, Tensor) else T.pil_to_tensor(image) for image, _ in pairs]
        record = self.written.records[positions[0]]
        return Group(torch.stack(images), tuple(map(self.scale_of, positions)), pairs[0][1], record["source"])
