"""Things known from masks or boxes: where they are and how large they are, also through maps and on a coarse grid.

The log size of a thing is s* = ½ log A, where A is its area as a fraction of the frame's. Through a map u it becomes
s* − ½ log D, where D is the mean of det ∂u over the part of the thing that is seen. This is the size of the part times
the ratio of whole to part, so a thing that the frame cuts in a zoom keeps the size of the whole thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from localscale.conventions import coordinates
from localscale.errors import ShapeError

__all__ = ["IGNORED", "Things", "things_in_boxes", "things_in_masks"]

IGNORED = 255  # value of a mask that does not count, unless another is given; negative values never do
LARGEST_MASK = 256  # pixels along a side; larger masks are sampled
PAINTED = 128  # pixels along a side on which boxes are painted


@dataclass(frozen=True, eq=False)
class Things:
    """The thing that each pixel of a batch of images shows, and its size; both are ``(B, H, W)``.

    ``number`` is 0 for background, −1 for pixels that do not count, and otherwise the number of a thing, from 1 to at
    most H · W. ``size`` is the thing's log size. H and W need not be those of the images.
    """

    number: Tensor
    size: Tensor

    def __len__(self) -> int:
        return len(self.number)

    def through(self, points: Tensor, change: Tensor) -> Things:
        """Return the things seen at ``points`` ``(B, h, w, 2)``, where log sizes change by ``change`` ``(B, h, w)``."""
        height, width = self.number.shape[1:]
        column = (points[..., 0] * (width - 1)).round().long().clamp(0, width - 1)
        row = (points[..., 1] * (height - 1)).round().long().clamp(0, height - 1)
        place = (row * width + column).flatten(1)
        number = self.number.flatten(1).gather(1, place)
        size = self.size.flatten(1).gather(1, place)
        shrunk = self._mean(number, torch.exp(-2 * change).flatten(1))
        size = size - 0.5 * shrunk.clamp_min(1e-9).log().to(size)
        return Things(number.view_as(change), torch.where(number > 0, size, 0).view_as(change))

    def on_grid(self, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return log sizes, shares covered by things, and shares that count, each ``(B, height, width)``.

        A grid point averages the pixels around it with a tent; a log size is the mean over its pixels of things.
        """
        down, across = (
            _tents(pixels, samples, self.size)
            for pixels, samples in zip(self.number.shape[1:], (height, width), strict=True)
        )
        thing, counted = (self.number > 0).to(self.size), (self.number >= 0).to(self.size)
        covered, seen, size = (down @ field @ across.T for field in (thing, counted, thing * self.size))
        return size / covered.clamp_min(1e-6), covered / seen.clamp_min(1e-6), seen

    def without(self, lost: Tensor) -> Things:
        """Return the same things, except that the images with ``lost`` ``(B,)`` do not count."""
        return Things(torch.where(lost[:, None, None], -1, self.number), self.size)

    def mean_size(self) -> tuple[Tensor, Tensor]:
        """Return the mean log size of all things of the batch, and how many things there are."""
        sums, counts = self.each()
        some = counts > 0
        return (sums / counts.clamp_min(1)).where(some, 0).sum() / some.sum().clamp_min(1), some.sum()

    def each(self) -> tuple[Tensor, Tensor]:
        """Return the sum of the log sizes of each thing's pixels and their count, both ``(B, H · W)``."""
        number = self.number.flatten(1)
        slot, one = (number - 1).clamp_min(0), (number > 0).to(self.size)
        empty = torch.zeros_like(one)
        return empty.scatter_add(1, slot, one * self.size.flatten(1)), empty.scatter_add(1, slot, one)

    def _mean(self, number: Tensor, value: Tensor) -> Tensor:
        """Return, at each place, the mean of ``value`` over the places with the same ``number``, both ``(B, P)``."""
        slot = number.clamp_min(0)
        empty = value.new_zeros(len(value), self.number[0].numel() + 1)
        total = empty.scatter_add(1, slot, value)
        count = empty.scatter_add(1, slot, torch.ones_like(value))
        return (total / count.clamp_min(1)).gather(1, slot)


def things_in_masks(masks: Tensor, *, ignore_index: int = IGNORED) -> Things:
    """Return the things in masks ``(B, H, W)`` of integers: each value is one thing, and 0 is background.

    Pixels of value ``ignore_index``, or below 0, do not count. Nothing is read on the host.

    >>> found = things_in_masks(torch.tensor([[[0, 7], [7, 255]]]))
    >>> found.number, found.size.exp().square()[0, 0, 1]
    (tensor([[[ 0,  1],
             [ 1, -1]]]), tensor(0.5000))
    """
    if masks.dim() == 4 and masks.shape[1] == 1:
        masks = masks[:, 0]
    if masks.dim() != 3 or masks.is_floating_point() or masks.is_complex() or 0 in masks.shape:
        raise ShapeError(
            f"masks have shape {tuple(masks.shape)} and dtype {masks.dtype}; expected integers (B, H, W): 0 for "
            f"background, {ignore_index} for pixels that do not count, and another value for each thing"
        )
    rows, columns = (_places(side, masks.device) for side in masks.shape[1:])
    values = masks[:, rows][:, :, columns].long()
    shape, values = values.shape, values.flatten(1)
    ignored = (values < 0) | (values == ignore_index)
    ordered, order = torch.where(ignored, 0, values).sort(dim=1)
    step = torch.cat(((ordered[:, :1] > 0).long(), (ordered.diff(dim=1) > 0).long()), dim=1)
    number = torch.empty_like(values).scatter_(1, order, step.cumsum(dim=1))
    empty = torch.zeros(len(values), values.shape[1] + 1, device=masks.device)
    area = empty.scatter_add(1, number, torch.ones_like(number, dtype=empty.dtype)).gather(1, number)
    size = torch.where(number > 0, 0.5 * (area / values.shape[1]).log(), 0)
    return Things(torch.where(ignored, -1, number).view(shape), size.view(shape))


def things_in_boxes(boxes: Sequence[Tensor] | Tensor, device: torch.device | str | None = None) -> Things:
    """Return the things in boxes ``(N, 4)``, one tensor for each image; where boxes overlap, the smallest is seen.

    Parts outside the image are cut off, and boxes without area do not count.

    Convention: a box is (left, top, right, bottom) in [0,1]², x to the right and y down.

    >>> found = things_in_boxes([torch.tensor([[0.25, 0.25, 0.75, 0.75]]), torch.empty(0, 4)])
    >>> found.size[0].min().exp(), bool(found.number[1].any())
    (tensor(0.5000), False)
    """
    for box in boxes:
        if box.dim() != 2 or box.shape[1] != 4 or not box.is_floating_point():
            raise ShapeError(
                f"boxes of an image have shape {tuple(box.shape)} and dtype {box.dtype}; expected floating point "
                "(N, 4): left, top, right, bottom as fractions of the image"
            )
    padded = torch.zeros(len(boxes), max((len(box) for box in boxes), default=0), 4)
    for image, box in enumerate(boxes):
        padded[image, : len(box)] = box.detach().float().cpu()
    padded = padded.nan_to_num().clamp(0, 1)
    area = (padded[..., 2:] - padded[..., :2]).clamp_min(0).prod(dim=2)
    area, order = area.sort(dim=1, descending=True)
    padded = padded.gather(1, order[..., None].expand(-1, -1, 4)).to(device)
    area = area.to(device)
    place = coordinates(PAINTED, dtype=padded.dtype, device=padded.device)
    number = torch.zeros(len(boxes), PAINTED, PAINTED, dtype=torch.long, device=padded.device)
    size = torch.zeros_like(number, dtype=padded.dtype)
    for index in range(padded.shape[1]):  # the smallest last
        left, top, right, bottom = padded[:, index, :, None].unbind(dim=1)
        across, down = (left <= place) & (place <= right), (top <= place) & (place <= bottom)
        inside = down[:, :, None] & across[:, None, :] & (area[:, index] > 0)[:, None, None]
        number = torch.where(inside, index + 1, number)
        size = torch.where(inside, 0.5 * area[:, index].clamp_min(1e-12).log()[:, None, None], size)
    return Things(number, size)


def _places(side: int, device: torch.device) -> Tensor:
    """Return the pixels of a side to keep: all of them, or ``LARGEST_MASK`` even ones with both ends."""
    kept = min(side, LARGEST_MASK)
    return (coordinates(kept, dtype=torch.float64, device=device) * (side - 1)).round().long()


def _tents(pixels: int, samples: int, like: Tensor) -> Tensor:
    """Return the share of each of ``pixels`` places in each of ``samples`` tents over [0,1]; rows sum to one."""
    places = coordinates(pixels, dtype=like.dtype, device=like.device) * (samples - 1)
    centres = torch.arange(samples, dtype=like.dtype, device=like.device)
    tents = (1 - (places - centres[:, None]).abs()).clamp_min(0)
    return tents / tents.sum(dim=1, keepdim=True).clamp_min(1e-6)
