"""What is learned and how it is judged: the interface of the locally scaled datasets to the training loop."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.errors import ConfigError
from localscale.lab.methods.method import Criterion
from localscale.lab.randomness import stream

__all__ = ["Batches", "Criterion", "Indices", "Normalise", "Predict", "Shard", "Task", "TaskData", "chance", "seed_of"]

Predict = Callable[[Tensor], Tensor]  # normalised images (B, C, H, W) to logits (B, K, …)


def seed_of(seed: int, *where: object) -> int:
    """A seed of its own for each place in a run, 32 bits wide, as every library takes it."""
    return stream("/".join(map(str, (seed, *where)))) >> 32


def chance(seed: int, *where: object) -> torch.Generator:
    """A generator of its own for each place in a run."""
    return torch.Generator().manual_seed(seed_of(seed, *where))


@dataclass(frozen=True)
class Shard:
    """This process among all: number ``rank`` of ``world``."""

    rank: int = 0
    world: int = 1

    def of(self, count: int) -> range:
        """This process's share of ``count`` items."""
        return range(self.rank, count, self.world)


@dataclass(frozen=True)
class Indices:
    """One step's share of one process: which images, and the number of each among all samples ever drawn."""

    step: int
    images: Tensor
    samples: Tensor


@dataclass(frozen=True)
class Batches:
    """The order of training: a function of the seed, so a run can be taken up at any step, in any number of processes.

    Every epoch is a new permutation; what does not fill a batch is left out.

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
                f"batch size {self.size} with {self.count} training images; expected 1 to {self.count}: "
                f"try --batch-size {max(1, min(self.size, self.count))}"
            )
        if self.size % self.shard.world:
            raise ConfigError(
                f"batch size {self.size} cannot be shared by {self.shard.world} processes; "
                f"try --batch-size {self.size // self.shard.world * self.shard.world or self.shard.world}"
            )

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch."""
        return self.count // self.size

    def steps(self, first: int, last: int) -> Iterator[Indices]:
        """This process's share of the steps ``first`` … ``last − 1``."""
        order, epoch = torch.empty(0), -1
        for step in range(first, last):
            if step // self.per_epoch != epoch:
                epoch = step // self.per_epoch
                order = torch.randperm(self.count, generator=chance(self.seed, "order", epoch))
            position = torch.tensor(self.shard.of(self.size))
            start = step % self.per_epoch * self.size
            yield Indices(step, order[start + position], step * self.size + position)


@dataclass(frozen=True)
class Normalise:
    """From [0,1] to what the backbone was pretrained on."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """``(B, 1 or C, H, W)`` to ``(B, C, H, W)``."""
        channels = images.expand(-1, len(self.mean), -1, -1).split(1, dim=1)
        return torch.cat([(c - mean) / std for c, mean, std in zip(channels, self.mean, self.std, strict=True)], dim=1)


class TaskData(ABC):
    """Settings of a task: a frozen dataclass with defaults for every field, listed in ``TASKS``."""

    dense: ClassVar[bool] = False  # whether every pixel has a label
    image_size: int
    data_seed: int

    @abstractmethod
    def check(self) -> None:
        """Raise ``ConfigError`` for settings that cannot work."""

    @abstractmethod
    def task(self, normalise: Normalise, batch_size: int) -> Task:
        """Open the data and return the task."""


class Task(ABC):
    """Images to train on, and what to measure on others."""

    normalise: Normalise
    classes: int
    train_count: int
    fresh_head = False  # whether a pretrained head of the same size is of no use
    dense = False  # whether every pixel has a label

    @abstractmethod
    def describe(self) -> str:
        """What was learned from and judged on, in words, for the result."""

    def criterion(self, label_smoothing: float) -> Criterion:
        """The loss of logits and labels: cross-entropy."""
        return functools.partial(_cross_entropy, label_smoothing=label_smoothing)

    @abstractmethod
    def load(self, batches: Iterable[Indices], seed: int) -> Iterator[tuple[Indices, Any]]:
        """The batches with whatever can be prepared away from the device; ``seed`` is the run's."""

    @abstractmethod
    def images(self, indices: Indices, loaded: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        """Images ``(B, 1 or C, H, W)`` in [0,1], and labels, on ``device``."""

    @abstractmethod
    def evaluate(self, predict: Predict, device: torch.device, shard: Shard, *, progress: bool) -> dict[str, Any]:
        """Everything measured, as plain values; the same in every process."""


def _cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float) -> Tensor:
    return F.cross_entropy(logits.float(), labels, label_smoothing=label_smoothing)
