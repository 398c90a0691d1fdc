"""Compare two methods on the same images: the difference of their mean scores, with an interval."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from localscale.errors import ConfigError, ShapeError

__all__ = ["Difference", "paired_difference"]

AT_ONCE = 2**22  # drawn groups that are held in memory


class Difference(NamedTuple):
    """The difference of two means, and the ends of its interval."""

    mean: float
    low: float
    high: float


def paired_difference(
    scores: Tensor,
    control: Tensor,
    *,
    groups: Tensor | None = None,
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Return the mean of ``scores`` minus that of ``control``, with the interval of a paired bootstrap over images.

    Scores of several seeds are averaged per image first, so the interval says how much the difference depends on the
    choice of test images, not on the seed. Images are drawn with replacement; images of one group, such as the locally
    scaled variants of one photograph, are drawn together. The interval spans the central ``level`` of the resampled
    differences.

    Args:
        scores: a score of each image, such as 1 for a right answer and 0 for a wrong one, ``(N,)`` or ``(seeds, N)``.
        control: the scores of the other method on the same images; the number of seeds may differ.
        groups: integers ``(N,)``, equal for images of one group; by default every image is its own group.
        resamples: number of resamples.
        level: probability of the interval.
        seed: seed of the resampling; equal inputs and seeds give equal intervals.

    >>> right, before = torch.tensor([1, 1, 0, 1, 1, 0]), torch.tensor([1, 0, 0, 1, 0, 0])
    >>> found = paired_difference(right, before)
    >>> round(found.mean, 3), found.low, round(found.high, 3)
    (0.333, 0.0, 0.667)
    """
    _check(scores, control, groups, resamples, level)
    difference = _per_image(scores) - _per_image(control)
    if groups is None:
        total, size = difference, torch.ones_like(difference)
    else:
        _, member = groups.cpu().unique(return_inverse=True)
        total, size = (
            torch.zeros(int(member.max()) + 1, dtype=torch.float64).index_add_(0, member, values)
            for values in (difference, torch.ones_like(difference))
        )
    generator = torch.Generator().manual_seed(seed)
    count, means = len(total), []
    for part in torch.arange(resamples).split(max(1, AT_ONCE // count)):
        drawn = torch.randint(count, (len(part), count), generator=generator)
        means.append(total[drawn].sum(1) / size[drawn].sum(1))
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.cat(means).quantile(ends).tolist()
    return Difference(float(difference.mean()), low, high)


def _per_image(scores: Tensor) -> Tensor:
    scores = scores.detach().cpu().double()
    return scores if scores.dim() == 1 else scores.mean(dim=0)


def _check(scores: Tensor, control: Tensor, groups: Tensor | None, resamples: int, level: float) -> None:
    shapes = f"scores have shape {tuple(scores.shape)} and those of the control {tuple(control.shape)}"
    fits = {scores.dim(), control.dim()} <= {1, 2} and scores.shape[-1] == control.shape[-1]
    if not fits or not scores.numel() or not control.numel():
        raise ShapeError(f"{shapes}; expected (images,) or (seeds, images) for both, with the same images")
    if groups is not None and (groups.shape != scores.shape[-1:] or groups.is_floating_point()):
        raise ShapeError(
            f"groups have shape {tuple(groups.shape)} of {groups.dtype}; expected one integer for each of the "
            f"{scores.shape[-1]} images"
        )
    for values in (scores, control):
        if not bool(values.isfinite().all()):
            raise ConfigError("a score is not finite; leave the image out of both methods")
    if resamples < 1 or not 0 < level < 1:
        raise ConfigError(
            f"resamples is {resamples} and level {level}; expected at least 1, and a probability between 0 and 1"
        )
