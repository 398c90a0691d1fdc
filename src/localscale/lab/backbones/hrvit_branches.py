"""HRViT's stages: parallel branches of several resolutions, fused at the start of each module."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from timm.layers import DropPath, LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F

from localscale.lab.backbones.hrvit_attention import DiversityShortcut, HRViTAttention

__all__ = ["Branch", "Fusion", "HRViTBlock", "MixCFN", "MultiBranch", "Stage"]


class MixCFN(nn.Module):
    """Feed-forward layer with depthwise convolutions, 3 × 3 for half of its hidden channels and 5 × 5 for the rest.

    >>> MixCFN(8, ratio=4)(torch.rand(1, 8, 5, 6)).shape
    torch.Size([1, 8, 5, 6])
    """

    def __init__(self, channels: int, *, ratio: int) -> None:
        super().__init__()
        hidden, half = channels * ratio, channels * ratio // 2
        self.expand = nn.Conv2d(channels, hidden, 1)
        self.small = nn.Conv2d(half, half, 3, padding=1, groups=half)
        self.large = nn.Conv2d(hidden - half, hidden - half, 5, padding=2, groups=hidden - half)
        self.contract = nn.Conv2d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        small, large = self.expand(x).split((self.small.in_channels, self.large.in_channels), dim=1)
        return self.contract(F.gelu(torch.cat((self.small(small), self.large(large)), dim=1)))


class HRViTBlock(nn.Module):
    """Attention with a residual and a diversity shortcut, then feed-forward with a residual, on ``(B, C, H, W)``.

    >>> HRViTBlock(32, heads=1, window=2, ratio=4)(torch.rand(2, 32, 7, 7)).shape
    torch.Size([2, 32, 7, 7])
    """

    def __init__(self, channels: int, *, heads: int, window: int, ratio: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm1 = LayerNorm2d(channels)
        self.attention = HRViTAttention(channels, heads=heads, window=window)
        self.shortcut = DiversityShortcut(channels)
        self.norm2 = LayerNorm2d(channels)
        self.feed_forward = MixCFN(channels, ratio=ratio)
        self.drop_path1, self.drop_path2 = DropPath(drop_path), DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.shortcut(x) + self.drop_path1(self.attention(self.norm1(x)))
        return x + self.drop_path2(self.feed_forward(self.norm2(x)))


class Branch(nn.Module):
    """One resolution of a module: a patch embedding of stride 1, then blocks, on ``(B, C, H, W)``."""

    def __init__(self, channels: int, blocks: Sequence[HRViTBlock]) -> None:
        super().__init__()
        self.embed = nn.Sequential(
            nn.Conv2d(channels, channels, 1),
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
            LayerNorm2d(channels),
        )
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.embed(x))


class Fusion(nn.Module):
    """Cross-resolution fusion: an output branch is the GELU of the sum of all input branches at its resolution.

    Branch k has half the height and width of branch k − 1, rounded up. A depthwise convolution of stride s and kernel
    size s + 1 downsamples, nearest-neighbour interpolation upsamples, and 1 × 1 convolutions change the channels.

    >>> fused = Fusion((8,), (8, 16))(torch.rand(1, 8, 5, 7))
    >>> [tuple(x.shape) for x in fused]
    [(1, 8, 5, 7), (1, 16, 3, 4)]
    """

    def __init__(self, channels_in: Sequence[int], channels_out: Sequence[int]) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            nn.ModuleList(_path(inner, outer, steps=to - start) for start, inner in enumerate(channels_in))
            for to, outer in enumerate(channels_out)
        )

    def forward(self, *maps: Tensor) -> tuple[Tensor, ...]:
        height, width = maps[0].shape[2:]
        return tuple(
            self._fuse(maps, to, (-(-height // 2**to), -(-width // 2**to)))  # rounded up, as by strided convolutions
            for to in range(len(self.paths))
        )

    def _fuse(self, maps: tuple[Tensor, ...], to: int, size: tuple[int, int]) -> Tensor:
        paths: nn.ModuleList = self.paths[to]  # type: ignore[assignment]
        brought = [path(x) for path, x in zip(paths, maps, strict=True)]
        same = [F.interpolate(x, size, mode="nearest") if x.shape[2:] != size else x for x in brought]
        return F.gelu(functools.reduce(torch.add, same))


def _path(channels_in: int, channels_out: int, *, steps: int) -> nn.Module:
    """Return the learned layers from one branch to another that is ``steps`` halvings coarser."""
    pointwise = (nn.Conv2d(channels_in, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out))
    if steps > 0:
        stride = 2**steps
        down = nn.Conv2d(
            channels_in, channels_in, stride + 1, stride, padding=stride // 2, groups=channels_in, bias=False
        )
        return nn.Sequential(down, nn.BatchNorm2d(channels_in), *pointwise)
    return nn.Identity() if steps == 0 and channels_in == channels_out else nn.Sequential(*pointwise)


class MultiBranch(nn.Module):
    """A fusion followed by one ``Branch`` per resolution; takes and returns maps, finest first."""

    def __init__(self, fuse: Fusion, branches: Sequence[Branch]) -> None:
        super().__init__()
        self.fuse = fuse
        self.branches = nn.ModuleList(branches)

    def forward(self, *maps: Tensor) -> tuple[Tensor, ...]:
        return tuple(branch(x) for branch, x in zip(self.branches, self.fuse(*maps), strict=True))


class Stage(nn.Sequential):
    """A sequence of modules with the same number of branches; each map is a separate argument."""

    def forward(self, *maps: Tensor) -> tuple[Tensor, ...]:
        for module in self:
            maps = module(*maps)
        return maps
