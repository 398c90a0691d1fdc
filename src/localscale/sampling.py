"""Reading an image between its pixels.

A sampler takes NCHW features and, for every output pixel, the place to read in pixels ``(B, H, W, 2)``, already inside
the image. All agree; they differ in what they cost and how often they can be differentiated.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.conventions import displacement_to_grid_sample, to_grid_sample

__all__ = ["SAMPLERS", "sample_displaced", "sample_gather", "sample_native", "sample_nearest"]


def sample_native(x: Tensor, pixels: Tensor) -> Tensor:
    """Bilinear, by PyTorch's own kernel: fast, and differentiable once.

    ``grid_sample`` wants positions in [−1,1], which costs up to 1e-5 pixel of rounding. A batch entry that looks
    nowhere but at its own pixels gets its input back exactly, with the kernel's gradient.
    """
    dtype = torch.promote_types(x.dtype, pixels.dtype)
    grid = to_grid_sample(pixels.to(dtype))
    sampled = F.grid_sample(x.to(dtype), grid, mode="bilinear", padding_mode="border", align_corners=True).to(x.dtype)
    still = _looks_at_itself(pixels)[:, None, None, None]
    if not torch.is_grad_enabled():
        return torch.where(still, x, sampled)
    return torch.where(still, x.detach() + (sampled - sampled.detach()), sampled)


def sample_displaced(x: Tensor, displacement: Tensor, moves: Tensor) -> Tensor:
    """``sample_native`` at p + ``displacement``, without gradients and with fewer intermediate tensors.

    ``moves`` ``(B,)`` says which maps move anything; under the others ``x`` stays as it is.
    """
    dtype = torch.promote_types(x.dtype, displacement.dtype)
    grid = displacement_to_grid_sample(displacement.to(dtype)).expand(len(x), -1, -1, -1)
    sampled = F.grid_sample(x.to(dtype), grid, mode="bilinear", padding_mode="border", align_corners=True).to(x.dtype)
    if x.device.type == "cpu" and moves.all():  # looking costs nothing there
        return sampled
    return torch.where(~moves[:, None, None, None], x, sampled)  # laid out as x is, whose bits may stay


def _looks_at_itself(pixels: Tensor) -> Tensor:
    _, height, width, _ = pixels.shape
    rows = torch.arange(height, dtype=pixels.dtype, device=pixels.device)[:, None].expand(height, width)
    columns = torch.arange(width, dtype=pixels.dtype, device=pixels.device).expand(height, width)
    return (pixels == torch.stack((columns, rows), dim=-1)).flatten(1).all(dim=1)


def sample_gather(x: Tensor, pixels: Tensor) -> Tensor:
    """Bilinear, from four gathers: slower, and differentiable as often as wanted."""
    _, channels, height, width = x.shape
    pixels = pixels.to(torch.promote_types(x.dtype, pixels.dtype))
    corner = pixels.detach().floor().nan_to_num(0)  # a lost position still gives NaN, by its weights
    weight = (pixels - corner).unsqueeze(1)
    x0, y0 = corner[..., 0].long(), corner[..., 1].long()
    x1, y1 = (x0 + 1).clamp_max(width - 1), (y0 + 1).clamp_max(height - 1)
    flat = x.flatten(2).to(pixels.dtype)

    def read(row: Tensor, column: Tensor) -> Tensor:
        index = (row * width + column).flatten(1).unsqueeze(1).expand(-1, channels, -1)
        return flat.gather(2, index).unflatten(2, pixels.shape[1:3])

    s, t = weight[..., 0], weight[..., 1]
    top = read(y0, x0) * (1 - s) + read(y0, x1) * s
    bottom = read(y1, x0) * (1 - s) + read(y1, x1) * s
    return (top * (1 - t) + bottom * t).to(x.dtype)


def sample_nearest(x: Tensor, pixels: Tensor) -> Tensor:
    """The nearest pixel's value, of any dtype, untouched; ties go to the even pixel, as in PyTorch."""
    _, channels, _, width = x.shape
    nearest = pixels.round().nan_to_num(0).long()
    index = (nearest[..., 1] * width + nearest[..., 0]).flatten(1).unsqueeze(1).expand(-1, channels, -1)
    return x.flatten(2).gather(2, index).unflatten(2, pixels.shape[1:3])


SAMPLERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"native": sample_native, "gather": sample_gather}
