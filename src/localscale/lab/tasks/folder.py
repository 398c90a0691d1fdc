"""A folder of photographs as a task: one subfolder per class, images of any size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from localscale.adaptation.preprocessing import Preprocessing
from localscale.errors import ConfigError
from localscale.lab.data.class_folders import ClassFolders, hold_out, leave_out_broken, list_class_folders
from localscale.lab.data.images import read_image
from localscale.lab.methods.augmentation import RandomScaling
from localscale.lab.randomness import Draws
from localscale.lab.tasks.crops import random_crop, read_crops, read_in_order
from localscale.lab.tasks.outcomes import OUTCOMES, OutcomeRecorder, digest_of
from localscale.lab.tasks.task import Indices, Predict, Shard, Task, TaskData, Transform, check_least
from localscale.warp import unscale

__all__ = ["FolderData", "FolderTask"]

TRAIN, VAL = "--data.train-root", "--data.val-root"


@dataclass(frozen=True)
class FolderData(TaskData):
    """Folders of photographs, train and validation, with one subfolder per class."""

    test_field: ClassVar[str] = "val_root"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "invariance_error", "images", "variants")

    train_root: Path | None = None
    """Folder of training images with one subfolder per class (required)."""
    val_root: Path | None = None
    """Folder of validation images with the same subfolders; by default a part of the training images."""
    val_fraction: float = 0.2
    """Part of each class that is held out for validation if there is no --data.val-root."""
    image_size: int = 224
    """Side of the cropped images in pixels; by default the backbone's own."""
    crop: float = 0.875
    """Validation images: the part of the shorter side that the central crop shows."""
    least_area: float = 0.35
    """Training images: the smallest part of the area that a random crop shows."""
    flip: bool = True
    """Training images: mirror half of them, left to right."""
    variants: int = 4
    """Random local scalings of each validation image, for InvE."""
    scaling: RandomScaling = field(default_factory=RandomScaling)
    """Random local scaling of the validation images for InvE."""
    check_images: bool = True
    """Decode all images before training and leave out broken ones; otherwise a broken image ends the run."""
    workers: int = 4
    """Processes that read images, at most one for each core."""
    data_seed: int = 0
    """Seed of the held-out images and of the scalings for InvE."""
    classes: tuple[str, ...] = ()
    """Names of the class folders in the order of their labels; by default those in --data.train-root, sorted."""

    def check(self) -> None:
        """Raise ``ConfigError`` for values outside their range."""
        self.scaling.check()
        check_least(self, {"image_size": 8, "variants": 1, "workers": 0})
        for name, value in (("crop", self.crop), ("least-area", self.least_area)):
            if not 0 < value <= 1:
                raise ConfigError(f"--data.{name} is {value}; expected more than 0 and at most 1")
        if not 0 < self.val_fraction < 1:
            raise ConfigError(f"--data.val-fraction is {self.val_fraction}; expected more than 0 and less than 1")

    def preprocessing(self, declared: Preprocessing) -> Preprocessing:
        return as_cropped(declared, self.crop)

    def with_classes(self, names: Sequence[str]) -> FolderData:
        return dataclasses.replace(self, classes=tuple(names))

    def task(self, normalise: Transform, batch_size: int) -> FolderTask:
        """List the images and return the task."""
        return FolderTask(self, normalise, batch_size)


class FolderTask(Task):
    """Classify photographs by the names of their folders."""

    fresh_head = True
    from_files = True

    def __init__(self, data: FolderData, normalise: Transform, batch_size: int) -> None:
        self.data, self.normalise, self.batch_size = data, normalise, batch_size
        self._train: ClassFolders | None = None
        names = data.classes
        if not names or data.val_root is None:
            self._train, held_out = self._split()
            names = names or self._train.classes
        self.class_names = names
        self.classes = len(names)
        self.val = held_out if data.val_root is None else self._listed(data.val_root, VAL, names)
        self.central = central_crop(data.image_size, data.crop)

    def _listed(self, root: Path | None, flag: str, classes: Sequence[str]) -> ClassFolders:
        images = list_class_folders(root, flag=flag, classes=classes)
        return leave_out_broken(images, flag=flag) if self.data.check_images else images

    def _split(self) -> tuple[ClassFolders, ClassFolders]:
        train = self._listed(self.data.train_root, TRAIN, self.data.classes)
        if self.data.val_root is not None:
            return train, train
        return hold_out(train, self.data.val_fraction, self.data.data_seed)

    @property
    def train(self) -> ClassFolders:
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
            f"{self.train_count:,} training images of {self.classes} classes; {len(self.val):,} validation images"
            f"{held_out}; InvE with {data.scaling}"
        )

    def load(self, batches: Iterable[Indices], seed: int) -> Iterator[tuple[Indices, Any]]:
        return read_crops(Crops(self.train, self.data), batches, seed, workers=self.data.workers)

    def images(self, indices: Indices, loaded: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        images, labels = (tensor.to(device, non_blocking=True) for tensor in loaded)
        return images.float() / 255, labels

    def evaluate(self, predict: Predict, device: torch.device, shard: Shard, *, progress: bool) -> dict[str, Any]:
        """Return the accuracy, also under random local scaling, InvE, and the outcome of each image."""
        from localscale.metrics.streaming import InvarianceError, top1

        data = self.data
        accuracy, scaled_accuracy = top1(self.classes).to(device), top1(self.classes).to(device)
        errors = {kind: InvarianceError(kind).to(device) for kind in ("squared", "l2", "relative")}
        outcomes = OutcomeRecorder(len(self.val), device=device)
        mine = Central(self, list(shard.of(len(self.val))))
        reader = read_in_order(mine, batch_size=self.batch_size, workers=data.workers, progress=progress)
        with torch.no_grad():
            for index, pixels, labels in reader:
                images, labels = pixels.to(device).float() / 255, labels.to(device)
                logits = predict(self.normalise(images)).float()
                accuracy.update(logits, labels)
                answers = []
                for variant in range(data.variants):
                    scaled = predict(self.normalise(self.scaled(images, index, variant))).float()
                    scaled_accuracy.update(scaled, labels)
                    answers.append(scaled.softmax(1))
                reference, others = logits.softmax(1), torch.stack(answers, dim=1)
                for error in errors.values():
                    error.update(reference, others)
                change = (others - reference[:, None]).square().sum(dim=2).mean(dim=1)
                outcomes.add(index, logits, labels, change)
        names = [path.relative_to(self.val.root) for path, _ in self.val.items]
        return {
            "images": len(self.val),
            "variants": data.variants,
            "accuracy": float(accuracy.compute()),
            "scaled_accuracy": float(scaled_accuracy.compute()),
            "invariance_error": {kind: float(error.compute()) for kind, error in errors.items()},
            OUTCOMES: outcomes.finish(digest_of("folder", data.crop, data.scaling, data.variants, names=names)),
        }

    def scaled(self, images: Tensor, index: Tensor, variant: int) -> Tensor:
        """Return validation images ``(B, 3, H, W)`` of numbers ``index`` ``(B,)`` under their random scaling."""
        draws = Draws(self.data.data_seed, index.to(images.device))
        return unscale(images, self.data.scaling.maps(draws, f"evaluation/{variant}"))


class Crops(Dataset[tuple[Tensor, int]]):
    """Training images and labels; the key of an item is (index, seed), and the seed decides the crop and the flip."""

    def __init__(self, images: ClassFolders, data: FolderData) -> None:
        self.images = images
        self.transform = random_crop(data.image_size, data.least_area, flip=data.flip)

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, int]:
        index, seed = place
        path, label = self.images.items[index]
        image = read_image(path)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return self.transform(image), label


class Central(Dataset[tuple[int, Tensor, int]]):
    """Some of the validation images as (number, central crop, label)."""

    def __init__(self, task: FolderTask, numbers: Sequence[int]) -> None:
        self.items, self.numbers, self.transform = task.val.items, numbers, task.central

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> tuple[int, Tensor, int]:
        number = self.numbers[place]
        path, label = self.items[number]
        return number, self.transform(read_image(path)), label


def as_cropped(declared: Preprocessing, crop: float) -> Preprocessing:
    """Return the preprocessing that crops images as ``central_crop`` does."""
    return dataclasses.replace(declared, interpolation="bicubic", crop=crop, keep_ratio=True)


def central_crop(image_size: int, crop: float) -> Any:
    """Return the transform of an image to its central crop in 8 bits, as timm does for evaluation."""
    return v2.Compose(
        [
            v2.Resize(max(image_size, int(image_size / crop)), interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(image_size),
            v2.PILToTensor(),
        ]
    )
