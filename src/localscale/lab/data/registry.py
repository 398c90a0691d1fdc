"""The registry of datasets. ``localscale data`` has one subcommand for each entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localscale.lab.data.generation import Job
from localscale.lab.data.imagenet import ImageNetOptions, imagenet_job
from localscale.lab.data.mnist import MNISTOptions, mnist_job
from localscale.lab.data.objects import ObjectsOptions, objects_job

__all__ = ["DATASETS", "DatasetKind"]


@dataclass(frozen=True)
class DatasetKind:
    """A kind of dataset: the dataclass of its options, and the function that returns the job for given options.

    The docstrings of ``options`` and of its fields are the help texts of the command line.
    """

    options: type
    job: Callable[[Any], Job]


DATASETS: dict[str, DatasetKind] = {
    "mnist": DatasetKind(MNISTOptions, mnist_job),
    "objects": DatasetKind(ObjectsOptions, objects_job),
    "imagenet": DatasetKind(ImageNetOptions, imagenet_job),
}
