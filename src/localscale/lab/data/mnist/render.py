"""Drawing scenes in batches on any device: resizing is linear and separable, so an image is two matrix products.

A digit D at factor f is Wᵧ D Wₓᵀ, where a row of W holds the weights by which one pixel of the image reads the digit's
28 pixels: a triangle of half-width one source pixel, or 1/f where the digit shrinks, so that nothing aliases. The three
digits of an image are one product more, over 3 × 28 columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from localscale.errors import ConfigError
from localscale.lab.data.mnist.scenes import LAYOUTS, Scenes

__all__ = ["check_factors", "ink_centres", "render"]

SIDE = 28  # of a digit image, in pixels
INK = 20  # the largest side of the ink in MNIST
REFERENCE = 224  # the image size at which factor 1 leaves a digit's pixels as they are


def render(
    images: Tensor, centres: Tensor, scenes: Scenes, *, size: int, smallest: float, dtype: torch.dtype
) -> Tensor:
    """Images ``(B, 1, size, size)`` in [0,1] from digit images ``(N, 28, 28)`` and their ink's centres ``(N, 2)``.

    ``smallest`` bounds the factors from below; asking the tensor would make a GPU wait.

    Convention: pixel j of the image lies at j/(size−1), as everywhere, and a digit's ink is centred at its place in the
    layout. Other sizes than 224 show the same picture, smaller or larger.
    """
    factors = (scenes.factors * (size / REFERENCE)).to(dtype)
    layouts = torch.tensor(list(LAYOUTS.values()), dtype=dtype).to(factors.device, non_blocking=True)
    places = layouts[scenes.layouts] * (size - 1)
    middles = centres[scenes.digits].to(dtype)
    margin = math.ceil(max(1.0, REFERENCE / (smallest * size)))
    across = _weights(places[..., 0], middles[..., 0], factors, size, margin)
    down = _weights(places[..., 1], middles[..., 1], factors, size, margin)
    digits = images[scenes.digits].to(dtype) / 255
    rows = (down @ digits).transpose(1, 2).flatten(2)  # (B, size, 3·28)
    columns = across.transpose(2, 3).flatten(1, 2)  # (B, 3·28, size)
    return (rows @ columns).clamp_(0, 1).unsqueeze(1)


def ink_centres(images: Tensor) -> Tensor:
    """The centre (x, y) of each digit's bounding box, ``(N, 2)``, in pixels.

    Boxes are at most 20 pixels wide in MNIST, and centres of mass need not be near their middle: centring boxes is what
    keeps every digit whole at three times its size.
    """
    return torch.stack([_middle(images.amax(1) > 0), _middle(images.amax(2) > 0)], dim=-1)


def check_factors(factors: tuple[float, float], images: Tensor, size: int) -> None:
    """Refuse factors at which a digit would be cropped or would reach into its neighbour's place.

    A digit reaches half its ink's span, and one pixel of its own or of the image, from its centre.
    """
    low, high = factors
    if not (math.isfinite(low) and math.isfinite(high) and 0 < low <= high):
        raise ConfigError(f"factors are {low} to {high}; expected two positive numbers, the smaller first")
    half = max(INK - 1, *(int(_span(images.amax(axis) > 0).max()) for axis in (1, 2))) / 2
    room = (size - 1) / 6
    largest = room / (half + 1)
    if largest < 1:
        largest = (room - 1) / half
    largest *= REFERENCE / size
    if high > largest:
        raise ConfigError(f"a digit at factor {high} would be cropped; the largest that fits is {largest:.2f}")


def _middle(inked: Tensor) -> Tensor:
    """Halfway between the first and the last true entry of each row."""
    first, last = _ends(inked)
    return (first + last) / 2


def _span(inked: Tensor) -> Tensor:
    """How far apart the first and the last true entry of each row are."""
    first, last = _ends(inked)
    return last - first


def _ends(inked: Tensor) -> tuple[Tensor, Tensor]:
    marks = inked.byte()
    return marks.argmax(1), SIDE - 1 - marks.flip(1).argmax(1)


def _weights(places: Tensor, middles: Tensor, factors: Tensor, size: int, margin: int) -> Tensor:
    """How much each pixel of a line of the image reads of each pixel of a digit, ``(B, 3, size, 28)``."""
    sharpness = factors.clamp(max=1)[..., None, None]
    pixels = torch.arange(size, device=factors.device, dtype=factors.dtype)
    source = torch.arange(-margin, SIDE + margin, device=factors.device, dtype=factors.dtype)
    read_at = (pixels - places[..., None]) / factors[..., None] + middles[..., None]
    weights = (1 - (read_at[..., None] - source).abs() * sharpness).clamp(min=0)
    # A triangle that reaches past the digit's frame reads black there, so its weights count in the sum.
    total = weights.sum(-1, keepdim=True).clamp(min=torch.finfo(factors.dtype).tiny)
    return (weights / total)[..., margin : margin + SIDE]
