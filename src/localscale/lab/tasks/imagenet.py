"""Locally scaled ImageNet as a task: train on ordinary images, test on groups of rescaled images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from localscale.adaptation.preprocessing import Preprocessing
from localscale.errors import ConfigError, DataError
from localscale.lab.data.imagenet import LocallyScaledImageNet
from localscale.lab.data.imagenet.image_list import list_images
from localscale.lab.data.images import read_image
from localscale.lab.data.written import DATASET
from localscale.lab.tasks.crops import random_crop, read_crops, read_in_order
from localscale.lab.tasks.folder import as_cropped, central_crop
from localscale.lab.tasks.outcomes import OUTCOMES, OutcomeRecorder, digest_of
from localscale.lab.tasks.task import Indices, Predict, Shard, Task, TaskData, Transform, check_least

__all__ = ["ImageNetData", "ImageNetTask"]

MAGNITUDES = 31  # of torchvision's RandAugment


@dataclass(frozen=True)
class ImageNetData(TaskData):
    """Training images of ImageNet, and test images that ``localscale data imagenet`` wrote."""

    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "invariance_error", "images", "variants")

    train_root: Path | None = None
    """Training images: a folder with one subfolder per class, or one that ``localscale data imagenet`` wrote, of whose
    photographs every epoch shows one scale at random."""
    test_root: Path | None = None
    """Folder that ``localscale data imagenet`` wrote."""
    class_index: Path | None = None
    """JSON file {"000": ["n01440764", "tench"], …}; None looks in and beside train_root."""
    train_limit: int = 10_000
    """Largest number of training images, spread over the classes."""
    image_size: int = 224
    """Side of the cropped images in pixels."""
    crop: float = 0.875
    """Test images: the part of the shorter side that the central crop shows."""
    least_area: float = 0.08
    """Training images: the smallest part of the area that a random crop shows."""
    rand_augment: int = 0
    """Training images: magnitude of RandAugment, torchvision's with two operations on each crop, such as 9; 0 turns it
    off."""
    workers: int = 4
    """Processes that read images, at most one for each core."""
    data_seed: int = 0
    """Seed by which train_limit picks training images."""

    def check(self) -> None:
        """Raise ``ConfigError`` for values outside their range."""
        check_least(self, {"train_limit": 1, "image_size": 8, "workers": 0, "rand_augment": 0})
        if self.rand_augment >= MAGNITUDES:
            raise ConfigError(f"--data.rand-augment is {self.rand_augment}; expected 0 to {MAGNITUDES - 1}")
        for name, value in (("crop", self.crop), ("least-area", self.least_area)):
            if not 0 < value <= 1:
                raise ConfigError(f"--data.{name} is {value}; expected more than 0 and at most 1")

    def preprocessing(self, declared: Preprocessing) -> Preprocessing:
        return as_cropped(declared, self.crop)

    def task(self, normalise: Transform, batch_size: int) -> ImageNetTask:
        """List the images and return the task."""
        return ImageNetTask(self, normalise, batch_size)


class ImageNetTask(Task):
    """Classify what an image shows, at any size of the object."""

    from_files = True

    def __init__(self, data: ImageNetData, normalise: Transform, batch_size: int) -> None:
        self.data, self.normalise, self.batch_size = data, normalise, batch_size
        if data.train_root is None or data.test_root is None:
            missing = "train-root" if data.train_root is None else "test-root"
            raise ConfigError(f"--data.{missing} is needed: {_WHAT[missing]}")
        self.test = LocallyScaledImageNet(data.test_root, transform=central_crop(data.image_size, data.crop))
        if 1.0 not in self.test.scales:
            raise DataError(
                f"{data.test_root} has no images at scale 1.0, which InvE needs; "
                "write the dataset again with 1.0 among its --scales"
            )
        self.classes = len(self.test.classes)
        self.train = training_images(data, self.test.classes)
        self.train_count = len(self.train)

    def describe(self) -> str:
        groups, scales = len(self.test.groups), len(self.test.scales)
        return f"{self.train.describe()}; {groups:,} test images at {scales} scales each"

    def load(self, batches: Iterable[Indices], seed: int) -> Iterator[tuple[Indices, Any]]:
        return read_crops(self.train, batches, seed, workers=self.data.workers)

    def images(self, indices: Indices, loaded: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        images, labels = (tensor.to(device, non_blocking=True) for tensor in loaded)
        return images.float() / 255, labels

    def evaluate(self, predict: Predict, device: torch.device, shard: Shard, *, progress: bool) -> dict[str, Any]:
        """Return the accuracy at every scale, InvE relative to the image at scale 1, and the outcome of each image."""
        from localscale.metrics.streaming import InvarianceError, PerScaleAccuracy

        scales = self.test.scales
        original = scales.index(1.0)
        errors = {kind: InvarianceError(kind).to(device) for kind in ("squared", "l2", "relative")}
        accuracy = PerScaleAccuracy(scales).to(device)
        groups = list(self.test.groups)
        outcomes = OutcomeRecorder(len(groups), len(scales), device)
        mine = _Groups(self.test, groups, list(shard.of(len(groups))))
        at_once = max(1, 2 * self.batch_size // len(scales))
        reader = read_in_order(mine, batch_size=at_once, workers=self.data.workers, progress=progress, unit="group")
        with torch.no_grad():
            for numbers, images, labels in reader:
                pixels = images.flatten(0, 1).to(device).float() / 255
                logits = predict(self.normalise(pixels)).float()
                labels = labels.to(device)
                each = labels.repeat_interleave(len(scales))
                accuracy.update(logits, each, torch.tensor(scales).repeat(len(images)))
                answers = logits.softmax(1).unflatten(0, (len(images), len(scales)))
                others = torch.cat((answers[:, :original], answers[:, original + 1 :]), dim=1)
                for error in errors.values():
                    error.update(answers[:, original], others)
                change = (others - answers[:, original, None]).square().sum(dim=2).mean(dim=1)
                outcomes.add(numbers, logits.unflatten(0, answers.shape[:2]), labels, change)
        per_scale = accuracy.compute()
        return {
            "images": len(groups),
            "variants": len(scales) - 1,
            "accuracy": per_scale.mean,
            "invariance_error": {kind: float(error.compute()) for kind, error in errors.items()},
            "per_scale": {
                "images": len(groups),
                "accuracy": {str(scale): value for scale, value in per_scale.accuracy.items()},
                "mean": per_scale.mean,
                "std": per_scale.std,
            },
            OUTCOMES: outcomes.finish(self._test_images()),
        }

    def _test_images(self) -> str:
        records = self.test.written.records
        sources = [records[positions[0]]["source"] for positions in self.test.groups.values()]
        return digest_of("imagenet", self.test.scales, self.data.crop, names=sources)


class TrainingImages(Dataset[tuple[Tensor, int]]):
    """Training images and labels; the key of an item is (index, seed), and the seed decides the crop and the flip."""

    def __init__(self, data: ImageNetData, classes: tuple[str, ...]) -> None:
        root = data.train_root
        assert root is not None
        listing = list_images(
            root, class_index=data.class_index, limit=data.train_limit, seed=data.data_seed, what="--data.train-root"
        )
        _check_classes(root, listing.classes, classes)
        self.items = [(root / name, listing.labels[name.split("/")[0]]) for name in listing.names]
        self.transform = training_crop(data)

    def __len__(self) -> int:
        return len(self.items)

    def describe(self) -> str:
        return f"{len(self):,} training images"

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, int]:
        index, seed = place
        path, label = self.items[index]
        image = read_image(path)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return self.transform(image), label


class ScaledTrainingImages(Dataset[tuple[Tensor, int]]):
    """Photographs at one of their scales, and labels; the seed of an item's key also decides the scale."""

    def __init__(self, data: ImageNetData, classes: tuple[str, ...]) -> None:
        assert data.train_root is not None
        self.dataset = LocallyScaledImageNet(data.train_root)
        _check_classes(data.train_root, self.dataset.classes, classes)
        self.groups = list(self.dataset.groups)[: data.train_limit]  # written in an order that spreads over the classes
        self.transform = training_crop(data)

    def __len__(self) -> int:
        return len(self.groups)

    def describe(self) -> str:
        return f"{len(self):,} training photographs at {len(self.dataset.scales)} scales each"

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, int]:
        index, seed = place
        positions = self.dataset.groups[self.groups[index]]
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            image, label = self.dataset[positions[int(torch.randint(len(positions), ()))]]
            return self.transform(image), int(label)


def training_images(data: ImageNetData, classes: tuple[str, ...]) -> TrainingImages | ScaledTrainingImages:
    """Open the folder of training images, which must have the test images' ``classes``."""
    assert data.train_root is not None
    written = (data.train_root / DATASET).is_file()
    return ScaledTrainingImages(data, classes) if written else TrainingImages(data, classes)


def training_crop(data: ImageNetData) -> v2.Transform:
    """Return the transform of a training image to a random crop in 8 bits, mirrored half of the time."""
    augment = v2.RandAugment(num_ops=2, magnitude=data.rand_augment, num_magnitude_bins=MAGNITUDES)
    return random_crop(data.image_size, data.least_area, after=(augment,) if data.rand_augment else ())


def _check_classes(root: Path, classes: tuple[str, ...], expected: tuple[str, ...]) -> None:
    if classes != expected:
        raise DataError(
            f"{root} has {_describe(classes, expected)}; the test set has {_describe(expected, classes)}; "
            "both must be numbered by one class_index.json, beside the folders or named with --data.class-index"
        )


def _describe(classes: tuple[str, ...], others: tuple[str, ...]) -> str:
    """Return the number of classes, and the first one that differs from ``others``."""
    first = next((k for k in range(len(classes)) if k >= len(others) or classes[k] != others[k]), None)
    named = "" if first is None else f", number {first} being {classes[first]!r}"
    return f"{len(classes)} classes{named}"


class _Groups(Dataset[tuple[int, Tensor, int]]):
    """Some of the source images of a locally scaled ImageNet as (number, the image at all its scales, label)."""

    def __init__(self, dataset: LocallyScaledImageNet, groups: list[int], numbers: list[int]) -> None:
        self.dataset, self.groups, self.numbers = dataset, groups, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> tuple[int, Tensor, int]:
        number = self.numbers[place]
        group = self.dataset.read_group(self.groups[number])
        return number, group.images, int(group.label)


_WHAT = {
    "train-root": "expected a folder with one subfolder of images per class, such as ImageNet's train",
    "test-root": "make one with localscale data imagenet --images … --out FOLDER",
}
