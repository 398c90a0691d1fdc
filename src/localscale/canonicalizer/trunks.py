"""Pretrained trunks of a size network: the first stages of a classifier, with a head that estimates sizes and weights.

The batch norms of a classifier are folded into its convolutions, so a trunk is a chain of convolutions with biases.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localscale.conventions import compute_dtype, coordinates, resize_matrix

__all__ = ["TRUNKS", "EfficientNetLite0", "FoldedConvolution", "shrink_look"]

COLOURS = 3
SPACING = 16  # pixels of a look per cell of the last features
PLACES = 1.4  # estimates per cell along an axis, so that corners lie on corners without losing detail
SURE, SIZE = -1.0, -0.6  # estimates before training: the logit of a weight, and an absolute log size
STAGES = (  # kernel, stride, expansion, channels, blocks
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
)
TAPPED = (2, 4)  # stages whose features are read; their strides are 8 and 16


class FoldedConvolution(nn.Conv2d):
    """A convolution with a batch norm folded into it, and a ReLU6 unless it is ``linear``; ⌈side / stride⌉ outputs.

    It runs in the precision of its input. Padding is that of TensorFlow: where an odd number of pixels is added, the
    right and lower side get one more.
    """

    def __init__(
        self, before: int, after: int, kernel: int = 1, *, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__(before, after, kernel, stride=stride, groups=groups)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        (top, first), (left, begin) = (self._padding(side) for side in x.shape[-2:])
        y = F.conv2d(x, weight, bias, self.stride, (top, left), groups=self.groups)
        if first or begin:
            rows, columns = (-(-side // self.stride[0]) for side in x.shape[-2:])
            y = y[:, :, first : first + rows, begin : begin + columns]
        return y if self.linear else F.relu6(y)

    def _padding(self, side: int) -> tuple[int, int]:
        """Return the padding of both ends of a side, and the first output to keep.

        The padding is equal at both ends, because padding one end more would copy the input. Where that is one pixel
        too many at the beginning, one stride more is padded, and the first output is dropped.
        """
        kernel, stride = self.kernel_size[0], self.stride[0]
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        before = total // 2
        return (before, 0) if 2 * before == total else (before + stride, 1)


class _InvertedResidual(nn.Sequential):
    """Expand the channels, filter each of them, and reduce them again; a residual block if the shape stays."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int) -> None:
        wide = before * expansion
        expand = [FoldedConvolution(before, wide)] if expansion > 1 else []
        filtered = FoldedConvolution(wide, wide, kernel, stride=stride, groups=wide)
        super().__init__(*expand, filtered, FoldedConvolution(wide, after, linear=True))
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + x if self.residual else y


class EfficientNetLite0(nn.Module):
    """The first five stages of timm's ``tf_efficientnet_lite0``, and a head on their features of strides 8 and 16.

    It takes looks ``(B, 3, h, w)`` to raw estimates ``(B, 2, h′, w′)``, log sizes and the logits of weights, whose
    corners lie on the corners of the looks. ``mean`` and ``std`` are those by which the looks are normalised.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, width: int, *, absolute: bool) -> None:
        super().__init__()
        self.stem = FoldedConvolution(COLOURS, 32, 3, stride=2)
        stages, before = [], 32
        for kernel, stride, expansion, after, count in STAGES:
            blocks = []
            for number in range(count):
                blocks.append(_InvertedResidual(before, after, kernel, 1 if number else stride, expansion))
                before = after
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.joins = nn.ModuleList(FoldedConvolution(STAGES[stage][3], width, linear=True) for stage in TAPPED)
        self.context = FoldedConvolution(width, width, linear=True)
        self.blocks = nn.ModuleList(FoldedConvolution(width, width, 3, linear=True) for _ in range(2))
        self.head = FoldedConvolution(width, 2, linear=True)
        with torch.no_grad():
            self.head.weight.mul_(0.1)
            self.head.bias.copy_(torch.tensor([SIZE if absolute else 0.0, SURE]))  # type: ignore[union-attr]
        self.register_buffer("mean", torch.zeros(COLOURS))
        self.register_buffer("std", torch.ones(COLOURS))

    @torch.no_grad()
    def set_normalisation(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Set the mean and std by which looks are normalised."""
        self.mean.copy_(torch.tensor(mean))
        self.std.copy_(torch.tensor(std))

    def pretrained(self) -> list[nn.Parameter]:
        """Return the parameters of the stages, which learn more slowly than those of the head."""
        return [*self.stem.parameters(), *self.stages.parameters()]

    def forward(self, looks: Tensor) -> Tensor:
        small, large = self.features(looks)
        f = F.avg_pool2d(self.joins[0](small), 2, ceil_mode=True, count_include_pad=False) + self.joins[1](large)
        f = F.gelu(f)
        f = f + F.gelu(self.blocks[0](f)) + self.context(f.mean(dim=(2, 3), keepdim=True))
        f = f + F.gelu(self.blocks[1](f))
        raw = self.head(f).to(compute_dtype(looks.dtype))
        rows, columns = (
            _reading(cells, side, raw) for cells, side in zip(raw.shape[-2:], looks.shape[-2:], strict=True)
        )
        return rows @ raw @ columns.T

    def features(self, looks: Tensor) -> list[Tensor]:
        """Return the features of strides 8 and 16."""
        mean, std = (value.to(looks)[:, None, None] for value in (self.mean, self.std))
        x = torch.addcmul(2 * mean - 1, looks, 2 * std)  # the trunk learned from images in [−1, 1]
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        found = []
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number in TAPPED:
                found.append(x)
        return found


TRUNKS: dict[str, type[EfficientNetLite0]] = {"efficientnet_lite0": EfficientNetLite0}


def shrink_look(images: Tensor, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return ``conventions.resize(images, *size)`` in ``dtype``, computed in it, too: half precision costs half.

    >>> shrink_look(torch.rand(2, 3, 48, 64), (12, 16), torch.bfloat16).dtype
    torch.bfloat16
    """
    exact = compute_dtype(dtype)
    rows, columns = (
        resize_matrix(side, new, exact, images.device).to(dtype)
        for side, new in zip(images.shape[-2:], size, strict=True)
    )
    return (rows @ (images.to(dtype) @ columns.T)).contiguous(memory_format=torch.channels_last)


def _reading(cells: int, side: int, like: Tensor) -> Tensor:
    """Return weights that interpolate ``cells`` of ``SPACING`` pixels at even places from corner to corner."""
    places = coordinates(round(PLACES * cells), dtype=like.dtype, device=like.device) * (side - 1)
    places = ((places - (SPACING - 1) / 2) / SPACING).clamp(0, cells - 1)
    centres = torch.arange(cells, dtype=like.dtype, device=like.device)
    return (1 - (places[:, None] - centres).abs()).clamp_min(0)
