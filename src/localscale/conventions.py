"""Coordinates of pixels, for all of the library.

Convention: the image domain is [0,1]², x to the right, y down. Pixel (row i, column j) of an H×W grid sits at
(j/(W−1), i/(H−1)), which PyTorch calls ``align_corners=True``. Outside the domain the border value continues. Points
are (x, y) pairs in the last dimension. This holds for images, features, tokens and label maps alike.
"""

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "compute_dtype",
    "coordinates",
    "displacement_to_grid_sample",
    "full_precision",
    "lattice",
    "pixel_positions",
    "resize",
    "resize_cubic",
    "resize_matrix",
    "resized_positions",
    "stretch",
    "to_grid_sample",
    "xy_pair",
]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of maps and solvers for features of ``dtype``: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@contextlib.contextmanager
def full_precision(device_type: str) -> Iterator[None]:
    """Return a context without autocast, because coordinates and solvers need full precision."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        with torch.autocast(device_type, enabled=False):
            yield
    else:
        yield


def coordinates(size: int, *, dtype: torch.dtype, device: torch.device | str | None = None) -> Tensor:
    """Return the positions of ``size`` evenly spaced samples on [0,1], shape ``(size,)``; a single sample sits at 0.

    >>> coordinates(3, dtype=torch.float32)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return torch.arange(size, dtype=dtype, device=device) / max(size - 1, 1)


def xy_pair(x: float, y: float, like: Tensor) -> Tensor:
    """Return (x, y) with the dtype and device of ``like``, without a copy from the host, as CUDA graphs require."""
    return torch.stack([torch.full((), value, dtype=like.dtype, device=like.device) for value in (x, y)])


def lattice(height: int, width: int, *, dtype: torch.dtype, device: torch.device | str | None = None) -> Tensor:
    """Return the (x, y) position of every pixel of a ``height × width`` grid, shape ``(H, W, 2)``."""
    y, x = torch.meshgrid(
        coordinates(height, dtype=dtype, device=device), coordinates(width, dtype=dtype, device=device), indexing="ij"
    )
    return torch.stack((x, y), dim=-1)


def pixel_positions(displacement: Tensor) -> Tensor:
    """Return the pixel positions p + ``displacement`` at which an image is sampled, both ``(B, H, W, 2)``.

    ``displacement`` is l(p) − p in [0,1] units. It is added to integer positions, so a zero displacement gives whole
    pixels without rounding.
    """
    _, height, width, _ = displacement.shape
    rows = torch.arange(height, dtype=displacement.dtype, device=displacement.device)[:, None]
    columns = torch.arange(width, dtype=displacement.dtype, device=displacement.device)[None, :]
    x = torch.add(columns, displacement[..., 0], alpha=width - 1).clamp_(0, width - 1)
    y = torch.add(rows, displacement[..., 1], alpha=height - 1).clamp_(0, height - 1)
    return torch.stack((x, y), dim=-1)


def resized_positions(displacement: Tensor, height: int, width: int) -> Tensor:
    """Return where an image of ``height × width`` pixels is sampled to get one of the size of ``displacement``.

    The positions are in pixels of the sampled image, ``(B, h, w, 2)``; ``displacement`` is l(p) − p in [0,1] units.
    """
    points = lattice(*displacement.shape[1:3], dtype=displacement.dtype, device=displacement.device) + displacement
    return points.clamp(0, 1) * xy_pair(width - 1, height - 1, points)


def to_grid_sample(pixels: Tensor) -> Tensor:
    """Convert pixel positions ``(B, H, W, 2)`` to the [−1,1] units of ``torch.nn.functional.grid_sample``."""
    _, height, width, _ = pixels.shape
    half = xy_pair(max(width - 1, 1) / 2, max(height - 1, 1) / 2, pixels)
    return torch.addcdiv(-torch.ones_like(half), pixels, half)  # one pass


def displacement_to_grid_sample(displacement: Tensor) -> Tensor:
    """Return ``to_grid_sample(pixel_positions(displacement))`` without a gradient and without intermediate tensors.

    Positions may lie outside [−1,1]; ``grid_sample`` must use ``padding_mode="border"``.
    """
    _, height, width, _ = displacement.shape
    grid = torch.empty_like(displacement, memory_format=torch.contiguous_format)
    for axis, size in enumerate((width, height)):
        pixels = torch.arange(size, dtype=displacement.dtype, device=displacement.device)
        position = torch.add(
            pixels if axis == 0 else pixels[:, None], displacement[..., axis], alpha=size - 1, out=grid[..., axis]
        )
        position.div_(max(size - 1, 1) / 2).sub_(1)
    return grid


def stretch(x: Tensor, height: int, width: int) -> Tensor:
    """Interpolate NCHW features linearly to a larger grid; corners stay on corners.

    It has no anti-aliasing; use ``resize`` or ``resize_cubic`` to shrink. An unchanged size returns ``x`` itself.
    """
    if x.shape[-2:] == (height, width):
        return x
    return F.interpolate(x, size=(height, width), mode="bilinear", align_corners=True)


def resize(x: Tensor, height: int, width: int) -> Tensor:
    """Resize NCHW features with an anti-aliased linear filter whose corners stay on the corners.

    Every output is a local linear fit around its own position, weighted by a tent as wide as the spacing of the
    outputs: nothing is skipped when shrinking, and a straight ramp stays straight up to the border. An unchanged size
    returns ``x`` itself.
    """
    if x.shape[-2:] == (height, width):
        return x
    return _resized(x, height, width, resize_matrix)


def resize_cubic(x: Tensor, height: int, width: int) -> Tensor:
    """Resize NCHW images with an anti-aliased cubic filter whose corners stay on the corners.

    It keeps more detail than ``resize``. The filter is Keys' cubic with a = −½, as wide as the spacing of the outputs
    where that is more than a pixel. Beyond the border the image continues by odd reflection, x(−p) = 2 x(0) − x(p), so
    a straight ramp stays straight. Values may overshoot those of ``x``. An unchanged size returns ``x`` itself.

    >>> resize_cubic(torch.rand(1, 3, 448, 448), 224, 224).shape
    torch.Size([1, 3, 224, 224])
    """
    if x.shape[-2:] == (height, width):
        return x
    return _resized(x, height, width, _cubic_matrix)


def _resized(x: Tensor, height: int, width: int, matrix: Callable[..., Tensor]) -> Tensor:
    """Return ``x`` resized along each axis by ``matrix``(size, new size, dtype, device) ``(new size, size)``."""
    exact = compute_dtype(x.dtype)  # weights in half precision do not sum to one
    rows = matrix(x.shape[-2], height, exact, x.device)
    columns = matrix(x.shape[-1], width, exact, x.device)
    with full_precision(x.device.type):
        return (rows @ x.to(exact) @ columns.T).to(x.dtype)


def resize_matrix(size: int, new: int, exact: torch.dtype, device: torch.device) -> Tensor:
    """Return one row of weights per output, ``(new, size)``; a row sums to one and is balanced about its position."""
    centres = coordinates(new, dtype=exact, device=device)[:, None] * (size - 1)
    offset = torch.arange(size, dtype=exact, device=device) - centres
    reach = max((size - 1) / max(new - 1, 1), 1.0)
    tent = (1 - offset.abs() / reach).clamp_min(0)
    total, first, second = ((tent * offset**power).sum(dim=1, keepdim=True) for power in (0, 1, 2))
    spread = total * second - first.square()
    alone = spread <= torch.finfo(exact).eps * total.square()  # a single pixel under the tent
    return torch.where(alone, tent / total, tent * (second - first * offset) / torch.where(alone, 1, spread))


def _cubic_matrix(size: int, new: int, exact: torch.dtype, device: torch.device) -> Tensor:
    """Return one row of weights per output, ``(new, size)``; a row sums to one and is balanced about its position."""
    if size == 1:
        return torch.ones(new, 1, dtype=exact, device=device)
    centres = coordinates(new, dtype=exact, device=device)[:, None] * (size - 1)
    reach = max((size - 1) / max(new - 1, 1), 1.0)
    beyond = math.ceil(2 * reach) - 1  # so many pixels beyond the border are under the filter
    offset = torch.arange(-beyond, size + beyond, dtype=exact, device=device) - centres
    u = (offset.abs() / reach).clamp_max(2)
    weights = torch.where(u < 1, (1.5 * u - 2.5) * u * u + 1, ((2.5 - 0.5 * u) * u - 4) * u + 2)
    weights = weights / weights.sum(dim=1, keepdim=True)
    # The two pixels around the position take what is missing to the balance.
    before, after = (offset > -1) & (offset <= 0), (offset > 0) & (offset <= 1)
    weights = weights + (weights * offset).sum(dim=1, keepdim=True) * (before.to(exact) - after.to(exact))
    return _reflected(weights, size, beyond)


def _reflected(weights: Tensor, size: int, before: int) -> Tensor:
    """Return the weights ``(new, size)`` of an image's pixels, given those of pixels beyond its border as well.

    The first ``before`` columns of ``weights`` belong to pixels before the first one, the last ones to pixels after
    the last one, and there the image continues by odd reflection. A few pixels are reflected more than once.
    """
    turned = False
    while weights.shape[1] > size:
        outside, inside = weights[:, :before], weights[:, before:]
        inside = F.pad(inside, (0, max(0, before + 1 - inside.shape[1])))
        first = inside[:, :1] + 2 * outside.sum(dim=1, keepdim=True)
        mirrored = inside[:, 1 : before + 1] - outside.flip(1)
        weights = torch.cat((first, mirrored, inside[:, before + 1 :]), dim=1).flip(1)  # go on at the other end
        before, turned = weights.shape[1] - size, not turned
    return weights.flip(1) if turned else weights
