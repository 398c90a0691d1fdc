"""Zoom: the saliency sampler of Recasens et al., "Learning to Zoom" (ECCV 2018), as a baseline beside the paper's.

A small network finds salient places, and the image is sampled more densely there. The code is written from the
published equations, with two differences. The authors blur the sampled images in the first epochs of some tasks; this
code does not. Its last layer starts at zero, so that training starts from the backbone's answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localscale.conventions import compute_dtype, coordinates, resize, stretch
from localscale.errors import ConfigError
from localscale.lab.methods.method import Criterion, Method, backbone_size
from localscale.lab.randomness import Draws
from localscale.maps.grid import GridMap
from localscale.warp import unscale

__all__ = ["SaliencyCNN", "SaliencySampler", "Zoom", "sampling_displacement"]

POINTS = 16  # the displacement is logged on a lattice of this many points along each side


def sampling_displacement(saliency: Tensor, width: float) -> Tensor:
    """Return u − x and v − y of the sampling grid, ``(B, 2, N, M)``, for a saliency ``(B, N, M)``.

    u(x, y) = Σ S(x′, y′) k(x, x′) x′ / Σ S(x′, y′) k(x, x′), where k is a Gaussian of standard deviation ``width``, a
    fraction of the side, over three standard deviations. Beyond the border the saliency continues with its border
    values, as published, so that a uniform one gives the identity. u is kept in the image.

    >>> bool(sampling_displacement(torch.ones(1, 9, 9), 1 / 3).abs().max() < 1e-6)
    True
    """
    rows, columns = saliency.shape[-2:]
    down, right = (_offsets(size, width, saliency) for size in (rows, columns))
    reach_y, reach_x = len(down) // 2, len(right) // 2
    padded = _padded(saliency.unsqueeze(1), reach_y, reach_x)
    gauss_y, gauss_x = (torch.exp(-(offset**2) / (2 * width**2)) for offset in (down, right))
    over_y = F.conv2d(padded, torch.stack((gauss_y, gauss_y * down))[:, None, :, None])  # Σ S k and Σ S k (y′ − y)
    total = F.conv2d(over_y[:, :1], gauss_x.view(1, 1, 1, -1))
    along_x = F.conv2d(over_y[:, :1], (gauss_x * right).view(1, 1, 1, -1))
    along_y = F.conv2d(over_y[:, 1:], gauss_x.view(1, 1, 1, -1))
    displacement = torch.cat((along_x, along_y), dim=1) / total
    y, x = (coordinates(size, dtype=saliency.dtype, device=saliency.device) for size in (rows, columns))
    place = torch.stack((x.expand(rows, columns), y[:, None].expand(rows, columns)))
    return (place + displacement).clamp(0, 1) - place


def _offsets(size: int, width: float, like: Tensor) -> Tensor:
    """Return x′ − x for all neighbours within three standard deviations, as fractions of the side."""
    spacing = 1 / (size - 1)
    reach = math.ceil(3 * width / spacing)
    return torch.arange(-reach, reach + 1, dtype=like.dtype, device=like.device) * spacing


def _padded(x: Tensor, rows: int, columns: int) -> Tensor:
    return F.pad(x, (columns, columns, rows, rows), mode="replicate")


class SaliencyCNN(nn.Module):
    """Three strided convolutions and a 1 × 1 convolution: images ``(B, C, H, W)`` to saliency logits."""

    def __init__(self, in_channels: int, channels: tuple[int, int, int] = (32, 64, 64)) -> None:
        super().__init__()
        widths = (in_channels, *channels)
        strides = (2, 2, 1)
        self.layers = nn.ModuleList(nn.Conv2d(widths[i], widths[i + 1], 3, strides[i], 1) for i in range(3))
        self.to_saliency = nn.Conv2d(channels[-1], 1, 1)
        for parameter in self.to_saliency.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.to_saliency(x)


class SaliencySampler(nn.Module):
    """A backbone M behind a saliency sampler: M(J) with J(p) = I(u(p)).

    The saliency is a softmax over a ``grid × grid`` lattice of what a CNN says on a small copy of the image. ``size``
    is the (height, width) of the sampled images, if the images are larger. Before training the grid is the identity,
    up to rounding.

    >>> model = SaliencySampler(nn.Flatten(), grid=9)
    >>> image = torch.rand(2, 3, 16, 16)
    >>> torch.allclose(model(image), image.flatten(1), atol=1e-5)
    True
    """

    def __init__(
        self,
        base: nn.Module,
        *,
        channels: int = 3,
        grid: int = 31,
        width: float = 1 / 3,
        resolution: int = 56,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.base, self.saliency = base, SaliencyCNN(channels)
        self.grid, self.width, self.resolution, self.size = grid, width, resolution, size

    def sampling_map(self, images: Tensor) -> GridMap:
        """Return u as a lattice with linear interpolation; unlike other maps it may move the sides or fold."""
        shrink = min(1.0, self.resolution / max(images.shape[-2:]))
        copy = resize(images, *(max(1, round(side * shrink)) for side in images.shape[-2:]))
        logits = stretch(self.saliency(copy), self.grid, self.grid).to(compute_dtype(images.dtype))
        with torch.autocast(images.device.type, enabled=False):  # coordinates need single precision
            saliency = logits.flatten(1).softmax(1).view(-1, self.grid, self.grid)
            return GridMap(sampling_displacement(saliency, self.width))

    def forward(self, images: Tensor) -> Tensor:
        return self.base(unscale(images, self.sampling_map(images), size=self.size))


@dataclass(frozen=True)
class Zoom(Method):
    """A saliency sampler (Recasens et al. 2018) before the backbone, trained by the task."""

    grid: int = 31
    """Points along each side of the lattice on which saliency and sampling grid are computed."""
    width: float = 1 / 3
    """Standard deviation of the Gaussian kernel, as a fraction of the side; wider kernels give smoother zooms."""
    resolution: int = 56
    """Longer side in pixels of the copy of the image that the saliency network sees."""

    def check(self) -> None:
        if self.grid < 2 or self.resolution < 8:
            raise ConfigError(
                f"--method.grid is {self.grid} and --method.resolution {self.resolution}; expected at least 2 and 8"
            )
        if not 0 < self.width <= 1:
            raise ConfigError(f"--method.width is {self.width}; expected more than 0 and at most 1")

    def check_answers(self, *, dense: bool) -> None:
        if dense:
            raise ConfigError(
                "the sampling grid of a saliency sampler has no inverse, so masks cannot be scaled back; use "
                "CentreZoom, or SizeEquilibrium"
            )

    def build(
        self,
        backbone: nn.Module,
        *,
        input_size: tuple[int, int, int] | None = None,
        source_size: tuple[int, int] | None = None,
    ) -> SaliencySampler:
        return SaliencySampler(
            backbone,
            channels=3 if input_size is None else input_size[0],
            grid=self.grid,
            width=self.width,
            resolution=self.resolution,
            size=None if source_size is None else backbone_size(backbone, input_size),
        )

    def losses(
        self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, draws: Draws
    ) -> dict[str, Tensor]:
        assert isinstance(model, SaliencySampler)
        m = model.sampling_map(images)
        task = criterion(model.base(unscale(images, m, size=model.size)), labels)
        return {"loss": task, "task": task, "displacement": m.detach().mean_displacement(POINTS).mean()}
