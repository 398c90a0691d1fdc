"""Reading locally scaled ImageNet back, grouped by source image."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from localscale.data.imagenet.job import KIND
from localscale.data.images import read_image
from localscale.data.stored import Stored
from localscale.errors import DataError

__all__ = ["Group", "LocallyScaledImageNet"]


@dataclass(frozen=True)
class Group:
    """One source image at all its scales: ``images`` ``(S, C, H, W)``, ``scales`` ``(S,)`` and their common label."""

    images: Tensor
    scales: tuple[float, ...]
    label: Any
    source: str


class LocallyScaledImageNet(Dataset[tuple[Any, Any]]):
    """Images whose labelled object was made larger or smaller, as ``(image, label)``.

    ``scales``, ``classes`` and ``groups`` (a source image's number → its positions, smallest scale first) say what is
    what: position ``p`` shows its object at ``scale_of(p)``.

    >>> dataset = LocallyScaledImageNet("out/imagenet")  # doctest: +SKIP
    >>> image, label = dataset[0]  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path,
        transform: Callable[[Image.Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
    ) -> None:
        self.stored = Stored(root, KIND)
        self.transform, self.target_transform = transform, target_transform
        self.scales: tuple[float, ...] = tuple(self.stored.settings["scales"])
        self.classes: tuple[str, ...] = tuple(self.stored.settings["classes"])
        records = self.stored.records
        self.groups: dict[int, list[int]] = {
            group: sorted(positions, key=lambda position: records[position]["scale"])
            for group, positions in self.stored.groups().items()
        }

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, position: int) -> tuple[Any, Any]:
        image, label = self.read_image(position), self.stored.records[position]["label"]
        return (
            image if self.transform is None else self.transform(image),
            label if self.target_transform is None else self.target_transform(label),
        )

    def read_image(self, position: int) -> Image.Image:
        """The image as it lies on disk."""
        forms = [suffix for suffix in ("png", "jpg") if suffix in self.stored.records[position]["suffixes"]]
        if not forms:
            raise DataError(f"sample {self.stored.records[position]['key']} has no image; make the dataset again")
        return read_image(self.stored.read(position, forms[0]))

    def read_mask(self, position: int) -> np.ndarray:
        """Where the object is, ``(H, W)`` of booleans."""
        with Image.open(io.BytesIO(self.stored.read(position, "mask.png"))) as mask:
            return np.asarray(mask) > 0

    def scale_of(self, position: int) -> float:
        """The factor of the object's size at a position."""
        return float(self.stored.records[position]["scale"])

    def read_group(self, group: int) -> Group:
        """One source image at all its scales; the transform must give tensors of one size, by default 8-bit ones."""
        if group not in self.groups:
            raise DataError(f"no group {group} in {self.stored.root}; there are {len(self.groups)}, see .groups")
        positions = self.groups[group]
        pairs = [self[position] for position in positions]
        images = [image if isinstance(image, Tensor) else _as_tensor(image) for image, _ in pairs]
        record = self.stored.records[positions[0]]
        return Group(torch.stack(images), tuple(map(self.scale_of, positions)), pairs[0][1], record["source"])


def _as_tensor(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
