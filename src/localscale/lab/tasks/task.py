"""The interface between a dataset and the training loop: batches, labels, loss and metrics."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.adaptation.preprocessing import Preprocessing
from localscale.errors import ConfigError
from localscale.lab.methods.method import Criterion
from localscale.lab.randomness import stream

__all__ = [
    "Batches",
    "Criterion",
    "Indices",
    "Predict",
    "Shard",
    "Task",
    "TaskData",
    "Transform",
    "chance",
    "check_least",
    "seed_of",
]

Transform = Callable[[Tensor], Tensor]  # images in [0,1] to what the backbone takes
Predict = Callable[[Tensor], Tensor]  # normalised images (B, C, H, W) to logits (B, K, …)


def seed_of(seed: int, *where: object) -> int:
    """Return a 32-bit seed for one use in a run; the names in ``where`` tell the uses apart."""
    return stream("/".join(map(str, (seed, *where)))) >> 32


def chance(seed: int, *where: object) -> torch.Generator:
    """Return a generator for one use in a run, seeded with ``seed_of``."""
    return torch.Generator().manual_seed(seed_of(seed, *where))


@dataclass(frozen=True)
class Shard:
    """The share of one process: number ``rank`` of ``world``."""

    rank: int = 0
    world: int = 1

    def of(self, count: int) -> range:
        """Return the indices of this process among ``count`` items."""
        return range(self.rank, count, self.world)


@dataclass(frozen=True)
class Indices:
    """The images of one step and process, and the number of each sample since the start of the run."""

    step: int
    images: Tensor
    samples: Tensor


@dataclass(frozen=True)
class Batches:
    """The order of the training images: a function of the seed, so that a run can continue at any step.

    Every epoch is a new permutation; images that do not fill a batch are left out. Any number of processes shares one
    order.

    >>> [batch.images.shape for batch in Batches(count=5, size=2, seed=0).steps(0, 2)]
    [torch.Size([2]), torch.Size([2])]
    """

    count: int
    size: int
    seed: int
    shard: Shard = Shard()

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.count:
            raise ConfigError(
                f"--batch-size is {self.size} with {self.count} training images; expected 1 to {self.count}: "
                f"try --batch-size {max(1, min(self.size, self.count))}"
            )
        if self.size % self.shard.world:
            raise ConfigError(
                f"--batch-size {self.size} cannot be divided among {self.shard.world} processes; "
                f"try --batch-size {self.size // self.shard.world * self.shard.world or self.shard.world}"
            )

    @property
    def per_epoch(self) -> int:
        """Number of steps in an epoch."""
        return self.count // self.size

    def steps(self, first: int, last: int) -> Iterator[Indices]:
        """Yield this process's share of the steps ``first`` … ``last − 1``."""
        order, epoch = torch.empty(0), -1
        for step in range(first, last):
            if step // self.per_epoch != epoch:
                epoch = step // self.per_epoch
                order = torch.randperm(self.count, generator=chance(self.seed, "order", epoch))
            position = torch.tensor(self.shard.of(self.size))
            start = step % self.per_epoch * self.size
            yield Indices(step, order[start + position], step * self.size + position)


class TaskData(ABC):
    """Settings of a task: a frozen dataclass with defaults for every field, entered in ``TASKS`` by ``register``."""

    dense: ClassVar[bool] = False  # whether every pixel has a label
    test_field: ClassVar[str] = "test_root"  # the field that names the folder of test images
    metrics: ClassVar[tuple[str, ...]] = ()  # names that the metrics of a result must have
    image_size: int
    data_seed: int  # of tasks that draw their images

    def check(self) -> None:  # noqa: B027 (optional)
        """Raise ``ConfigError`` for settings that cannot work."""

    def preprocessing(self, declared: Preprocessing) -> Preprocessing:
        """Return how a test image becomes an input, given what the backbone declares; by default that."""
        return declared

    def with_classes(self, names: Sequence[str]) -> TaskData:
        """Return the settings for a model whose labels have these names; by default the classes are fixed."""
        return self

    @abstractmethod
    def task(self, normalise: Transform, batch_size: int) -> Task:
        """Open the data and return the task."""


def check_least(data: TaskData, least: dict[str, int]) -> None:
    """Raise ``ConfigError`` if a field of ``data`` is below its least value; ``None`` passes."""
    for name, smallest in least.items():
        value = getattr(data, name)
        if value is not None and value < smallest:
            raise ConfigError(f"--data.{name.replace('_', '-')} is {value}; expected at least {smallest}")


class Task(ABC):
    """Training images with their loss, and the metrics on test images."""

    normalise: Transform
    classes: int
    class_names: tuple[str, ...] = ()  # names of the labels, where the data has names
    train_count: int
    fresh_head = False  # whether to replace a pretrained head even if it has the right number of classes
    dense = False  # whether every pixel has a label
    from_files = False  # whether loading a batch decodes image files

    def describe(self) -> str:
        """Return a description of the training and test images for result.json."""
        return f"{type(self).__name__}, {self.train_count} training images of {self.classes} classes"

    def criterion(self, label_smoothing: float) -> Criterion:
        """Return the loss of logits and labels; the default is the cross-entropy."""
        return functools.partial(_cross_entropy, label_smoothing=label_smoothing)

    def load(self, batches: Iterable[Indices], seed: int) -> Iterator[tuple[Indices, Any]]:
        """Yield each batch of indices with its data as loaded on the host, by default None; ``seed`` is the run's."""
        return ((indices, None) for indices in batches)

    @abstractmethod
    def images(self, indices: Indices, loaded: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return images ``(B, 1 or C, H, W)`` in [0,1] and their labels on ``device``."""

    def things(self, count: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Return at most ``count`` normalised test images and the boxes ``(B, N, 4)`` of their things, if known."""
        return None

    @abstractmethod
    def evaluate(self, predict: Predict, device: torch.device, shard: Shard, *, progress: bool) -> dict[str, Any]:
        """Return all metrics as JSON values, the same in every process.

        A classifier may add the ``Outcomes`` of its test images under the key ``OUTCOMES``; a run keeps them in a file
        of its own.
        """


def _cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float) -> Tensor:
    return F.cross_entropy(logits.float(), labels, label_smoothing=label_smoothing)
