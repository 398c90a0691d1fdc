"""Read training images as random crops, in the order of a run's batches, and test images in their own order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from tqdm import tqdm

from localscale.lab.children import ending_workers, loading_workers
from localscale.lab.tasks.task import Indices, seed_of

__all__ = ["random_crop", "read_crops", "read_in_order"]


def random_crop(image_size: int, least_area: float, *, flip: bool = True, after: tuple[v2.Transform, ...] = ()) -> Any:
    """Return the transform of a training image to a random crop in 8 bits.

    ``flip`` mirrors half of the crops, and ``after`` follows.
    """
    crop: Any = v2.RandomResizedCrop
    return v2.Compose(
        [
            crop(image_size, scale=(least_area, 1.0), interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(0.5 if flip else 0.0),
            *after,
            v2.PILToTensor(),
        ]
    )


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


def read_in_order(
    images: Dataset[Any], *, batch_size: int, workers: int, progress: bool, unit: str = "image"
) -> Iterator[Any]:
    """Yield batches of all ``images``, read by ``workers`` processes, with a progress bar."""
    reader: Any = DataLoader(
        images, batch_size=batch_size, num_workers=loading_workers(workers), worker_init_fn=ending_workers()
    )
    assert isinstance(images, Sized)
    with tqdm(total=len(images), desc="evaluating", unit=unit, leave=False, disable=not progress) as bar:
        for batch in reader:
            yield batch
            bar.update(len(batch[0]))
