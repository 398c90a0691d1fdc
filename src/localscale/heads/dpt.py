"""``DPTHead`` turns a backbone's features into class scores for every pixel (Ranftl, Bochkovskiy, Koltun 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from localscale.conventions import stretch
from localscale.errors import ConfigError, ShapeError

__all__ = ["DPTHead"]

FINEST_STRIDE = 4


class DPTHead(nn.Module):
    """Bring features to strides 4, 8, 16, 32, fuse them from coarse to fine, and score every pixel.

    The features of a plain transformer all have one stride; transposed and strided convolutions resample them. The
    features of a pyramid are resampled only where their stride differs from the one needed. Strides that are not powers
    of two, such as DINOv2's 14, are treated as the nearest power of two.

    Convention: corners stay on corners (``align_corners=True``) in every upsampling.

    Args:
        channels: channels of each feature, finest or shallowest first.
        strides: image pixels per feature pixel, for each feature.
        classes: number of classes, which is the number of scores per pixel.
        width: channels of the fused path.
        neck: channels of each feature after its projection. The default is that of DPT-Base, C/8, C/4, C/2 and C, if
            all features have one stride, and ``channels`` for a pyramid.
        dropout: probability of dropping an activation before the classifier, in training.

    >>> head = DPTHead((192,) * 4, (16,) * 4, classes=5, width=32)
    >>> head([torch.rand(2, 192, 4, 6)] * 4, size=(64, 96)).shape
    torch.Size([2, 5, 64, 96])
    """

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        classes: int,
        *,
        width: int = 256,
        neck: Sequence[int] | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        neck = _usual_neck(channels, strides) if neck is None else tuple(neck)
        _check(channels, strides, neck, classes, width, dropout)
        last = len(channels) - 1
        self.reassemble = nn.ModuleList(
            Reassemble(entering, inside, width, doublings=_doublings(stride, FINEST_STRIDE * 2**level))
            for level, (entering, inside, stride) in enumerate(zip(channels, neck, strides, strict=True))
        )
        self.fuse = nn.ModuleList(Fusion(width, deepest=level == last) for level in range(len(channels)))
        self.refine = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(dropout)
        )
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, features: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Return scores ``(B, classes, H, W)`` for images of ``size`` (H, W), from features ``(B, C, h, w)``."""
        if len(features) != len(self.reassemble):
            raise ShapeError(f"{len(features)} features came; expected {len(self.reassemble)}, finest first")
        levels = [reassemble(feature) for reassemble, feature in zip(self.reassemble, features, strict=True)]
        self._check_batch(levels[-1])
        finest = levels[0].shape
        sizes = [(2 * finest[2], 2 * finest[3]), *((level.shape[2], level.shape[3]) for level in levels)]
        path: Tensor | None = None
        for index in reversed(range(len(levels))):
            path = self.fuse[index](levels[index], path, sizes[index])
        return stretch(self.classifier(self.refine(path)), *size)

    def _check_batch(self, deepest: Tensor) -> None:
        batch, _, height, width = deepest.shape
        if self.training and batch == height == width == 1:
            raise ShapeError(
                "the batch is one image whose deepest feature is a single pixel, and batch normalisation cannot train "
                "on one value; use more or larger images, or call eval()"
            )


class Reassemble(nn.Module):
    """Project a feature ``(B, C, h, w)``, resample it to its level's stride, and convolve it to the path's width."""

    def __init__(self, channels: int, inside: int, width: int, *, doublings: int) -> None:
        super().__init__()
        as_it_is = channels == inside and doublings == 0
        self.project = nn.Identity() if as_it_is else nn.Conv2d(channels, inside, 1)
        self.resample = _resampling(inside, doublings)
        self.mix = nn.Conv2d(inside, width, 3, padding=1, bias=False)

    def forward(self, feature: Tensor) -> Tensor:
        return self.mix(self.resample(self.project(feature)))


class Fusion(nn.Module):
    """Add a level to the path from the coarser levels, refine the sum, and upsample it to the next finer size."""

    def __init__(self, width: int, *, deepest: bool) -> None:
        super().__init__()
        self.enter = None if deepest else ResidualUnit(width)
        self.refine = ResidualUnit(width)
        self.project = nn.Conv2d(width, width, 1)

    def forward(self, level: Tensor, path: Tensor | None, size: tuple[int, int]) -> Tensor:
        merged = level if self.enter is None or path is None else path + self.enter(level)
        # A 1 × 1 convolution commutes with an interpolation; before the upsampling it costs a quarter.
        return stretch(self.project(self.refine(merged)), *size)


class ResidualUnit(nn.Module):
    """Add two 3 × 3 convolutions, each after a ReLU and with batch normalisation, as DPT does for segmentation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.convolutions(x)


def _doublings(stride: int, wanted: int) -> int:
    """Return how often a feature's sides must double to change its stride to ``wanted``; negative if they halve."""
    return round(math.log2(stride / wanted))


def _resampling(channels: int, doublings: int) -> nn.Module:
    step = 2 ** abs(doublings)
    if doublings > 0:
        return nn.ConvTranspose2d(channels, channels, step, stride=step)
    if doublings < 0:
        return nn.Conv2d(channels, channels, step + 1, stride=step, padding=step // 2)
    return nn.Identity()


def _usual_neck(channels: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    if len(set(strides)) > 1:
        return tuple(channels)
    deepest = len(channels) - 1
    return tuple(max(1, count >> (deepest - level)) for level, count in enumerate(channels))


def _check(
    channels: Sequence[int],
    strides: Sequence[int],
    neck: Sequence[int],
    classes: int,
    width: int,
    dropout: float,
) -> None:
    if len(channels) < 2 or not len(channels) == len(strides) == len(neck):
        raise ConfigError(
            f"channels has {len(channels)} entries, strides {len(strides)} and neck {len(neck)}; "
            "expected the same number of each, at least 2"
        )
    for name, values in {"channels": channels, "strides": strides, "neck": neck}.items():
        if min(values) < 1:
            raise ConfigError(f"{name} is {tuple(values)}; expected positive numbers")
    if classes < 1:
        raise ConfigError(f"classes is {classes}; expected at least 1 score per pixel")
    if width < 1:
        raise ConfigError(f"width is {width}; expected at least 1 channel, 256 as in DPT")
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout is {dropout}; expected 0 or more, and less than 1")
