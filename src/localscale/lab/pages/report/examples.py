"""Test images with what local scaling makes of each: the sizes of a number, an object's scales, a scene's distances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from localscale.errors import ConfigError, DataError
from localscale.lab.data.imagenet import LocallyScaledImageNet
from localscale.lab.data.objects import LocallyScaledObjects
from localscale.lab.runs.finished import DATA_FLAGS, Finished
from localscale.lab.tasks.imagenet import ImageNetData, central_crop
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.tasks.objects import IGNORED, ObjectsData, check_masks
from localscale.lab.training.models import make_task

__all__ = ["Example", "Examples", "open_examples"]

SIZES = 5  # images of each example, the unscaled one among them


@dataclass(frozen=True)
class Example:
    """One test image at several scales.

    ``images`` are ``(S, 1 or 3, H, W)`` in [0,1], a line about each in ``captions``; answers are compared with the
    answer on image ``reference``. ``label`` is the image's class, or ``masks`` ``(S, H, W)`` are the pixels' classes.
    """

    name: str
    images: Tensor
    captions: list[str]
    reference: int = 0
    label: int | None = None
    masks: Tensor | None = None


class Examples(ABC):
    """Test images that are read when they are asked for."""

    count: int
    classes: int
    note = ""  # what a reader should know about them

    @abstractmethod
    def read(self, number: int) -> Example:
        """Example ``number``, 0 … count − 1."""

    def name_of(self, label: int) -> str:
        """What a class is called."""
        return str(label)


def open_examples(run: Finished) -> Examples:
    """The images that ``run`` was tested on; ``DataError`` or ``ConfigError`` where they are gone."""
    data: Any = run.recipe.data
    field = DATA_FLAGS[run.task]
    if getattr(data, field) is None and run.task != "mnist":
        raise ConfigError(f"the recipe names no data.{field}")
    found = KINDS[run.task](run)
    if found.classes != run.result["classes"]:
        raise DataError(f"these images have {found.classes} classes and the run {run.result['classes']}")
    if found.count < 1:
        raise DataError(f"{getattr(data, field)} has no image that could be shown")
    return found


class _Numbers(Examples):
    def __init__(self, run: Finished) -> None:
        assert isinstance(run.recipe.data, MNISTData)
        task = make_task(run.recipe)
        self.count, self.classes = run.recipe.data.test_count, task.classes
        self.sizes = 1 + min(run.recipe.data.variants, SIZES - 1)
        self.draw = task.test.renderer("cpu")
        if repr(task.test) not in run.result.get("data", ""):
            measured = run.result.get("data", "unknown data")
            self.note = f"The images shown are of {task.test!r}; the run was measured on {measured}."

    def read(self, number: int) -> Example:
        index = torch.tensor([number])
        scenes = [self.draw.scenes(index, variant) for variant in range(self.sizes)]
        label = int(scenes[0].labels)
        return Example(
            f"test image {number}: {label:03d}",
            torch.cat([self.draw(index, variant)[0] for variant in range(self.sizes)]),
            [" ".join(f"×{factor:.1f}" for factor in scene.factors[0].tolist()) for scene in scenes],
            label=label,
        )

    def name_of(self, label: int) -> str:
        return f"{label:03d}"


class _Photographs(Examples):
    def __init__(self, run: Finished) -> None:
        data = run.recipe.data
        assert isinstance(data, ImageNetData)
        assert data.test_root is not None
        self.dataset = LocallyScaledImageNet(data.test_root, transform=central_crop(data))
        self.groups = [group for group, positions in self.dataset.groups.items() if len(positions) > 1]
        self.count, self.classes = len(self.groups), len(self.dataset.classes)

    def read(self, number: int) -> Example:
        group = self.dataset.read_group(self.groups[number])
        last = len(group.scales) - 1
        original = min(range(last + 1), key=lambda k: abs(group.scales[k] - 1))
        # The ends, the original, and what lies between.
        kept = sorted({original, *(round(last * k / (SIZES - 1)) for k in range(SIZES))})
        return Example(
            f"test image {number}: {self.name_of(int(group.label))}",
            group.images[kept].float() / 255,
            [f"×{group.scales[k]:g}" for k in kept],
            reference=kept.index(original),
            label=int(group.label),
        )

    def name_of(self, label: int) -> str:
        return self.dataset.classes[label]


class _Scenes(Examples):
    def __init__(self, run: Finished) -> None:
        data = run.recipe.data
        assert isinstance(data, ObjectsData)
        assert data.test_root is not None
        self.data, self.dataset = data, LocallyScaledObjects(data.test_root)
        self.groups = list(self.dataset.groups.values())
        self.count, self.classes = len(self.groups), len(self.dataset.classes)

    def read(self, number: int) -> Example:
        images, masks, captions = [], [], []
        for position in self.groups[number][:SIZES]:
            item = self.dataset[position]
            pixels, classes = T.pil_to_tensor(item.image.convert("RGB")), item.classes.as_subclass(Tensor).clone()
            key = self.dataset.stored.records[position]["key"]
            check_masks(pixels, classes, self.classes, self.data, f"sample {key} in {self.dataset.root}")
            if self.data.ignore_index is not None:
                classes[classes == self.data.ignore_index] = IGNORED
            images.append(pixels.float() / 255)
            masks.append(classes)
            captions.append(" ".join(f"×{scale:.2f}" for scale in item.scales.tolist()))
        return Example(f"scene {number}", torch.stack(images), captions, masks=torch.stack(masks))


KINDS: dict[str, type[Any]] = {"mnist": _Numbers, "imagenet": _Photographs, "objects": _Scenes}
