"""ResFormer: a vision transformer whose position embeddings change smoothly with the size of the image.

After Tian et al., "ResFormer: Scaling ViTs with Multi-Resolution Training", CVPR 2023. This is the model only; the
paper's training at several resolutions with a scale consistency loss is not included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import DropPath, Mlp, PatchEmbed
from torch import Tensor, nn
from torch.nn import functional as F

from localscale.errors import ConfigError
from localscale.lab.backbones.registration import (
    build,
    check_images,
    classifier,
    default_configs,
    drop_path_rates,
    register,
    resolve_indices,
)

__all__ = ["ResFormer", "sinusoids"]

NAME = "resformer_tiny_patch16_224"
TEMPERATURE = 10_000

default_cfgs = default_configs(NAME, first_conv="patch_embed.proj", classifier="head", paper="arXiv:2212.00776")


def sinusoids(height: int, width: int, channels: int, *, device: torch.device | None = None) -> Tensor:
    """Return sines and cosines of each patch's position ``(1, channels, height, width)``: half for y, half for x.

    Convention: patch i of n has position (i + 1) / n, and the highest frequency makes one full turn over a side, so
    that images of all sizes have the same range of positions.

    >>> sinusoids(3, 2, 8).shape, sinusoids(4, 4, 8)[0, 1, -1, 0]
    (torch.Size([1, 8, 3, 2]), tensor(1.))
    """
    half = channels // 2
    frequencies = TEMPERATURE ** (-torch.arange(0, half, 2, device=device) / half)

    def along(count: int) -> Tensor:  # (channels / 2, count), sines and cosines alternating
        positions = torch.arange(1, count + 1, device=device) * (2 * math.pi / count)
        angles = frequencies[:, None] * positions
        return torch.stack((angles.sin(), angles.cos()), dim=1).flatten(0, 1)

    down = along(height)[:, :, None].expand(-1, -1, width)
    across = along(width)[:, None, :].expand(-1, height, -1)
    return torch.cat((down, across))[None]


class GlobalPosition(nn.Module):
    """The global position embedding: a depthwise convolution of ``sinusoids``, added to ``(B, C, H, W)``.

    >>> GlobalPosition(8)(torch.zeros(2, 8, 3, 5)).shape
    torch.Size([2, 8, 3, 5])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        _, channels, height, width = x.shape
        return x + self.mix(sinusoids(height, width, channels, device=x.device).to(x.dtype))


class LocalAttention(nn.Module):
    """Attention plus a local position embedding, on tokens ``(B, 1 + H · W, C)``, the class token first.

    The result is Softmax(Q Kᵀ / √d) V + H(V) (ResFormer, Eq. 5). H is a depthwise 3 × 3 convolution of the patches'
    values. All heads share its weights, as in the paper and the authors' code. The class token has no position, so
    nothing is added to it.

    >>> LocalAttention(12, heads=3)(torch.rand(2, 1 + 20, 12), (4, 5)).shape
    torch.Size([2, 21, 12])
    """

    def __init__(self, channels: int, *, heads: int) -> None:
        super().__init__()
        self.heads, each = heads, channels // heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.local = nn.Conv2d(each, each, 3, padding=1, groups=each)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        queries, keys, values = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(queries, keys, values)
        patches = values[:, :, 1:].transpose(2, 3).unflatten(-1, grid).flatten(0, 1)
        local = self.local(patches).flatten(2).transpose(1, 2).unflatten(0, values.shape[:2])
        placed = attended + F.pad(local, (0, 0, 1, 0))
        return self.proj(placed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and feed-forward with pre-normalisation and residuals, on ``(B, 1 + H · W, C)``."""

    def __init__(self, channels: int, *, heads: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.attn = LocalAttention(channels, heads=heads)
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = Mlp(channels, 4 * channels)
        self.drop_path1, self.drop_path2 = DropPath(drop_path), DropPath(drop_path)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x), grid))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class ResFormer(nn.Module):
    """ResFormer, which takes images ``(B, 3, H, W)`` and returns logits ``(B, num_classes)``; by default of size T.

    H and W must be multiples of ``patch_size``. ``img_size`` is only the nominal size, which other code can read. A
    classifier reads only the class token, so it gives the last block's local embedding no gradient.

    >>> model = ResFormer(num_classes=5, depth=2).eval()
    >>> model(torch.rand(2, 3, 64, 96)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if embed_dim % 4 or embed_dim % num_heads:
            raise ConfigError(f"embed_dim is {embed_dim}; expected a multiple of 4 and of the {num_heads} heads")
        self.in_chans, self.drop_rate = in_chans, drop_rate
        self.patch_embed = PatchEmbed(
            img_size, patch_size, in_chans, embed_dim, strict_img_size=False, output_fmt="NCHW"
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = GlobalPosition(embed_dim)
        rates = drop_path_rates(drop_path_rate, depth)
        self.blocks = nn.ModuleList(Block(embed_dim, heads=num_heads, drop_path=rate) for rate in rates)
        self.norm: nn.Module = nn.LayerNorm(embed_dim, eps=1e-6)
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.num_prefix_tokens = 1
        self.feature_info = [
            {"num_chs": embed_dim, "reduction": patch_size, "module": f"blocks.{i}"} for i in range(depth)
        ]
        self.reset_classifier(num_classes)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(_initialise)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the class token and the patch tokens, normalised, ``(B, 1 + H · W / 256, C)``."""
        tokens, grid = self._tokens(x)
        for block in self.blocks:
            tokens = block(tokens, grid)
        return self.norm(tokens)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits of the class token or, with ``pre_logits``, the token itself."""
        token = F.dropout(x[:, 0], self.drop_rate, self.training)
        return token if pre_logits else self.head(token)

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
        """Return the patches after blocks ``indices``, as maps or, for ``"NLC"``, as token sequences."""
        if output_fmt not in ("NCHW", "NLC"):
            raise ConfigError(f"output_fmt is {output_fmt!r}; expected 'NCHW' or 'NLC'")
        taken = resolve_indices(indices, len(self.blocks))
        tokens, grid = self._tokens(x)
        found = []
        for index, block in enumerate(self.blocks[: max(taken) + 1] if stop_early else self.blocks):
            tokens = block(tokens, grid)
            if index in taken:
                patches = (self.norm(tokens) if norm else tokens)[:, 1:]
                found.append(patches.transpose(1, 2).unflatten(-1, grid) if output_fmt == "NCHW" else patches)
        return found if intermediates_only else (self.norm(tokens), found)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the layers that ``forward_intermediates`` does not need for ``indices``."""
        taken = resolve_indices(indices, len(self.blocks))
        self.blocks = self.blocks[: max(taken) + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return taken

    def get_classifier(self) -> nn.Module:
        """Return the last layer."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last layer by a new one for ``num_classes``; with 0, by the identity."""
        fresh = classifier(self.embed_dim, num_classes, global_pool, "token").apply(_initialise)
        self.head = fresh.to(self.cls_token)
        self.num_classes = num_classes

    def no_weight_decay(self) -> set[str]:
        """Return the names of position embeddings and class token, which have no weight decay."""
        kept = ("cls_token", "pos_embed.", ".local.")
        return {name for name, _ in self.named_parameters() if any(part in name for part in kept)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return the patterns by which timm orders layers, for layer-wise learning rate decay."""
        return {
            "stem": r"^cls_token|^patch_embed|^pos_embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    def _tokens(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        check_images(x, self.in_chans, multiple=self.patch_embed.patch_size[0])
        patches = self.pos_embed(self.patch_embed(x))
        height, width = patches.shape[2:]
        token = self.cls_token.expand(len(x), -1, -1)
        return torch.cat((token, patches.flatten(2).transpose(1, 2)), dim=1), (height, width)


@register
def resformer_tiny_patch16_224(pretrained: bool = False, **settings: Any) -> ResFormer:
    """ResFormer-T: DeiT-T's 192 channels, 3 heads and 12 blocks, with global and local position embeddings.

    >>> resformer_tiny_patch16_224(num_classes=10).get_classifier()
    Linear(in_features=192, out_features=10, bias=True)
    """
    return build(ResFormer, NAME, pretrained=pretrained, features=3, settings=settings)


def _initialise(module: nn.Module) -> None:
    """Initialise as DeiT does; local embeddings start at zero, as in the authors' code."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, LocalAttention):
        nn.init.zeros_(module.local.weight)
        if module.local.bias is not None:
            nn.init.zeros_(module.local.bias)
