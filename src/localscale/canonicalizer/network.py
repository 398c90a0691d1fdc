"""Convolutional networks of a canonicalizer, from looks to maps or to energies (App. A1), and their settings."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localscale.canonicalizer.interfaces import NetworkSettings
from localscale.errors import ConfigError
from localscale.maps.base import FamilyMap
from localscale.maps.build import family_of

__all__ = [
    "FEATURE_SIDE",
    "IMAGE_CHANNELS",
    "IMAGE_SIDE",
    "ConvNetwork",
    "EnergyNetwork",
    "MapNetwork",
    "convolutions",
    "convolve",
    "strides_of",
    "working_size",
]

Pools = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]  # matrices (down, across) for the heads along x and y

IMAGE_CHANNELS = 4  # features with more channels are normalised
IMAGE_SIDE, FEATURE_SIDE = 56, 28  # default resolutions
SMALL = 20480  # elements up to which PyTorch convolves a single image in its own way
MIN_SIDE = 14  # a layer halves its input only while at least this many pixels remain


@dataclass(frozen=True)
class ConvNetwork(NetworkSettings):
    """Convolutions, then a linear layer and pooling to the knots (App. A1).

    Args:
        channels: output channels of each convolution; one layer per entry. On a GPU two layers of 16, 32, 64 or 128
            channels are fastest.
        resolution: longest side of the working copy, in pixels; ``None`` is 56 for images (up to 4 channels) and 28
            for features.
    """

    channels: tuple[int, ...] = (64, 128)
    resolution: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels or min(self.channels) < 1:
            raise ConfigError(f"channels is {self.channels}; expected at least one positive width")
        if self.resolution is not None and self.resolution < 2:
            raise ConfigError(f"resolution is {self.resolution}; expected at least 2 pixels")

    def resolution_for(self, in_channels: int) -> int:
        if self.resolution is not None:
            return self.resolution
        return IMAGE_SIDE if in_channels <= IMAGE_CHANNELS else FEATURE_SIDE

    def map_network(
        self, in_channels: int, knots: tuple[int, int], *, family: str, temperature: float, guard: float | None
    ) -> nn.Module:
        return MapNetwork(
            in_channels, knots, family=family, channels=self.channels, temperature=temperature, guard=guard
        )

    def energy_network(self, in_channels: int) -> nn.Module:
        return EnergyNetwork(in_channels, channels=self.channels)


class Trunk(nn.Module):
    """Convolutions with GELU in between: ``(B, C, h, w)`` to ``(B, channels[-1], h′, w′)``.

    It computes in the dtype of its input, whatever the dtype of its weights, so that the solver of a half-precision
    backbone stays in float32.
    """

    def __init__(self, in_channels: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        widths = (in_channels, *channels)
        self.layers: Any = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size=3, padding=1) for before, after in itertools.pairwise(widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        return convolutions(x, self.parameters_as(x.dtype))

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) of the output for an input of this size."""
        for stride in strides_of(height, width, len(self.layers)):
            height, width = -(-height // stride), -(-width // stride)
        return height, width

    def parameters_as(self, dtype: torch.dtype) -> list[Tensor]:
        """Return ``tensors()`` in ``dtype``."""
        return [tensor.to(dtype) for tensor in self.tensors()]

    def tensors(self) -> list[Tensor]:
        """Return weight and bias of each layer in turn."""
        return [tensor for layer in self.layers for tensor in (layer.weight, layer.bias)]


def convolutions(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Apply 3 × 3 convolutions with GELU, given weights and biases in turn; ``strides_of`` gives the strides."""
    strides = strides_of(x.shape[-2], x.shape[-1], len(parameters) // 2)
    for weight, bias, stride in zip(parameters[::2], parameters[1::2], strides, strict=True):
        x = F.gelu(convolve(x, weight, bias, stride=stride, padding=1))
    return x


def convolve(x: Tensor, weight: Tensor, bias: Tensor, *, stride: int = 1, padding: int = 0) -> Tensor:
    """Return ``F.conv2d``, rounded for a single image as for an image of a batch.

    On one thread of a CPU, PyTorch convolves a single small float32 image in another order of sums than a batch.
    Solvers amplify such differences before they converge.
    """
    alone = x.shape[0] == 1 and x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() <= SMALL
    if not alone or torch.compiler.is_compiling():
        return F.conv2d(x, weight, bias, stride=stride, padding=padding)
    return F.conv2d(x.expand(2, -1, -1, -1), weight, bias, stride=stride, padding=padding)[:1]


def strides_of(height: int, width: int, layers: int) -> list[int]:
    """Return the stride of each layer for an input of this size: 2 while ``MIN_SIDE`` pixels remain, then 1."""
    strides = []
    for _ in range(layers):
        strides.append(2 if min(height, width) >= 2 * MIN_SIDE else 1)
        height, width = -(-height // strides[-1]), -(-width // strides[-1])
    return strides


def working_size(height: int, width: int, resolution: int) -> tuple[int, int]:
    """Return the (height, width) of the working copy: no side is longer than ``resolution``."""
    shrink = min(1.0, resolution / max(height, width))
    return max(1, round(height * shrink)), max(1, round(width * shrink))


class MapNetwork(nn.Module):
    """The network H_ψ from looks to maps. Its last layer starts at zero, so the first map is exactly the identity.

    Raw parameters pass through a tanh: with temperature τ, neighbouring increments differ at most by a factor e^(2/τ).
    """

    def __init__(
        self,
        in_channels: int,
        knots: tuple[int, int],
        *,
        family: str = "grid",
        channels: tuple[int, ...] = (64, 128),
        temperature: float = 1.0,
        guard: float | None = 0.1,
    ) -> None:
        super().__init__()
        self.family, self.temperature, self.guard = family_of(family), temperature, guard
        self.shapes = self.family.logit_shapes(knots)
        self.trunk = Trunk(in_channels, channels)
        self.to_x = _zero(nn.Linear(channels[-1], 1))
        self.to_y = _zero(nn.Linear(channels[-1], 1))

    def pools(self, x: Tensor) -> Pools:
        """Return the matrices that pool the trunk's features to the knots, the same in every step of a solve."""
        height, width = self.trunk.output_size(*x.shape[-2:])
        cells_x, cells_y = ((1, *shape)[-2:] for shape in self.shapes)
        sizes = ((height, cells_x[0]), (width, cells_x[1]), (width, cells_y[0]), (height, cells_y[1]))
        down_x, across_x, down_y, across_y = (_pooling_matrix(*size, x.dtype, x.device) for size in sizes)
        return (down_x, across_x), (down_y, across_y)

    def forward(self, x: Tensor, pools: Pools | None = None) -> FamilyMap:
        """Return a map for each input; ``pools`` is ``self.pools(x)``, if it was computed before."""
        pool_x, pool_y = self.pools(x) if pools is None else pools
        # The linear layer commutes with pooling, and one channel is cheaper to pool than many. Adaptive average pooling
        # is written as two matrix products, which can be exported and differentiated twice.
        features = self.trunk(x)
        weighed = self.head_weights(x.dtype) @ features.flatten(2)
        weighed_x, weighed_y = weighed.unflatten(2, features.shape[2:]).unbind(1)
        bias_x, bias_y = self.head_biases(x.dtype)
        logits_x = pool_x[0] @ weighed_x @ pool_x[1].T + bias_x
        logits_y = pool_y[0] @ weighed_y.transpose(1, 2) @ pool_y[1].T + bias_y
        return self.family.from_logits(
            torch.tanh(logits_x).view(-1, *self.shapes[0]),
            torch.tanh(logits_y).view(-1, *self.shapes[1]),
            temperature=self.temperature,
            guard=self.guard,
        )

    def head_weights(self, dtype: torch.dtype) -> Tensor:
        """Return the weights of the heads along x and y, ``(2, C)``."""
        return torch.cat((self.to_x.weight, self.to_y.weight)).to(dtype)

    def head_biases(self, dtype: torch.dtype) -> Tensor:
        """Return the biases of the heads along x and y, ``(2,)``."""
        return torch.cat((self.to_x.bias, self.to_y.bias)).to(dtype)


class EnergyNetwork(nn.Module):
    """The network E_ψ from looks to energies ``(B,)``, which start at zero, so that the first map is the identity."""

    def __init__(self, in_channels: int, *, channels: tuple[int, ...] = (64, 128)) -> None:
        super().__init__()
        self.trunk = Trunk(in_channels, channels)
        self.to_energy = _zero(nn.Linear(channels[-1], 1, bias=False))  # a bias has no gradient with respect to the map

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.trunk(x).mean(dim=(2, 3))
        return F.linear(pooled, self.to_energy.weight.to(x.dtype)).squeeze(1)


def _zero(layer: nn.Linear) -> nn.Linear:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def _pooling_matrix(size: int, cells: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a matrix whose row k averages samples ⌊k·size/cells⌋ … ⌈(k+1)·size/cells⌉ − 1, shape ``(cells, size)``."""
    cell, sample = torch.arange(cells, device=device)[:, None], torch.arange(size, device=device)
    first, end = cell * size // cells, -(-(cell + 1) * size // cells)
    inside = ((sample >= first) & (sample < end)).to(dtype)
    return inside / inside.sum(dim=1, keepdim=True)
