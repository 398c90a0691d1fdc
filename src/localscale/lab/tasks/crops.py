"""Read random crops of the training images that the batches of a run name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from localscale.lab.children import ending_workers, loading_workers
from localscale.lab.tasks.task import Indices, seed_of

__all__ = ["read_crops"]


def read_crops(
    images: Dataset[Any], batches: Iterable[Indices], seed: int, *, workers: int
) -> Iterator[tuple[Indices, Any]]:
    """Yield each batch with its crops, read by ``workers`` processes.

    ``images`` is indexed by pairs of an image's number and the seed of its crop. The seed depends on the run's ``seed``
    and the sample, not on the batch or the process that reads it.
    """
    steps, again = itertools.tee(batches)  # the data loader runs some batches ahead
    places = (
        [(i, seed_of(seed, "crop", n)) for i, n in zip(step.images.tolist(), step.samples.tolist(), strict=True)]
        for step in again
    )
    reader: Any = DataLoader(
        images, batch_sampler=places, num_workers=loading_workers(workers), worker_init_fn=ending_workers()
    )
    return zip(steps, reader, strict=True)
