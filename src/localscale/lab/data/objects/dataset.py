"""Read locally scaled objects as a torch dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.datasets import VisionDataset

from localscale.errors import DataError
from localscale.lab.data.images import read_image, read_labels
from localscale.lab.data.objects.job import KIND
from localscale.lab.data.written import WrittenDataset

__all__ = ["LocallyScaledObjects", "ObjectsItem"]


class ObjectsItem(NamedTuple):
    """One image with its masks, the number of its group, and the scales of its objects.

    ``classes`` and ``instances`` are ``(H, W)`` int64 and 0 is background. ``scales`` ``(2,)`` are relative to the
    group's first image; a larger scale means that the object is nearer.
    """

    image: Any
    classes: Any
    instances: Any
    group: int
    scales: Tensor


class LocallyScaledObjects(VisionDataset):
    """Images of two scanned objects in front of a panorama, written by ``localscale data objects``.

    Transforms are torchvision's: ``transform`` takes the PIL image, ``target_transform`` the dictionary
    ``{"classes": …, "instances": …}`` of masks, and ``transforms`` both. The masks are ``tv_tensors.Mask``, so a crop
    or a flip moves image and masks together. ``classes`` lists the class names, background first. ``groups`` maps the
    number of a group, one scene at several distances, to the positions of its images.

    >>> dataset = LocallyScaledObjects("objects/train")  # doctest: +SKIP
    >>> image, classes, instances, group, scales = dataset[0]  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path,
        transform: Callable[[Image.Image], Any] | None = None,
        target_transform: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        transforms: Callable[[Image.Image, dict[str, Any]], tuple[Any, dict[str, Any]]] | None = None,
    ) -> None:
        super().__init__(str(root), transforms, transform, target_transform)
        self.written = WrittenDataset(root, KIND)
        self.classes: list[str] = ["background", *self.written.settings["classes"]]
        self.groups: dict[int, list[int]] = self.written.groups()

    def __len__(self) -> int:
        return len(self.written)

    def __getitem__(self, index: int) -> ObjectsItem:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for a dataset of {len(self)} images")
        index %= len(self)
        record = self.written.records[index]
        image: Any = read_image(self.written.read(index, self.written.settings["image_format"]))
        target: dict[str, Any] = {
            name: tv_tensors.Mask(_read_mask(self.written.read(index, suffix), record["key"]))
            for name, suffix in {"classes": "class.png", "instances": "instance.png"}.items()
        }
        if self.transforms is not None:
            image, target = self.transforms(image, target)
        scales = torch.tensor([each["scale"] for each in record["objects"]])
        return ObjectsItem(image, target["classes"], target["instances"], record["group"], scales)


def _read_mask(data: bytes, key: str) -> Tensor:
    try:
        return torch.from_numpy(read_labels(data))
    except DataError as error:
        raise DataError(f"a mask of sample {key} is broken ({error}); generate the dataset again") from error
