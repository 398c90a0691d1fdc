"""Locally scaled MNIST as a dataset, and as a renderer of whole batches on the training device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from localscale.errors import ConfigError, DataError, ShapeError
from localscale.lab.data.mnist.digits import Digits, load_digits
from localscale.lab.data.mnist.render import check_factors, ink_centres, render
from localscale.lab.data.mnist.triples import LAYOUTS, DigitsByClass, DigitTriples, draw_triples
from localscale.lab.data.written import DATASET

__all__ = ["BatchRenderer", "LocallyScaledMNIST", "describe"]

COUNTS = {"train": 6_000, "test": 50_000}


class LocallyScaledMNIST(Dataset[tuple[Any, Any]]):
    """Three digits, each resized on its own, read as a number from 0 to 999: ``(image, label)``.

    Images are 8-bit grey PIL images, 224×224, unless ``transform`` converts them. ``factors`` is the range from which
    each digit's scale factor is drawn; (0.4, 2.0) is the paper's, and up to (2, 3) nothing is cropped. Image ``index``
    depends on ``seed`` and ``index`` alone, not on worker, process or order. ``variant`` returns the same digits in
    the same places at other sizes.

    ``root`` and ``download`` select the digits (see ``load_digits``); ``digits.source`` names them.

    >>> from localscale.lab.data import embedded_digits
    >>> dataset = LocallyScaledMNIST(train=False, count=100, digits=embedded_digits(train=False))
    >>> image, label = dataset[7]
    >>> image.size, label
    ((224, 224), 504)
    >>> other, same_label = dataset.variant(7, 1)
    """

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        train: bool = True,
        count: int | None = None,
        seed: int = 0,
        factors: tuple[float, float] = (0.4, 2.0),
        image_size: int = 224,
        transform: Callable[[Image.Image], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        download: bool = False,
        digits: Digits | None = None,
    ) -> None:
        self.split = "train" if train else "test"
        self.count = COUNTS[self.split] if count is None else count
        if self.count < 1:
            raise ConfigError(f"count is {count}; expected at least 1")
        if image_size < 32:
            raise ConfigError(f"image_size is {image_size}; expected at least 32, because smaller digits vanish")
        if root is not None and (Path(root) / DATASET).is_file():
            raise DataError(f"{root} is a written dataset; read it with lab.data.LabelledImages({str(root)!r})")
        self.digits = load_digits(root, train=train, download=download) if digits is None else digits
        check_factors(factors, self.digits.images, image_size)
        self.seed, self.factors, self.image_size = seed, factors, image_size
        self.transform, self.target_transform = transform, target_transform
        self._by_class = DigitsByClass.of(self.digits.labels)
        if int(self._by_class.count.min()) == 0:
            raise DataError(f"the digits ({self.digits.source}) lack a class; each of 0 to 9 is needed")
        self._centres = ink_centres(self.digits.images)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return (
            f"LocallyScaledMNIST({self.split}, {self.count:,} images, seed {self.seed}, factors {self.factors}, "
            f"digits: {self.digits.source})"
        )

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.variant(index, 0)

    def variant(self, index: int, variant: int) -> tuple[Any, Any]:
        """Return image ``index`` at other sizes, and its label, both transformed; variant 0 is the image itself."""
        triple = self.triple(index, variant)
        image: Any = self.render(triple)
        label: Any = int(triple.labels)
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return image, label

    def triple(self, index: int, variant: int = 0) -> DigitTriples:
        """Return the digits, layout and sizes of image ``index``, as a batch of one."""
        if not -self.count <= index < self.count:
            raise IndexError(f"index {index} of a dataset of {self.count} images")
        return self._triples(torch.tensor([index]), self._by_class, variant)

    def _triples(self, index: Tensor, by_class: DigitsByClass, variant: int) -> DigitTriples:
        """Return the triples of the images ``index`` ``(B,)``, taken modulo the count, on the index's device."""
        if variant < 0:
            raise ConfigError(f"variant is {variant}; expected 0, the image itself, or more")
        return draw_triples(
            index % self.count, by_class, seed=self.seed, split=self.split, factors=self.factors, variant=variant
        )

    def render(self, triple: DigitTriples) -> Image.Image:
        """Return the image of one triple.

        The computation is in float64, and the rounding is moved away from the exact halves that integer factors
        produce, so that every machine rounds to the same pixels.
        """
        size, smallest = self.image_size, self.factors[0]
        pixels = render(self.digits.images, self._centres, triple, size=size, smallest=smallest, dtype=torch.float64)
        return Image.fromarray((255 * pixels[0, 0] + (0.5 + 1e-6)).numpy().astype(np.uint8))

    def renderer(self, device: str | torch.device = "cpu", *, dtype: torch.dtype = torch.float32) -> BatchRenderer:
        """Return a renderer of batches of these images on ``device``."""
        return BatchRenderer(self, torch.device(device), dtype)


class BatchRenderer:
    """Renders any batch of a ``LocallyScaledMNIST`` on a device, much faster than training consumes batches.

    Images are ``(B, 1, H, W)`` in [0,1], the dataset's before rounding to 8 bits. Transforms are not applied.

    >>> from localscale.lab.data import embedded_digits
    >>> dataset = LocallyScaledMNIST(count=100, digits=embedded_digits(train=True))
    >>> images, labels = dataset.renderer()(torch.tensor([3, 1, 99]))
    >>> images.shape, labels.shape
    (torch.Size([3, 1, 224, 224]), torch.Size([3]))
    """

    def __init__(self, dataset: LocallyScaledMNIST, device: torch.device, dtype: torch.dtype) -> None:
        self._dataset, self._dtype = dataset, dtype
        self._images = dataset.digits.images.to(device)
        self._centres = dataset._centres.to(device)
        self._by_class = dataset._by_class.to(device)
        self.device = device

    def __call__(self, index: Tensor, variant: int = 0) -> tuple[Tensor, Tensor]:
        """Return the images ``index`` ``(B,)``, taken modulo the count, or their ``variant``, and the labels."""
        triples = self.triples(index, variant)
        size, smallest = self._dataset.image_size, self._dataset.factors[0]
        images = render(self._images, self._centres, triples, size=size, smallest=smallest, dtype=self._dtype)
        return images, triples.labels

    def triples(self, index: Tensor, variant: int = 0) -> DigitTriples:
        """Return the digits, layouts and sizes of the images ``index`` ``(B,)``."""
        index = torch.as_tensor(index)
        if index.is_floating_point() or index.dim() != 1:
            raise ShapeError(f"index has shape {tuple(index.shape)} and {index.dtype}; expected (B,) of integers")
        return self._dataset._triples(index.to(self.device, torch.int64), self._by_class, variant)


def describe(triple: DigitTriples) -> dict[str, Any]:
    """Return the manifest entries of one triple."""
    return {
        "label": int(triple.labels),
        "layout": list(LAYOUTS)[int(triple.layouts)],
        "digits": triple.digits[0].tolist(),
        "scales": [round(factor, 6) for factor in triple.factors[0].tolist()],
    }
