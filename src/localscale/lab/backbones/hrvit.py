"""HRViT: a vision transformer with parallel branches; each stage adds a coarser one beside the finest.

After Gu et al., "Multi-Scale High-Resolution Vision Transformer for Semantic Segmentation", CVPR 2022.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from localscale.errors import ConfigError
from localscale.lab.backbones.hrvit_branches import Branch, Fusion, HRViTBlock, MultiBranch, Stage
from localscale.lab.backbones.registration import (
    build,
    check_images,
    classifier,
    default_configs,
    drop_path_rates,
    register,
    resolve_indices,
)

__all__ = ["HRViT", "HRViTConfig"]

default_cfgs = default_configs("hrvit_b1", first_conv="stem.0.0", classifier="fc", paper="arXiv:2111.01236")


@dataclass(frozen=True)
class HRViTConfig:
    """The sizes of an HRViT; the defaults are those of HRViT-b1.

    >>> HRViTConfig().depth
    22
    """

    stem: int = 64
    """Channels after the stem, at a quarter of the image's resolution."""
    channels: tuple[int, ...] = (32, 64, 128, 256)
    """Channels of each branch, finest first."""
    windows: tuple[int, ...] = (1, 2, 7, 7)
    """Width of each branch's attention stripes: rows of a horizontal one, columns of a vertical one."""
    heads: tuple[int, ...] = (1, 1, 2, 4)
    """Attention heads of each branch, for rows and again for columns."""
    ratio: int = 4
    """Hidden channels of a feed-forward layer, as a multiple of its input channels."""
    blocks: tuple[tuple[tuple[int, ...], ...], ...] = (
        ((1,),),
        ((1, 1),),
        ((1, 1, 6), (1, 1, 6)),
        ((1, 1, 6, 2), (1, 1, 2, 2)),
    )
    """Number of blocks, for each stage, module of the stage, and branch of the module."""

    def __post_init__(self) -> None:
        branches = len(self.channels)
        if not len(self.windows) == len(self.heads) == len(self.blocks) == branches:
            raise ConfigError(
                f"channels, windows, heads and blocks have {branches}, {len(self.windows)}, {len(self.heads)} and "
                f"{len(self.blocks)} entries; expected one per branch, and as many stages as branches"
            )
        for stage, modules in enumerate(self.blocks):
            if not modules or any(len(module) != stage + 1 for module in modules):
                raise ConfigError(
                    f"stage {stage} has blocks {modules}; expected at least one module, each of {stage + 1} branches"
                )

    @property
    def depth(self) -> int:
        """The number of blocks in sequence, along the longest path."""
        return sum(max(module) for modules in self.blocks for module in modules)


class HRViT(nn.Module):
    """HRViT, which takes images ``(B, 3, H, W)`` of any size and returns logits ``(B, num_classes)``.

    Stage ``k`` has branches 0 … k; branch b has 1 / (4 · 2ᵇ) of the image's resolution, rounded up. A stage takes the
    maps of the stage before it as arguments, finest first, so ``stages.0`` and ``stages.1`` take one map each.

    >>> model = HRViT(num_classes=5).eval()
    >>> [tuple(x.shape) for x in model.forward_branches(torch.rand(1, 3, 64, 70))]
    [(1, 32, 16, 18), (1, 64, 8, 9), (1, 128, 4, 5), (1, 256, 2, 3)]
    """

    def __init__(
        self,
        config: HRViTConfig | None = None,
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.config = config = config or HRViTConfig()
        self.in_chans, self.drop_rate = in_chans, drop_rate
        self.stem = nn.Sequential(
            _convolution(in_chans, config.stem // 2, 3, stride=2),
            _convolution(config.stem // 2, config.stem, 3, stride=2),
        )
        self.stages = nn.ModuleList(_stages(config, drop_path_rate))
        self.merge: nn.Module = HighResolutionMerge(config.channels)
        self.num_features = self.head_hidden_size = 8 * config.channels[-1]
        last = f"stages.{len(self.stages) - 1}.{len(config.blocks[-1]) - 1}.branches"
        self.feature_info = [
            {"num_chs": channels, "reduction": 4 * 2**branch, "module": f"{last}.{branch}"}
            for branch, channels in enumerate(config.channels)
        ]
        self.reset_classifier(num_classes)
        self.apply(_initialise)

    def forward_branches(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the maps of the last stage's branches, finest first."""
        check_images(x, self.in_chans)
        maps: tuple[Tensor, ...] = (self.stem(x),)
        for stage in self.stages:
            maps = stage(*maps)
        return maps

    def forward_features(self, x: Tensor) -> Tensor:
        """Return all branches merged into one map, ``(B, 2048, H / 32, W / 32)``."""
        return self.merge(*self.forward_branches(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits of merged features or, with ``pre_logits``, the features' mean over pixels."""
        pooled = F.dropout(x.mean((2, 3)), self.drop_rate, self.training)
        return pooled if pre_logits else self.fc(pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the output of ``forward_features``, unless ``intermediates_only``, and branches ``indices``."""
        if output_fmt != "NCHW" or norm:
            raise ConfigError(f"output_fmt is {output_fmt!r} and norm {norm}; expected 'NCHW' and False")
        maps = self.forward_branches(x)
        chosen = [maps[branch] for branch in resolve_indices(indices, len(maps))]
        return chosen if intermediates_only else (self.merge(*maps), chosen)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the merging layers and the classifier, which ``forward_intermediates`` does not need."""
        if prune_head:
            self.merge = nn.Identity()
            self.reset_classifier(0)
        return resolve_indices(indices, len(self.config.channels))

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer by a new one for ``num_classes``; with 0, by the identity."""
        fresh = classifier(self.num_features, num_classes, global_pool, "avg").apply(_initialise)
        self.fc = fresh.to(next(self.stem.parameters()))
        self.num_classes = num_classes

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Return the patterns by which timm orders layers, for layer-wise learning rate decay."""
        return {"stem": r"^stem", "blocks": r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.(\d+)"}


class HighResolutionMerge(nn.Module):
    """Merge all branches into one map, as HRNet does.

    Each branch is made four times wider; from the finest on, each is halved and added to the next; a last convolution
    makes the sum eight times as wide as the coarsest branch.

    >>> merge = HighResolutionMerge((8, 16))
    >>> merge(torch.rand(2, 8, 5, 4), torch.rand(2, 16, 3, 2)).shape
    torch.Size([2, 128, 3, 2])
    """

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.widen = nn.ModuleList(Bottleneck(each) for each in channels)
        steps = itertools.pairwise(channels)
        self.down = nn.ModuleList(_convolution(4 * fine, 4 * coarse, 3, stride=2) for fine, coarse in steps)
        self.last = _convolution(4 * channels[-1], 8 * channels[-1], 1)

    def forward(self, *maps: Tensor) -> Tensor:
        wide = [widen(x) for widen, x in zip(self.widen, maps, strict=True)]
        merged = wide[0]
        for down, coarser in zip(self.down, wide[1:], strict=True):
            merged = down(merged) + coarser
        return self.last(merged)


class Bottleneck(nn.Module):
    """ResNet's bottleneck, ``(B, C, H, W)`` to ``(B, 4 C, H, W)``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(_convolution(channels, channels, 1), _convolution(channels, channels, 3))
        self.widen = nn.Sequential(nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels))
        self.shortcut = nn.Sequential(nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.widen(self.inside(x)) + self.shortcut(x))


@register
def hrvit_b1(pretrained: bool = False, **settings: Any) -> HRViT:
    """HRViT-b1: 19.7 million parameters and 2.7 billion multiply-adds at 224 px (the authors' figures).

    >>> hrvit_b1(num_classes=10).get_classifier()
    Linear(in_features=2048, out_features=10, bias=True)
    """
    return build(HRViT, "hrvit_b1", pretrained=pretrained, features=4, settings=settings)


def _stages(config: HRViTConfig, drop_path_rate: float) -> Iterator[Stage]:
    rates = iter(drop_path_rates(drop_path_rate, config.depth))
    before: Sequence[int] = (config.stem,)
    for modules in config.blocks:
        stage = Stage()
        for counts in modules:
            channels = config.channels[: len(counts)]
            dropped = [next(rates) for _ in range(max(counts))]
            branches = [_branch(config, index, dropped[:count]) for index, count in enumerate(counts)]
            stage.append(MultiBranch(Fusion(before, channels), branches))
            before = channels
        yield stage


def _branch(config: HRViTConfig, index: int, rates: Sequence[float]) -> Branch:
    channels, heads, window = config.channels[index], config.heads[index], config.windows[index]
    blocks = [HRViTBlock(channels, heads=heads, window=window, ratio=config.ratio, drop_path=rate) for rate in rates]
    return Branch(channels, blocks)


def _convolution(channels_in: int, channels_out: int, size: int, *, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out), nn.ReLU())


def _initialise(module: nn.Module) -> None:
    """Initialise linear layers and 1 × 1 convolutions with a bias as in ViTs, other convolutions as in ResNets."""
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return
    if isinstance(module, nn.Conv2d) and (module.kernel_size != (1, 1) or module.bias is None):
        fan_out = module.weight[:, 0].numel() // module.groups
        nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5)
    else:
        nn.init.trunc_normal_(module.weight, std=0.02)
    if module.bias is not None:
        nn.init.zeros_(module.bias)
