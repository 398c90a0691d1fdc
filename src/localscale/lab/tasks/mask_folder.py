"""A folder of photographs with label masks as a task: segment images of any size."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2
from torchvision.tv_tensors import Mask

from localscale.adaptation.preprocessing import Preprocessing
from localscale.errors import ConfigError
from localscale.lab.data.mask_folders import (
    MaskFolder,
    check_mask_folder,
    hold_out_masks,
    list_mask_folder,
    read_pair,
)
from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.randomness import Draws
from localscale.lab.tasks.crops import random_crop, read_crops, read_in_order
from localscale.lab.tasks.mask_metrics import IGNORED, MaskMetrics
from localscale.lab.tasks.objects import pixel_cross_entropy
from localscale.lab.tasks.task import (
    Criterion,
    Indices,
    Predict,
    Shard,
    Task,
    TaskData,
    Transform,
    check_least,
)
from localscale.warp import unscale

__all__ = ["MaskFolderData", "MaskFolderTask", "whole_image"]

TRAIN, VAL = "--data.train-root", "--data.val-root"


@dataclass(frozen=True)
class MaskFolderData(TaskData):
    """Folders of photographs with label masks, train and validation: images/NAME.jpg and masks/NAME.png."""

    dense: ClassVar[bool] = True
    test_field: ClassVar[str] = "val_root"
    metrics: ClassVar[tuple[str, ...]] = ("mean_iou", "equivariance_error", "images", "variants")

    train_root: Path | None = None
    """Folder of training images, images/NAME.jpg, and masks of the same sizes and names, masks/NAME.png (required)."""
    val_root: Path | None = None
    """Folder of validation images and masks; by default a part of the training images."""
    val_fraction: float = 0.2
    """Part of the images that is held out for validation if there is no --data.val-root."""
    image_size: int = 224
    """Side in pixels of the squares that images are resized to; by default the backbone's own."""
    least_area: float = 0.35
    """Training images: the smallest part of the area that a random crop shows."""
    flip: bool = True
    """Training images: mirror half of them, left to right."""
    background_weight: float = 1.0
    """Weight of the pixels of class 0 in the loss; all others have weight 1."""
    ignore_index: int = 255
    """Value in a mask that neither the loss nor an IoU counts."""
    variants: int = 1
    """Random local scalings of each validation image, for EquE."""
    uniform_variants: int = 0
    """Scalings of each validation image with increments uniform on the simplex, for EquE over the paper's Ω."""
    scaling: RandomScaling = field(default_factory=RandomScaling)
    """Random local scaling of the validation images for EquE."""
    workers: int = 4
    """Processes that read images, at most one for each core."""
    data_seed: int = 0
    """Seed of the held-out images and of the scalings for EquE."""
    classes: tuple[str, ...] = ()
    """Names of the classes 0, 1, …; by default the largest value in the masks gives their number."""

    def check(self) -> None:
        """Raise ``ConfigError`` for values outside their range."""
        self.scaling.check()
        check_least(self, {"image_size": 8, "variants": 1, "uniform_variants": 0, "workers": 0})
        if not 0 < self.least_area <= 1:
            raise ConfigError(f"--data.least-area is {self.least_area}; expected more than 0 and at most 1")
        if not 0 < self.val_fraction < 1:
            raise ConfigError(f"--data.val-fraction is {self.val_fraction}; expected more than 0 and less than 1")
        if not 0 <= self.background_weight < float("inf"):
            raise ConfigError(f"--data.background-weight is {self.background_weight}; expected 0 or more")

    def preprocessing(self, declared: Preprocessing) -> Preprocessing:
        return dataclasses.replace(declared, interpolation="bicubic", crop=1.0, keep_ratio=False)

    def with_classes(self, names: Sequence[str]) -> MaskFolderData:
        return dataclasses.replace(self, classes=tuple(names))

    def task(self, normalise: Transform, batch_size: int) -> MaskFolderTask:
        """List and check the images and return the task."""
        return MaskFolderTask(self, normalise, batch_size)


class MaskFolderTask(Task):
    """Classify every pixel of photographs; validation shows whole images, resized to squares."""

    dense = True
    fresh_head = True
    from_files = True

    def __init__(self, data: MaskFolderData, normalise: Transform, batch_size: int) -> None:
        self.data, self.normalise, self.batch_size = data, normalise, batch_size
        self.classes = len(data.classes)
        self._train: MaskFolder | None = None
        if not data.classes or data.val_root is None:
            self._train, held_out = self._split()
        self.class_names = data.classes or tuple(f"class {number}" for number in range(self.classes))
        self.val = held_out if data.val_root is None else self._listed(data.val_root, VAL)

    def _listed(self, root: Path | None, flag: str) -> MaskFolder:
        listed = list_mask_folder(root, flag=flag)
        known = self.classes or None
        folder, self.classes = check_mask_folder(listed, flag=flag, ignored=self.data.ignore_index, classes=known)
        return folder

    def _split(self) -> tuple[MaskFolder, MaskFolder]:
        train = self._listed(self.data.train_root, TRAIN)
        if self.data.val_root is not None:
            return train, train
        return hold_out_masks(train, self.data.val_fraction, self.data.data_seed)

    @property
    def train(self) -> MaskFolder:
        """The training images; a finished run is evaluated without them."""
        if self._train is None:
            self._train = self._split()[0]
        return self._train

    @property
    def train_count(self) -> int:  # type: ignore[override]
        """Number of training images."""
        return len(self.train)

    def describe(self) -> str:
        data = self.data
        held_out = f", {100 * data.val_fraction:g} % of {data.train_root} held out" if data.val_root is None else ""
        return (
            f"{self.train_count:,} training images with masks of {self.classes} classes; {len(self.val):,} validation "
            f"images{held_out}; EquE with {data.scaling}"
        )

    def criterion(self, label_smoothing: float) -> Criterion:
        return functools.partial(
            pixel_cross_entropy, background_weight=self.data.background_weight, label_smoothing=label_smoothing
        )

    def load(self, batches: Iterable[Indices], seed: int) -> Iterator[tuple[Indices, Any]]:
        return read_crops(MaskCrops(self.train, self.data), batches, seed, workers=self.data.workers)

    def images(self, indices: Indices, loaded: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        images, labels = (tensor.to(device, non_blocking=True) for tensor in loaded)
        return images.float() / 255, labels.long()

    def evaluate(self, predict: Predict, device: torch.device, shard: Shard, *, progress: bool) -> dict[str, Any]:
        """Return mIoU, also of small objects, and EquE with its floor."""
        data = self.data
        metrics = MaskMetrics(
            self.classes,
            data.image_size**2,
            scaling=data.scaling,
            variants=data.variants,
            uniform_variants=data.uniform_variants,
            seed=data.data_seed,
            device=device,
        )
        mine = WholeImages(self, list(shard.of(len(self.val))))
        reader = read_in_order(mine, batch_size=self.batch_size, workers=data.workers, progress=progress)
        with torch.no_grad():
            for index, pixels, labels in reader:
                images = pixels.to(device).float() / 255
                metrics.update(images, labels.to(device), index, predict, self.normalise)
        return {"images": len(self.val), **metrics.compute()}

    def whole(self, number: int) -> tuple[Tensor, Tensor]:
        """Return validation image ``number`` in 8 bits, ``(3, S, S)``, and its labels ``(S, S)``."""
        image, labels = read_pair(*self.val.pairs[number])
        return as_tensors(whole_image(self.data.image_size)(image, Mask(labels)), self.data.ignore_index)

    def scaled(self, image: Tensor, labels: Tensor, number: int, variant: int) -> tuple[Tensor, Tensor]:
        """Return a batch of one image and its labels under random scaling ``variant``, as EquE is measured."""
        u = self.data.scaling.maps(Draws(self.data.data_seed, torch.tensor([number])), f"evaluation/{variant}")
        return unscale(image, u), unscale(labels, u, mode="nearest")


class MaskCrops(Dataset[tuple[Tensor, Tensor]]):
    """Training images and labels; the key of an item is (index, seed), and the seed decides the crop and the flip."""

    def __init__(self, images: MaskFolder, data: MaskFolderData) -> None:
        self.images, self.ignored = images, data.ignore_index
        self.transform = random_crop(data.image_size, data.least_area, flip=data.flip)

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, Tensor]:
        index, seed = place
        image, labels = read_pair(*self.images.pairs[index])
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return as_tensors(self.transform(image, Mask(labels)), self.ignored)


class WholeImages(Dataset[tuple[int, Tensor, Tensor]]):
    """Some of the validation images as (number, image, labels)."""

    def __init__(self, task: MaskFolderTask, numbers: Sequence[int]) -> None:
        self.task, self.numbers = task, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> tuple[int, Tensor, Tensor]:
        number = self.numbers[place]
        return number, *self.task.whole(number)


def as_tensors(both: tuple[Tensor, Tensor], ignored: int) -> tuple[Tensor, Tensor]:
    """Return an image in 8 bits and its labels, in which ``ignored`` is replaced by ``IGNORED``."""
    image, labels = both
    found = labels.as_subclass(Tensor).long()
    return image, torch.where(found == ignored, IGNORED, found)


def whole_image(image_size: int) -> Any:
    """Return the transform of an image, and of its ``Mask`` if given, to a square in 8 bits that shows all of it."""
    return v2.Compose(
        [v2.Resize((image_size, image_size), interpolation=v2.InterpolationMode.BICUBIC), v2.PILToTensor()]
    )
