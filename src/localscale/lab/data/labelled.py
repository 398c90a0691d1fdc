"""Read written datasets of labelled images in torchvision's style."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset

from localscale.errors import DataError
from localscale.lab.data.images import read_image
from localscale.lab.data.written import WrittenDataset

__all__ = ["LabelledImages"]


class LabelledImages(Dataset[tuple[Any, Any]]):
    """The images of a dataset written by ``localscale data``, as ``(image, label)``.

    ``groups`` holds the positions of images that differ in scale only; ``written.records[p]`` describes image ``p``.

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
        self.written = WrittenDataset(root, kind)
        self.transform, self.target_transform = transform, target_transform
        self.groups: dict[int, list[int]] = self.written.groups()

    def __len__(self) -> int:
        return len(self.written)

    def __getitem__(self, position: int) -> tuple[Any, Any]:
        image, label = self.read_image(position), self.written.records[position].get("label")
        if label is None:
            raise DataError(f'{self.written.root} contains no labels; a dataset of kind "{self.written.kind}" has none')
        return (
            image if self.transform is None else self.transform(image),
            label if self.target_transform is None else self.target_transform(label),
        )

    def read_image(self, position: int) -> Image.Image:
        """Return the image in RGB, without ``transform``."""
        suffixes = self.written.records[position]["suffixes"]
        forms = [suffix for suffix in ("png", "jpg") if suffix in suffixes]
        if not forms:
            raise DataError(f"sample {self.written.records[position]['key']} has no image; write the dataset again")
        return read_image(self.written.read(position, forms[0]))
