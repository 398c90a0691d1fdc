"""Render batches of digit triples on any device. Resizing is linear and separable, so an image is two matrix products.

A digit D at factor f becomes Wᵧ D Wₓᵀ. A row of W holds the weights of the digit's 28 pixels in one pixel of the
image: a triangle of half-width one source pixel, or 1/f if the digit shrinks, to avoid aliasing. A product over 3 × 28
columns sums the three digits of an image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from localscale.errors import ConfigError
from localscale.lab.data.mnist.triples import LAYOUTS, DigitTriples

__all__ = ["check_factors", "ink_centres", "render"]

SIDE = 28  # of a digit image, in pixels
INK = 20  # the largest side of the ink in MNIST
REFERENCE = 224  # the image size at which factor 1 keeps a digit's pixels unchanged


def render(
    images: Tensor, centres: Tensor, triples: DigitTriples, *, size: int, smallest: float, dtype: torch.dtype
) -> Tensor:
    """Return images ``(B, 1, size, size)`` in [0,1] from digit images ``(N, 28, 28)`` and ink centres ``(N, 2)``.

    ``smallest`` is a lower bound of the factors; computing it from the tensor would cost a host synchronisation.

    Convention: pixel j of the image lies at j/(size−1), as everywhere, and a digit's ink is centred at its position in
    the layout. Sizes other than 224 show the same picture, smaller or larger.
    """
    factors = (triples.factors * (size / REFERENCE)).to(dtype)
    layouts = torch.tensor(list(LAYOUTS.values()), dtype=dtype).to(factors.device, non_blocking=True)
    positions = layouts[triples.layouts] * (size - 1)
    middles = centres[triples.digits].to(dtype)
    margin = math.ceil(max(1.0, REFERENCE / (smallest * size)))
    across = _weights(positions[..., 0], middles[..., 0], factors, size, margin)
    down = _weights(positions[..., 1], middles[..., 1], factors, size, margin)
    digits = images[triples.digits].to(dtype) / 255
    rows = (down @ digits).transpose(1, 2).flatten(2)  # (B, size, 3·28)
    columns = across.transpose(2, 3).flatten(1, 2)  # (B, 3·28, size)
    return (rows @ columns).clamp_(0, 1).unsqueeze(1)


def ink_centres(images: Tensor) -> Tensor:
    """Return the centre (x, y) of each digit's bounding box, ``(N, 2)``, in pixels.

    The layout centres these boxes, not the centres of mass: MNIST's boxes are at most 20 pixels wide, so every digit
    fits at factor 3.
    """
    middles = []
    for axis in (1, 2):
        first, last = _ends(images.amax(axis) > 0)
        middles.append((first + last) / 2)
    return torch.stack(middles, dim=-1)


def check_factors(factors: tuple[float, float], images: Tensor, size: int) -> None:
    """Raise ``ConfigError`` if a digit at the largest factor would be cropped or would overlap its neighbour.

    A digit extends from its centre by half the span of its ink, plus one pixel for interpolation: a pixel of the digit
    if the digit is enlarged, of the image if it shrinks.
    """
    low, high = factors
    if not (math.isfinite(low) and math.isfinite(high) and 0 < low <= high):
        raise ConfigError(f"factors are {low} to {high}; expected two positive numbers, the smaller first")
    smallest = REFERENCE / size / (2 * SIDE)
    if low < smallest:  # the pixels around a digit that are read grow without bound
        raise ConfigError(
            f"a digit at factor {low} would be smaller than half a pixel; expected at least {smallest:.3g}"
        )
    ends = [_ends(images.amax(axis) > 0) for axis in (1, 2)]
    half = max(INK - 1, *(int((last - first).max()) for first, last in ends)) / 2
    room = (size - 1) / 6
    largest = room / (half + 1)
    if largest < 1:
        largest = (room - 1) / half
    largest *= REFERENCE / size
    if high > largest:
        raise ConfigError(f"a digit at factor {high} would be cropped; the largest that fits is {largest:.2f}")


def _ends(inked: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the first and the last true entry of each row."""
    marks = inked.byte()
    return marks.argmax(1), SIDE - 1 - marks.flip(1).argmax(1)


def _weights(positions: Tensor, middles: Tensor, factors: Tensor, size: int, margin: int) -> Tensor:
    """Return the weight of each digit pixel in each pixel of an image line, ``(B, 3, size, 28)``."""
    sharpness = factors.clamp(max=1)[..., None, None]
    pixels = torch.arange(size, device=factors.device, dtype=factors.dtype)
    source = torch.arange(-margin, SIDE + margin, device=factors.device, dtype=factors.dtype)
    read_at = (pixels - positions[..., None]) / factors[..., None] + middles[..., None]
    weights = (1 - (read_at[..., None] - source).abs() * sharpness).clamp(min=0)
    # Each triangle is normalised over ``margin`` black pixels around the digit, too, so edge pixels are not brightened.
    total = weights.sum(-1, keepdim=True).clamp(min=torch.finfo(factors.dtype).tiny)
    return (weights / total)[..., margin : margin + SIDE]
