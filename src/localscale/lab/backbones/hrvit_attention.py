"""HRViT's attention within cross-shaped windows, with shared keys and values, and its diversity shortcut."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from localscale.errors import ConfigError

__all__ = ["DiversityShortcut", "HRViTAttention", "cross_shaped_attention", "stripe_attention"]


def cross_shaped_attention(queries: Tensor, values: Tensor, *, heads: int, window: int) -> Tensor:
    """Attend within horizontal stripes for the first half of the channels, within vertical ones for the second.

    Args:
        queries: ``(B, C, H, W)``.
        values: ``(B, C, H, W)``; they serve as keys, too.
        heads: attention heads of each half.
        window: rows of a horizontal stripe, columns of a vertical one.

    >>> x = torch.rand(2, 8, 6, 5)
    >>> cross_shaped_attention(x, x, heads=2, window=4).shape
    torch.Size([2, 8, 6, 5])
    """
    (across, down), (across_values, down_values) = queries.chunk(2, dim=1), values.chunk(2, dim=1)
    horizontal = stripe_attention(across, across_values, heads=heads, window=window)
    vertical = stripe_attention(down.transpose(2, 3), down_values.transpose(2, 3), heads=heads, window=window)
    return torch.cat((horizontal, vertical.transpose(2, 3)), dim=1)


def stripe_attention(queries: Tensor, values: Tensor, *, heads: int, window: int) -> Tensor:
    """Attend within horizontal stripes of ``window`` rows of ``(B, C, H, W)``; the last stripe may have fewer rows.

    The paper pads the last stripe and masks the padding, which gives the same result.

    >>> x = torch.rand(1, 2, 3, 4)
    >>> alone = stripe_attention(x[:, :, 2:], x[:, :, 2:], heads=1, window=2)
    >>> torch.allclose(stripe_attention(x, x, heads=1, window=2)[:, :, 2:], alone)
    True
    """
    height = queries.shape[2]
    whole = height - height % window
    stripes = [(0, whole, window), (whole, height, height - whole)]
    attended = [
        _attend(queries[:, :, top:bottom], values[:, :, top:bottom], heads=heads, rows=rows)
        for top, bottom, rows in stripes
        if top < bottom
    ]
    return attended[0] if len(attended) == 1 else torch.cat(attended, dim=2)


def _attend(queries: Tensor, values: Tensor, *, heads: int, rows: int) -> Tensor:
    batch, channels, height, width = queries.shape
    stripes = height // rows

    def cut(x: Tensor) -> Tensor:  # (B · stripes, heads, pixels, C / heads)
        pixels_last = x.reshape(batch, heads, channels // heads, stripes, rows * width)
        return pixels_last.permute(0, 3, 1, 4, 2).flatten(0, 1).contiguous()

    shared = cut(values)
    attended = F.scaled_dot_product_attention(cut(queries), shared, shared)
    return attended.unflatten(0, (batch, stripes)).permute(0, 2, 4, 1, 3).reshape(batch, channels, height, width)


class HRViTAttention(nn.Module):
    """Attention with a convolution beside it, on ``(B, C, H, W)`` (HRViT, Eq. 1).

    The result is BN(σ(W_O y)) with y = attention + DWConv(σ(W_V x)) and σ = Hardswish.

    >>> HRViTAttention(32, heads=1, window=2)(torch.rand(2, 32, 7, 5)).shape
    torch.Size([2, 32, 7, 5])
    """

    def __init__(self, channels: int, *, heads: int, window: int) -> None:
        super().__init__()
        if channels % (2 * heads) or window < 1:
            raise ConfigError(
                f"channels is {channels}, heads {heads} and window {window}; expected channels divisible by 2 · heads, "
                "and a window of at least 1"
            )
        self.heads, self.window = heads, window
        self.query_value = nn.Conv2d(channels, 2 * channels, 1)
        self.local = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.project = nn.Conv2d(channels, channels, 1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        queries, values = self.query_value(x).chunk(2, dim=1)
        attended = cross_shaped_attention(queries, values, heads=self.heads, window=self.window)
        return self.norm(F.hardswish(self.project(attended + self.local(F.hardswish(values)))))


class DiversityShortcut(nn.Module):
    """Mix channels beside the residual by a Kronecker product of two small matrices: DES(x) = A · σ(x̃ Bᵀ).

    At every pixel of ``(B, C, H, W)`` the channels are reshaped to a matrix x̃ of C / P rows and P columns, where P is
    the smallest power of two that is at least √C. B mixes its columns and A its rows.

    >>> shortcut = DiversityShortcut(32)
    >>> shortcut.columns.in_channels, shortcut.rows.in_channels, shortcut(torch.rand(1, 32, 3, 2)).shape
    (8, 4, torch.Size([1, 32, 3, 2]))
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        columns = 2 ** math.ceil(math.log2(channels) / 2)
        if channels % columns:
            raise ConfigError(
                f"{channels} channels cannot be folded into {columns} columns; expected a multiple of {columns}"
            )
        self.columns = nn.Conv2d(columns, columns, 1)
        self.rows = nn.Conv2d(channels // columns, channels // columns, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        rows, columns = self.rows.in_channels, self.columns.in_channels
        mixed = F.hardswish(self.columns(x.reshape(batch * rows, columns, height, width)))
        return self.rows(mixed.reshape(batch, rows, columns * height, width)).reshape(x.shape)
