"""Test images of finished runs, each at several local scales."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from localscale.errors import ConfigError, DataError
from localscale.lab.data.imagenet import LocallyScaledImageNet
from localscale.lab.data.images import read_image
from localscale.lab.data.objects import LocallyScaledObjects
from localscale.lab.runs.finished import FinishedRun
from localscale.lab.tasks.folder import FolderData, central_crop
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.tasks.objects import IGNORED, ObjectsData, check_masks

__all__ = ["ImageGroup", "ImageGroups", "open_groups"]

SIZES = 5  # images of one group, including the unscaled image


@dataclass(frozen=True)
class ImageGroup:
    """One test image at several scales.

    ``images`` are ``(S, 1 or 3, H, W)`` in [0,1], with one caption each. ``reference`` is the index of the unscaled
    image, with which the answers on the others are compared. Classification has a ``label``, segmentation has
    ``masks`` ``(S, H, W)`` of class numbers. ``scales`` are the object's, if images show one object.
    """

    name: str
    images: Tensor
    captions: list[str]
    reference: int = 0
    label: int | None = None
    scales: tuple[float, ...] = ()
    masks: Tensor | None = None


class ImageGroups(ABC):
    """The test images of a run; each is read when it is needed."""

    count: int
    classes: int
    note = ""  # a sentence for readers if these are not the images that the run was measured on

    @abstractmethod
    def read(self, number: int) -> ImageGroup:
        """Return group ``number``, 0 … count − 1."""

    def name_of(self, label: int) -> str:
        """Return the name of a class."""
        return str(label)


def open_groups(run: FinishedRun, *, sizes: int | None = SIZES) -> ImageGroups:
    """Open the test images of ``run``; raise ``DataError`` or ``ConfigError`` if they are missing.

    Args:
        run: a finished run.
        sizes: the largest number of images in one group; ``None`` means all of them.
    """
    data: Any = run.recipe.data
    field = data.test_field
    if run.task not in KINDS:
        raise ConfigError(
            f"the task {run.task} has no images at several scales to show; reports and figures know {', '.join(KINDS)}"
        )
    if getattr(data, field) is None and run.task not in ("mnist", "folder", "masks"):
        raise ConfigError(f"the recipe names no data.{field}; add --data FOLDER")
    found = KINDS[run.task](run, sizes)
    if found.classes != run.classes:
        raise DataError(
            f"these images have {found.classes} classes and the run {run.classes}; name other images with --data"
        )
    if found.count < 1:
        raise DataError(f"{getattr(data, field)} has no image at two scales; name other images with --data")
    return found


class _Numbers(ImageGroups):
    def __init__(self, run: FinishedRun, sizes: int | None) -> None:
        assert isinstance(run.recipe.data, MNISTData)
        task = run.make_task()
        self.count, self.classes = run.recipe.data.test_count, task.classes
        self.variants = range(1 + run.recipe.data.variants)[:sizes]
        self.draw = task.test.renderer("cpu")
        measured = run.result.get("data", "unknown data")
        if repr(task.test) not in measured:
            self.note = f"The images shown are of {task.test!r}; the run was measured on {measured}."

    def read(self, number: int) -> ImageGroup:
        index = torch.tensor([number])
        triples = [self.draw.triples(index, variant) for variant in self.variants]
        label = int(triples[0].labels)
        return ImageGroup(
            f"test image {number}: {label:03d}",
            torch.cat([self.draw(index, variant)[0] for variant in self.variants]),
            [" ".join(f"×{factor:.1f}" for factor in triple.factors[0].tolist()) for triple in triples],
            label=label,
        )

    def name_of(self, label: int) -> str:
        return f"{label:03d}"


class _Photographs(ImageGroups):
    def __init__(self, run: FinishedRun, sizes: int | None) -> None:
        data = run.recipe.loaded_data
        assert isinstance(data, ImageNetData)
        assert data.test_root is not None
        self.sizes, self.dataset = (
            sizes,
            LocallyScaledImageNet(data.test_root, transform=central_crop(data.image_size, data.crop)),
        )
        self.groups = [group for group, positions in self.dataset.groups.items() if len(positions) > 1]
        self.count, self.classes = len(self.groups), len(self.dataset.classes)

    def read(self, number: int) -> ImageGroup:
        group = self.dataset.read_group(self.groups[number])
        last = len(group.scales) - 1
        original = min(range(last + 1), key=lambda k: abs(group.scales[k] - 1))
        steps = max(1, (self.sizes or last + 1) - 1)
        kept = sorted({original, *(round(last * k / steps) for k in range(steps + 1))})  # even steps and the original
        return ImageGroup(
            f"test image {number}: {self.name_of(int(group.label))}",
            group.images[kept].float() / 255,
            [f"×{group.scales[k]:g}" for k in kept],
            reference=kept.index(original),
            label=int(group.label),
            scales=tuple(group.scales[k] for k in kept),
        )

    def name_of(self, label: int) -> str:
        return self.dataset.classes[label]


class _Folder(ImageGroups):
    """Validation images of a user's folder, each with the random scalings that InvE is measured with."""

    def __init__(self, run: FinishedRun, sizes: int | None) -> None:
        assert isinstance(run.recipe.data, FolderData)
        self.task = run.make_task()
        self.count, self.classes = len(self.task.val), self.task.classes
        self.variants = range(run.recipe.data.variants)[: None if sizes is None else sizes - 1]
        # Neighbours in a folder are of one class, so the images are shown in a fixed random order.
        self.order = torch.randperm(self.count, generator=torch.Generator().manual_seed(0)).tolist()

    def read(self, number: int) -> ImageGroup:
        place = self.order[number]
        path, label = self.task.val.items[place]
        image = self.task.central(read_image(path))[None].float() / 255
        scaled = [self.task.scaled(image, torch.tensor([place]), variant) for variant in self.variants]
        return ImageGroup(
            f"{self.name_of(label)}/{path.name}",
            torch.cat((image, *scaled)),
            ["as it is", *(f"scaling {variant + 1}" for variant in self.variants)],
            label=label,
        )

    def name_of(self, label: int) -> str:
        return self.task.class_names[label]


class _MaskFolder(ImageGroups):
    """Validation images of a user's folder with masks, each with the random scalings that EquE is measured with."""

    def __init__(self, run: FinishedRun, sizes: int | None) -> None:
        self.task = run.make_task()
        self.count, self.classes = len(self.task.val), self.task.classes
        self.variants = range((SIZES if sizes is None else sizes) - 1)

    def read(self, number: int) -> ImageGroup:
        image, labels = (tensor[None] for tensor in self.task.whole(number))
        image = image.float() / 255
        both = [(image, labels), *(self.task.scaled(image, labels, number, variant) for variant in self.variants)]
        images, masks = (torch.cat(part) for part in zip(*both, strict=True))
        captions = ["as it is", *(f"scaling {variant + 1}" for variant in self.variants)]
        return ImageGroup(self.task.val.pairs[number][0].name, images, captions, masks=masks)

    def name_of(self, label: int) -> str:
        return self.task.class_names[label]


class _Scenes(ImageGroups):
    def __init__(self, run: FinishedRun, sizes: int | None) -> None:
        data = run.recipe.loaded_data
        assert isinstance(data, ObjectsData)
        assert data.test_root is not None
        self.sizes, self.data, self.dataset = sizes, data, LocallyScaledObjects(data.test_root)
        self.groups = list(self.dataset.groups.values())
        self.count, self.classes = len(self.groups), len(self.dataset.classes)

    def read(self, number: int) -> ImageGroup:
        images, masks, captions = [], [], []
        for position in self.groups[number][: self.sizes]:
            item = self.dataset[position]
            pixels, classes = T.pil_to_tensor(item.image.convert("RGB")), item.classes.as_subclass(Tensor).clone()
            key = self.dataset.written.records[position]["key"]
            check_masks(pixels, classes, self.classes, self.data, f"sample {key} in {self.dataset.root}")
            if self.data.ignore_index is not None:
                classes[classes == self.data.ignore_index] = IGNORED
            images.append(pixels.float() / 255)
            masks.append(classes)
            captions.append(" ".join(f"×{scale:.2f}" for scale in item.scales.tolist()))
        return ImageGroup(f"scene {number}", torch.stack(images), captions, masks=torch.stack(masks))


KINDS: dict[str, type[Any]] = {
    "mnist": _Numbers,
    "imagenet": _Photographs,
    "objects": _Scenes,
    "folder": _Folder,
    "masks": _MaskFolder,
}
