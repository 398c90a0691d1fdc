"""The images that sizes are learned from, with the masks or boxes of the things in them if these are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from localscale.canonicalizer.things import Things, things_in_boxes, things_in_masks
from localscale.conventions import resize_cubic
from localscale.errors import ConfigError, DataError, near_misses

__all__ = ["KINDS", "Examples", "known_things", "split"]

HELD_OUT = 256  # largest number of images kept for the measurement
KINDS = {"masks": ("masks", "labels"), "boxes": ("boxes",)}  # each with the names it may have in a dictionary


@dataclass(frozen=True, eq=False)
class Examples:
    """Images ``(B, C, H, W)`` and, if known, the masks ``(B, H, W)`` or the boxes of each image."""

    images: Tensor
    known: Tensor | Sequence[Tensor] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def at(self, index: Tensor) -> Examples:
        """Return the examples at ``index``."""
        known = self.known
        if known is not None:
            known = known[index] if isinstance(known, Tensor) else [known[i] for i in index.tolist()]
        return Examples(self.images[index], known)

    def first(self, count: int) -> Examples:
        """Return the first examples."""
        return Examples(self.images[:count], None if self.known is None else self.known[:count])

    def finite(self) -> Examples:
        """Return the examples without NaN or infinity, which would spoil the measurement of all others."""
        index = torch.isfinite(self.images).flatten(1).all(dim=1).nonzero()[:, 0]
        if not len(index):
            raise DataError(
                f"none of the {len(self)} images to measure on is finite; check the images and their normalisation"
            )
        return self if len(index) == len(self) else self.at(index)


def known_things(
    masks: Tensor | None, boxes: Sequence[Tensor] | Tensor | None, ignore_index: int, device: torch.device
) -> Things | None:
    """Return the things of ``masks`` or of ``boxes`` on ``device``; ``None`` if neither is given."""
    if masks is not None and boxes is not None:
        raise ConfigError("masks and boxes were both given; give one of them")
    if masks is not None:
        return things_in_masks(masks.to(device), ignore_index=ignore_index)
    return None if boxes is None else things_in_boxes(boxes, device)


def split(
    given: Any, batch_size: int, input_size: tuple[int, int, int], kind: str | None
) -> tuple[Examples, Iterator[Examples]]:
    """Return examples to measure on, and an endless iterator of batches to learn from."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"things is {kind!r}: {near_misses(str(kind), KINDS)}; or None, to learn without labels")
    if isinstance(given, Mapping):  # one batch, as a processor of transformers returns it
        given = [given]
    if not _is_iterated(given):
        raise DataError(
            f"images are {type(given).__name__}; expected a tensor, a list of tensors, or a loader of batches, such as "
            "torch.utils.data.DataLoader(dataset, batch_size=64)"
        )
    whole = _whole(given, input_size, kind)
    if whole is not None:
        kept = min(HELD_OUT, len(whole) // 10)
        every = torch.arange(len(whole))
        learned = whole.at(every[: len(whole) - kept]) if kept else whole
        return (whole.at(every[-kept:]) if kept else whole.first(HELD_OUT)), _drawn(learned, batch_size)
    held_out = next((_examples(batch, input_size, kind) for batch in given), None)
    if held_out is None:
        raise DataError(
            "the loader gave no batch; expected a loader of images that can be iterated over again and again"
        )
    return held_out.first(HELD_OUT), _repeated(given, input_size, kind)


def _is_iterated(given: Any) -> bool:
    """Return whether iterating over ``given`` yields images or batches; a dataset of single images does not count."""
    if isinstance(given, str | Dataset):
        return isinstance(given, Iterable) and not isinstance(given, str)
    return isinstance(given, Iterable) or hasattr(given, "__getitem__")


def _whole(given: Any, input_size: tuple[int, int, int], kind: str | None) -> Examples | None:
    """Return all examples if they were given at once, and ``None`` for a loader of batches."""
    if kind is None:
        first = given[0] if isinstance(given, Sequence) and len(given) else None
        single = isinstance(given, Tensor) or (isinstance(first, Tensor) and first.dim() != 4)
        return Examples(_stack(given, input_size)) if single else None
    pair = isinstance(given, Sequence) and len(given) == 2 and isinstance(given[0], Tensor)
    return _examples(given, input_size, kind) if pair or isinstance(given, Tensor) else None


def _examples(batch: Any, input_size: tuple[int, int, int], kind: str | None) -> Examples:
    """Return the images of a batch, and what is known of them; raise unless both are there."""
    images = _stack(_images_of(batch), input_size)
    if kind is None:
        return Examples(images)
    known: Any = None
    if isinstance(batch, Mapping):
        known = next((batch[name] for name in KINDS[kind] if name in batch), None)
    elif isinstance(batch, Sequence) and len(batch) > 1:
        known = batch[1]
    right = isinstance(known, Tensor) if kind == "masks" else isinstance(known, Tensor | Sequence)
    if not right or len(known) != len(images) or not all(isinstance(each, Tensor) for each in known):
        expected = "masks (B, H, W)" if kind == "masks" else "a list of boxes (N, 4), one tensor for each image"
        came = f"{type(known).__name__} of length {len(known)}" if hasattr(known, "__len__") else type(known).__name__
        raise DataError(
            f'a batch of {len(images)} images came with {came}; things="{kind}" expects batches (images, {kind}) with '
            f"{expected}, or a dictionary with {' or '.join(map(repr, KINDS[kind]))}"
        )
    return Examples(images, known)


def _are_images(batch: Any) -> bool:
    """Return whether ``batch`` is a list of images ``(C, H, W)``, which may differ in size."""
    many = isinstance(batch, Sequence) and len(batch) > 0
    return many and all(isinstance(image, Tensor) and image.dim() == 3 for image in batch)


def _stack(images: Tensor | Sequence[Tensor], input_size: tuple[int, int, int]) -> Tensor:
    channels, height, width = input_size
    for image in images if not isinstance(images, Tensor) else [images]:
        fits = image.dim() == (4 if isinstance(images, Tensor) else 3) and image.shape[-3] == channels
        if not fits or not image.is_floating_point() or 0 in image.shape:
            raise DataError(
                f"images have shape {tuple(image.shape)} and dtype {image.dtype}; expected floating point with "
                f"{channels} channels: a tensor (N, {channels}, H, W) or a sequence of ({channels}, H, W) tensors"
            )
    if isinstance(images, Tensor):
        return images
    return torch.stack([resize_cubic(image[None], height, width)[0] for image in images])


def _drawn(examples: Examples, batch_size: int) -> Iterator[Examples]:
    while True:  # with replacement: fewer images than a batch are enough
        yield examples.at(torch.randint(len(examples), (batch_size,)))


def _repeated(loader: Iterable[Any], input_size: tuple[int, int, int], kind: str | None) -> Iterator[Examples]:
    """Yield the batches of pass after pass; the first of a pass is held out, unless it is the only one."""
    while True:
        number = -1
        for number, batch in enumerate(loader):
            examples = _examples(batch, input_size, kind)
            if number > 0:
                yield examples
        if number < 0:
            raise DataError(
                f"the loader, a {type(loader).__name__}, gave no more batches; expected one that can be iterated over "
                "again and again, such as torch.utils.data.DataLoader(dataset, batch_size=64) or a list of batches"
            )
        if number == 0:
            yield examples


def _images_of(batch: Any) -> Tensor | Sequence[Tensor]:
    if isinstance(batch, Mapping):
        batch = batch.get("pixel_values", next(iter(batch.values()), None))
    elif isinstance(batch, Sequence) and not _are_images(batch):
        batch = batch[0] if len(batch) else None
    if not isinstance(batch, Tensor) and not _are_images(batch):
        raise DataError(
            f"a batch holds {type(batch).__name__}; expected a tensor or a list of images, a tuple that begins with "
            'one, or a dictionary with "pixel_values"'
        )
    return batch
