"""Locally scaled objects as a task: segment objects at any distance."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from localscale.errors import ConfigError, DataError
from localscale.lab.data.objects import LocallyScaledObjects
from localscale.lab.methods import RandomScaling
from localscale.lab.tasks.mask_metrics import IGNORED, MaskMetrics
from localscale.lab.tasks.task import Criterion, Indices, Predict, Shard, Task, TaskData, Transform, check_least

__all__ = ["IGNORED", "ObjectsData", "ObjectsTask", "Pixels"]

READERS = 8  # threads that read images; decoding releases the global interpreter lock


@dataclass(frozen=True)
class ObjectsData(TaskData):
    """Training and test folders that ``localscale data objects`` wrote."""

    dense: ClassVar[bool] = True
    metrics: ClassVar[tuple[str, ...]] = ("mean_iou", "equivariance_error", "group_deviation", "images", "groups")

    train_root: Path | None = None
    """Folder of training images with their masks."""
    test_root: Path | None = None
    """Folder of test images, in groups that differ in the distances of the objects."""
    train_limit: int | None = None
    """Number of training images to use, the first ones; by default all."""
    test_limit: int | None = None
    """Number of test images to use, the first ones; by default all."""
    image_size: int = 256
    """Side of the images in the folders in pixels."""
    background_weight: float = 0.1
    """Weight of background pixels in the loss; pixels of objects have weight 1."""
    ignore_index: int | None = None
    """Label of pixels that neither the loss nor an IoU counts."""
    variants: int = 4
    """Number of random scalings of each test image, for EquE."""
    uniform_variants: int = 4
    """Number of scalings of each test image with increments uniform on the simplex, for EquE over the paper's Ω."""
    scaling: RandomScaling = field(default_factory=RandomScaling)
    """Random scaling of the test images for EquE (Φ)."""
    data_seed: int = 0
    """Seed of the scalings for EquE."""

    def check(self) -> None:
        """Raise ``ConfigError`` for values outside their range."""
        self.scaling.check()
        check_least(self, {"variants": 1, "uniform_variants": 0, "image_size": 1, "train_limit": 1, "test_limit": 1})
        if not 0 <= self.background_weight < float("inf"):
            raise ConfigError(
                f"--data.background-weight is {self.background_weight}; expected a finite number, 0 or more"
            )

    def task(self, normalise: Transform, batch_size: int) -> ObjectsTask:
        """Read all images and return the task."""
        return ObjectsTask(self, normalise, batch_size)


class ObjectsTask(Task):
    """Classify every pixel: 0 is background, every object has a number.

    Memory holds all images and masks, and the training device the training images: 2 GB for the paper's 6,000.
    """

    dense = True

    def __init__(self, data: ObjectsData, normalise: Transform, batch_size: int) -> None:
        self.data, self.normalise, self.batch_size = data, normalise, batch_size
        train, test = (_open(getattr(data, name), name) for name in ("train_root", "test_root"))
        if train.classes != test.classes:
            strange = sorted(set(train.classes) ^ set(test.classes))[:1] or ["their order"]
            raise DataError(
                f"{data.train_root} has {len(train.classes)} classes and {data.test_root} {len(test.classes)}, which "
                f"differ in {strange[0]}; generate both from the same meshes"
            )
        self.classes = len(train.classes)
        self.train = Pixels.read(train, data, data.train_limit)
        self.test = Pixels.read(test, data, data.test_limit)
        self.train_count = len(self.train.images)
        self._on_device: Pixels | None = None

    def describe(self) -> str:
        groups = len(self.test.groups.unique())
        return (
            f"{self.train_count:,} training images; {len(self.test.images):,} test images of {groups:,} scenes; "
            f"{self.classes} classes, background among them; EquE with {self.data.scaling}"
        )

    def criterion(self, label_smoothing: float) -> Criterion:
        return functools.partial(
            pixel_cross_entropy, background_weight=self.data.background_weight, label_smoothing=label_smoothing
        )

    def load(self, batches: Iterable[Indices], seed: int) -> Iterator[tuple[Indices, None]]:
        return ((indices, None) for indices in batches)

    def images(self, indices: Indices, loaded: None, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._on_device is None:
            self._on_device = self.train.to(device)
        return self._on_device.take(indices.images.to(device, non_blocking=True))

    def evaluate(self, predict: Predict, device: torch.device, shard: Shard, *, progress: bool) -> dict[str, Any]:
        """Return mIoU, also of small objects, EquE with its floor, and the deviation of IoU within a scene."""
        from localscale.metrics import image_iou
        from localscale.metrics.streaming import GroupConsistency

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
        groups, group_of = self.test.groups.unique(return_inverse=True)
        consistency = GroupConsistency(len(groups)).to(device)
        mine = torch.arange(shard.rank, len(self.test.images), shard.world)
        bar = tqdm(total=len(mine), desc="evaluating", unit="image", leave=False, disable=not progress)
        with torch.no_grad(), bar:
            for index in mine.split(self.batch_size) if len(mine) else ():
                images, labels = (tensor.to(device) for tensor in self.test.take(index))
                logits = metrics.update(images, labels, index, predict, self.normalise)
                each = image_iou(logits.argmax(1), labels, self.classes, ignore_index=IGNORED)
                consistency.update(each, group_of[index].to(device))
                bar.update(len(index))
        return {
            "images": len(self.test.images),
            **metrics.compute(),
            "group_deviation": _or_none(float(consistency.compute())),
            "groups": len(groups),
        }


@dataclass(frozen=True)
class Pixels:
    """A dataset in memory: images ``(N, 3, H, W)`` in 8 bits, labels ``(N, H, W)`` in 16, and scene numbers."""

    images: Tensor
    labels: Tensor
    groups: Tensor

    @classmethod
    def read(cls, dataset: LocallyScaledObjects, data: ObjectsData, limit: int | None) -> Pixels:
        """Read and check the first ``limit`` images of ``dataset``."""
        count = len(dataset) if limit is None else min(limit, len(dataset))
        if not count:
            raise DataError(f"{dataset.root} has no images; make some with localscale data objects")
        size = (data.image_size, data.image_size)
        images, labels = torch.empty(count, 3, *size, dtype=torch.uint8), torch.empty(count, *size, dtype=torch.int16)
        groups = torch.empty(count, dtype=torch.int64)

        def read_one(index: int) -> None:
            item = dataset[index]
            key = dataset.written.records[index]["key"]
            pixels = torch.from_numpy(np.asarray(item.image.convert("RGB")).copy()).movedim(-1, 0)
            check_masks(pixels, item.classes, len(dataset.classes), data, f"sample {key} in {dataset.root}")
            if data.ignore_index is not None:
                item.classes[item.classes == data.ignore_index] = IGNORED
            images[index], labels[index], groups[index] = pixels, item.classes, item.group

        with ThreadPoolExecutor(READERS) as pool:
            for _ in pool.map(read_one, range(count)):
                pass
        return cls(images, labels, groups)

    def to(self, device: torch.device) -> Pixels:
        """Return the dataset on ``device``."""
        return Pixels(self.images.to(device), self.labels.to(device), self.groups.to(device))

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images in [0,1] and the labels, int64, of the samples in ``index``."""
        return self.images[index].float() / 255, self.labels[index].long()


def check_masks(image: Tensor, labels: Tensor, classes: int, data: ObjectsData, what: str) -> None:
    """Raise ``DataError`` if an image ``(3, H, W)`` and labels ``(H, W)`` do not fit each other or the settings."""
    size = data.image_size
    if labels.shape != image.shape[1:]:
        raise DataError(
            f"{what}: the mask is {_by(labels.shape)} and the image {_by(image.shape[1:])}; make the dataset again"
        )
    if tuple(image.shape[1:]) != (size, size):
        raise DataError(
            f"{what}: the image is {_by(image.shape[1:])}, expected {size}×{size}; "
            f"add --data.image-size {image.shape[1]}, or make the dataset with --image-size {size}"
        )
    strange = (labels < 0) | (labels >= classes)
    if data.ignore_index is not None:
        strange &= labels != data.ignore_index
    if strange.any():
        raise DataError(
            f"{what}: label {int(labels[strange][0])} is outside the {classes} classes, 0 to {classes - 1}; "
            "if it marks pixels to ignore, add --data.ignore-index"
        )


def pixel_cross_entropy(
    logits: Tensor, labels: Tensor, *, background_weight: float, label_smoothing: float = 0.0
) -> Tensor:
    """Return the weighted mean of the pixels' cross-entropies; background (class 0) has a lower weight (App. A1).

    >>> pixel_cross_entropy(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4, dtype=torch.long), background_weight=0.1)
    tensor(0.6931)
    """
    logits = logits.float()
    weights = logits.new_ones(logits.shape[1])
    weights[:1].fill_(background_weight)  # an assignment would copy from the host, which a CUDA graph cannot record
    each = F.cross_entropy(
        logits, labels, weights, reduction="none", ignore_index=IGNORED, label_smoothing=label_smoothing
    )
    # torch's own mean is NaN for a batch in which all pixels have weight 0.
    total = torch.where(labels == IGNORED, 0, weights[labels.clamp_min(0)]).sum()
    return torch.where(total > 0, each.sum() / total.clamp_min(1e-6), 0 * each.sum())


def _open(root: Path | None, name: str) -> LocallyScaledObjects:
    if root is None:
        raise ConfigError(
            f"--data.{name.replace('_', '-')} is needed: make it with localscale data objects --out FOLDER"
        )
    return LocallyScaledObjects(root)


def _or_none(value: float) -> float | None:
    """Return None for NaN, which JSON lacks."""
    return None if math.isnan(value) else value


def _by(shape: Any) -> str:
    return "×".join(map(str, shape))
