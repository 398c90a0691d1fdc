"""Written datasets of labelled images, as torchvision's users expect them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset

from localscale.errors import DataError
from localscale.lab.data.images import read_image
from localscale.lab.data.stored import Stored

__all__ = ["LabelledImages"]


class LabelledImages(Dataset[tuple[Any, Any]]):
    """The images of a dataset written by ``localscale data``, as ``(image, label)``.

    ``groups`` holds the positions of the images of each scene; ``stored.records[p]`` tells what image ``p`` shows.

    >>> dataset = LabelledImages("out/mnist")  # doctest: +SKIP
    >>> image, label = dataset[0]  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path,
        transform: Callable[[Image.Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        kind: str | None = None,
    ) -> None:
        self.stored = Stored(root, kind)
        self.transform, self.target_transform = transform, target_transform
        self.groups: dict[int, list[int]] = self.stored.groups()

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, position: int) -> tuple[Any, Any]:
        image, label = self.read_image(position), self.stored.records[position].get("label")
        if label is None:
            raise DataError(f'{self.stored.root} holds no labels; a dataset of kind "{self.stored.kind}" has none')
        return (
            image if self.transform is None else self.transform(image),
            label if self.target_transform is None else self.target_transform(label),
        )

    def read_image(self, position: int) -> Image.Image:
        """The image as it lies on disk, in RGB."""
        suffixes = self.stored.records[position]["suffixes"]
        forms = [suffix for suffix in ("png", "jpg") if suffix in suffixes]
        if not forms:
            raise DataError(f"sample {self.stored.records[position]['key']} has no image; make the dataset again")
        return read_image(self.stored.read(position, forms[0]))
