"""Two real digits per image, each at a size of its own: a small locally scaled MNIST.

The label is the two-digit number, so there are a hundred classes. A digit's size is its local scale times 16 pixels.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.lab.data import embedded_digits

SIDE = 64
UNIT = 16  # pixels of a digit at scale 1
SCALES = (0.5, 2.0)
# Centres of the two digits as fractions of the side: in a row, in a column, on a diagonal.
LAYOUTS = torch.tensor([[[0.27, 0.5], [0.73, 0.5]], [[0.5, 0.27], [0.5, 0.73]], [[0.27, 0.27], [0.73, 0.73]]])


@dataclass(frozen=True)
class Scenes:
    """The content of N images: indices of digits ``(N, 2)``, layouts ``(N,)`` and labels ``(N,)``."""

    digits: Tensor
    layouts: Tensor
    labels: Tensor


def draw_scenes(classes: Tensor, count: int, generator: torch.Generator) -> Scenes:
    """Draw ``count`` random pairs of digits in random layouts."""
    digits = torch.randint(len(classes), (count, 2), generator=generator)
    layouts = torch.randint(len(LAYOUTS), (count,), generator=generator)
    return Scenes(digits, layouts, classes[digits[:, 0]] * 10 + classes[digits[:, 1]])


def random_scales(count: int, generator: torch.Generator) -> Tensor:
    """Draw two local scales per image, uniform on a logarithmic scale, ``(count, 2)``."""
    low, high = SCALES
    return low * (high / low) ** torch.rand(count, 2, generator=generator)


def render(images: Tensor, scenes: Scenes, scales: Tensor) -> Tensor:
    """Render images ``(N, 1, 64, 64)`` in [0,1]: each digit is resized on its own, anti-aliased and never cropped."""
    canvas = torch.zeros(len(scales), SIDE, SIDE)
    for n, (digits, layout, factors) in enumerate(zip(scenes.digits, scenes.layouts, scales, strict=True)):
        for digit, centre, factor in zip(digits, LAYOUTS[layout], factors, strict=True):
            size = max(4, round(float(factor) * UNIT))
            small = F.interpolate(images[digit][None, None], size=(size, size), mode="bilinear", antialias=True)[0, 0]
            left, top = (int(min(max(round(float(c) * SIDE - size / 2), 0), SIDE - size)) for c in centre)
            patch = canvas[n, top : top + size, left : left + size]
            torch.maximum(patch, small, out=patch)
    return canvas.unsqueeze(1)


@dataclass(frozen=True)
class Digits:
    """The images that the demo trains and tests on, ``(N, 1, 64, 64)`` in [0,1]."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    variants: list[Tensor]  # the test scenes at other local scales
    by_scale: dict[float, Tensor]  # the test scenes with both digits at one scale


def make_digits(
    seed: int, *, train_count: int, test_count: int, variants: int, test_scales: tuple[float, ...]
) -> Digits:
    """Render all images; all random numbers come from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    train_digits, test_digits = embedded_digits(train=True), embedded_digits(train=False)
    train_images, test_images = train_digits.images / 255, test_digits.images / 255
    train = draw_scenes(train_digits.labels, train_count, generator)
    test = draw_scenes(test_digits.labels, test_count, generator)
    return Digits(
        train=render(train_images, train, random_scales(train_count, generator)),
        train_labels=train.labels,
        test=render(test_images, test, random_scales(test_count, generator)),
        test_labels=test.labels,
        variants=[render(test_images, test, random_scales(test_count, generator)) for _ in range(variants)],
        by_scale={s: render(test_images, test, torch.full((test_count, 2), s)) for s in test_scales},
    )
