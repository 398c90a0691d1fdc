"""Sample images between their pixels.

A sampler takes NCHW features and, for every output pixel, a position in pixels ``(B, H, W, 2)`` inside the image. All
samplers give the same values; they differ in speed and in how often they can be differentiated. Their ``mode`` is
``"bilinear"``, or ``"bicubic"``: sharper, with four pixels along each axis, clamped to the image, and a = −¾ in Keys'
cubic, as in PyTorch and ONNX.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.conventions import displacement_to_grid_sample, to_grid_sample

__all__ = ["SAMPLERS", "sample_displaced", "sample_gather", "sample_native", "sample_nearest"]


def sample_native(x: Tensor, pixels: Tensor, mode: str = "bilinear") -> Tensor:
    """Sample with ``torch.nn.functional.grid_sample``: fast, and differentiable once.

    ``grid_sample`` takes positions in [−1,1], which rounds them by up to 1e-5 pixel. If every pixel of an image is
    sampled at its own position, the output is the input exactly, with the gradient of ``grid_sample``.
    """
    dtype = torch.promote_types(x.dtype, pixels.dtype)
    grid = to_grid_sample(pixels.to(dtype))
    sampled = F.grid_sample(x.to(dtype), grid, mode=mode, padding_mode="border", align_corners=True).to(x.dtype)
    still = _samples_own_pixels(pixels)[:, None, None, None]
    if not torch.is_grad_enabled():
        return torch.where(still, x, sampled)
    return torch.where(still, x.detach() + (sampled - sampled.detach()), sampled)


def sample_displaced(x: Tensor, displacement: Tensor, moves: Tensor, mode: str = "bilinear") -> Tensor:
    """Sample at p + ``displacement`` like ``sample_native``, without gradients and with fewer intermediate tensors.

    ``moves`` ``(B,)`` is false for maps that are the identity; their images are returned unchanged. The memory layout
    of the result does not depend on ``moves``, because the layers that follow round differently in another layout.
    """
    dtype = torch.promote_types(x.dtype, displacement.dtype)
    grid = displacement_to_grid_sample(displacement.to(dtype)).expand(len(x), -1, -1, -1)
    sampled = F.grid_sample(x.to(dtype), grid, mode=mode, padding_mode="border", align_corners=True).to(x.dtype)
    # On a CPU ``moves`` is read, because most batches move as a whole. The copy that is saved then has the same layout.
    if x.device.type == "cpu" and x.is_contiguous() and moves.all():
        return sampled
    return torch.where(~moves[:, None, None, None], x, sampled)  # in the memory format of x


def _samples_own_pixels(pixels: Tensor) -> Tensor:
    _, height, width, _ = pixels.shape
    rows = torch.arange(height, dtype=pixels.dtype, device=pixels.device)[:, None].expand(height, width)
    columns = torch.arange(width, dtype=pixels.dtype, device=pixels.device).expand(height, width)
    return (pixels == torch.stack((columns, rows), dim=-1)).flatten(1).all(dim=1)


def sample_gather(x: Tensor, pixels: Tensor, mode: str = "bilinear") -> Tensor:
    """Sample with four gathers, or sixteen: slower, and differentiable any number of times."""
    _, channels, height, width = x.shape
    pixels = pixels.to(torch.promote_types(x.dtype, pixels.dtype))
    corner = pixels.detach().floor().nan_to_num(0)  # a NaN position still gives NaN, through its weight
    place = (pixels - corner).unsqueeze(1)
    x0, y0 = corner[..., 0].long(), corner[..., 1].long()
    flat = x.flatten(2).to(pixels.dtype)

    def read(row: Tensor, column: Tensor) -> Tensor:
        index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).flatten(1).unsqueeze(1)
        return flat.gather(2, index.expand(-1, channels, -1)).unflatten(2, pixels.shape[1:3])

    first, weights = (-1, _cubic_weights) if mode == "bicubic" else (0, _linear_weights)
    by_column, by_row = weights(place[..., 0]), weights(place[..., 1])
    sampled = torch.zeros((), dtype=pixels.dtype, device=x.device)
    for down, weight_down in enumerate(by_row):
        values = [weight * read(y0 + first + down, x0 + first + right) for right, weight in enumerate(by_column)]
        sampled = sampled + weight_down * torch.stack(values).sum(dim=0)
    return sampled.to(x.dtype)


def _linear_weights(t: Tensor) -> list[Tensor]:
    return [1 - t, t]


def _cubic_weights(t: Tensor) -> list[Tensor]:
    """Return the weights of four pixels, for a position at the fraction ``t`` between the second and the third."""
    near = [(1.25 * u - 2.25) * u * u + 1 for u in (t, 1 - t)]
    far = [((3.75 - 0.75 * u) * u - 6) * u + 3 for u in (1 + t, 2 - t)]
    return [far[0], *near, far[1]]


def sample_nearest(x: Tensor, pixels: Tensor) -> Tensor:
    """Return the value of the nearest pixel, in any dtype; ties go to the even pixel, as in PyTorch."""
    _, channels, _, width = x.shape
    nearest = pixels.round().nan_to_num(0).long()
    index = (nearest[..., 1] * width + nearest[..., 0]).flatten(1).unsqueeze(1).expand(-1, channels, -1)
    return x.flatten(2).gather(2, index).unflatten(2, pixels.shape[1:3])


SAMPLERS: dict[str, Callable[..., Tensor]] = {"native": sample_native, "gather": sample_gather}
