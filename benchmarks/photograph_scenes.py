"""Draw training examples: random crops of photographs, and cut-out things pasted onto backgrounds.

All of it runs on the device of the photographs. Examples are images in [0, 1] and boxes ``(B, N, 4)`` in fractions of
them. Where boxes overlap, the later one counts.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.photograph_data import MOST, SIDE, Cutouts, Photographs
from localscale.conventions import coordinates

__all__ = ["compose", "crop", "without_things"]

DENSE = 2  # samples per pixel along an axis, so that shrunk photographs do not alias
ZOOM, BACKGROUND_ZOOM = (0.95, 2.0), (1.0, 1.5)
PASTED = (0.1, 0.75)  # side of a pasted thing, as a fraction of the frame
COUNTS = (0.1, 0.75)  # shares of scenes with no thing, and with at most one; the others have two
STRETCH = 0.3  # range of the log aspect ratio
FLAT = 0.1  # share of scenes on a smooth background
GREY = 0.1  # share of grey images


def crop(photographs: Photographs, side: int, *, zoom: tuple[float, float] = ZOOM) -> tuple[Tensor, Tensor]:
    """Return random crops of ``side`` pixels, mirrored at random and with random colours, and the boxes in them.

    A zoom below 1 shows more than the photograph, mirrored at its border.
    """
    count, device = len(photographs), photographs.images.device
    ratio = _between(count, zoom, device)
    stretch = torch.exp((torch.rand(count, device=device) - 0.5) * STRETCH)
    size = torch.stack((stretch / ratio, 1 / (stretch * ratio)), dim=1)
    start = torch.rand(count, 2, device=device) * (1 - size)
    flip = torch.rand(count, device=device) < 0.5
    places = _pixels(side * DENSE, device)
    x = start[:, :1] + size[:, :1] * torch.where(flip[:, None], 1 - places, places)
    y = start[:, 1:] + size[:, 1:] * places
    images = _sample(photographs.images, x, y, padding="reflection")
    boxes = (photographs.boxes - start.repeat(1, 2)[:, None]) / size.repeat(1, 2)[:, None]
    left, top, right, bottom = boxes.unbind(dim=-1)
    mirrored = torch.stack((1 - right, top, 1 - left, bottom), dim=-1)
    return _change_colours(F.avg_pool2d(images, DENSE)), torch.where(flip[:, None, None], mirrored, boxes)


def compose(backgrounds: Photographs, cutouts: Cutouts, count: int, side: int) -> tuple[Tensor, Tensor]:
    """Return ``count`` backgrounds with up to two things pasted at random places, and all boxes in them."""
    device = backgrounds.images.device
    drawn = backgrounds.at(torch.randint(len(backgrounds), (count,), device=device))
    images, boxes = crop(drawn, side * DENSE, zoom=BACKGROUND_ZOOM)
    flat = torch.rand(count, 1, 1, 1, device=device) < FLAT
    images = torch.where(flat, _smooth(count, side * DENSE, device), images)
    boxes = torch.where(flat[:, 0], torch.nan, boxes[:, : MOST - len(COUNTS)])  # the smallest make room
    chance = torch.rand(count, device=device)
    for least in COUNTS:
        images, box = _paste(images, cutouts, chance >= least)
        box = torch.where((chance >= least)[:, None], box, torch.nan)
        boxes = torch.cat((boxes, box[:, None]), dim=1)
    return _change_colours(F.avg_pool2d(images, DENSE)), boxes


def without_things(count: int, side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return smooth and noisy images in which there is nothing."""
    noise = torch.rand(count, 3, side, side, device=device) - 0.5
    images = _smooth(count, side, device) + noise * 0.3 * torch.rand(count, 1, 1, 1, device=device).square()
    return images.clamp(0, 1), torch.full((count, MOST, 4), torch.nan, device=device)


def _paste(images: Tensor, cutouts: Cutouts, pasted: Tensor) -> tuple[Tensor, Tensor]:
    count, device = len(images), images.device
    chosen = torch.randint(len(cutouts), (count,), device=device)
    shape = cutouts.sizes[chosen]
    stretch = torch.exp((torch.rand(count, device=device) - 0.5) * STRETCH) * (shape[:, 0] / shape[:, 1]).sqrt()
    side = _between(count, PASTED, device)
    size = torch.stack((side * stretch, side / stretch), dim=1)
    start = 0.05 + 0.9 * torch.rand(count, 2, device=device) - size / 2
    places = _pixels(images.shape[-1], device)
    x, y = ((places - start[:, axis, None]) / size[:, axis, None] for axis in (0, 1))
    inside = ((y >= 0) & (y <= 1))[:, None, :, None] & ((x >= 0) & (x <= 1))[:, None, None, :]
    x = torch.where((torch.rand(count, device=device) < 0.5)[:, None], 1 - x, x)
    things = _sample(cutouts.images[chosen], x * shape[:, :1] / SIDE, y * shape[:, 1:] / SIDE, padding="zeros")
    alpha = things[:, 3:] * inside * pasted[:, None, None, None]
    light = 0.8 + 0.4 * torch.rand(count, 1, 1, 1, device=device)
    return torch.lerp(images, (things[:, :3] * light).clamp(0, 1), alpha), torch.cat((start, start + size), dim=1)


def _sample(images: Tensor, x: Tensor, y: Tensor, *, padding: str) -> Tensor:
    """Return bytes ``(B, C, 256, 256)`` in [0, 1] at all pairs of ``y`` ``(B, h)`` and ``x`` ``(B, w)``.

    Convention: 0 and 1 are the outer edges of the image.
    """
    count, (height, width) = len(images), (y.shape[1], x.shape[1])
    grid = torch.stack((x[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)), dim=-1)
    assert len(grid) == count
    return F.grid_sample(images.float() / 255, 2 * grid - 1, padding_mode=padding, align_corners=False)


def _pixels(side: int, device: torch.device) -> Tensor:
    """Return the centres of ``side`` pixels as fractions of the image."""
    return (torch.arange(side, device=device) + 0.5) / side


def _between(count: int, limits: tuple[float, float], device: torch.device) -> Tensor:
    """Draw ``count`` factors whose logarithms are spread evenly."""
    low, high = (math.log(limit) for limit in limits)
    return torch.exp(low + torch.rand(count, device=device) * (high - low))


def _smooth(count: int, side: int, device: torch.device) -> Tensor:
    """Return images whose colours change evenly from corner to corner; half of them have one colour."""
    corners = torch.rand(count, 3, 2, 2, device=device)
    single = torch.rand(count, 1, 1, 1, device=device) < 0.5
    corners = torch.where(single, corners[:, :, :1, :1], corners)
    t = coordinates(side, dtype=corners.dtype, device=device)
    mix = torch.stack((1 - t, t), dim=1)
    return mix @ corners @ mix.T


def _change_colours(images: Tensor) -> Tensor:
    """Change brightness, contrast and saturation at random, and make some images grey."""

    def draw(reach: float) -> Tensor:
        return 1 + (2 * torch.rand(len(images), 1, 1, 1, device=images.device) - 1) * reach

    images = images * draw(0.3)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = (images - mean) * draw(0.3) + mean
    grey = images.mean(dim=1, keepdim=True)
    colour = draw(0.4) * (torch.rand_like(draw(0)) >= GREY)
    return (grey + (images - grey) * colour).clamp(0, 1)
