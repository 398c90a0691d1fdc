"""``segmenter`` puts a DPT head on a timm backbone for semantic segmentation."""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation.discover import usual_input_size
from localscale.conventions import stretch
from localscale.errors import ConfigError, LocalScaleError, ShapeError
from localscale.heads.dpt import DPTHead

logger = logging.getLogger(__name__)

__all__ = ["Segmenter", "segmenter"]

USUAL_FEATURES = 4


def segmenter(backbone: nn.Module, classes: int, *, width: int = 256, layers: Sequence[int] | None = None) -> Segmenter:
    """Put a DPT head on ``backbone``, which can be any timm model with ``forward_intermediates``.

    The classifier, the final norm and the blocks after the last layer used are removed from ``backbone`` in place.
    Parts that timm cannot remove are frozen, so that every parameter with ``requires_grad`` receives a gradient. Load
    pretrained weights before calling this function.

    Args:
        backbone: such as ``timm.create_model("vit_base_patch16_224", pretrained=True, dynamic_img_size=True)``.
        classes: number of classes, which is the number of scores per pixel.
        width: channels of the head; 256 in DPT.
        layers: increasing indices into ``backbone.feature_info``. The default is four: evenly spaced over the depth of
            a plain transformer (2, 5, 8, 11 of 12 blocks), or the last stages of a pyramid.

    >>> import timm
    >>> model = segmenter(timm.create_model("vit_tiny_patch16_224", dynamic_img_size=True), classes=5, width=32)
    >>> model.layers, model(torch.rand(2, 3, 64, 90)).shape
    ((2, 5, 8, 11), torch.Size([2, 5, 64, 90]))
    """
    channels, strides = _features_of(backbone)
    taken = _usual_layers(strides) if layers is None else _checked_layers(layers, len(strides))
    head = DPTHead([channels[i] for i in taken], [strides[i] for i in taken], classes, width=width)
    _prune(backbone, taken)
    model = Segmenter(backbone, head, taken)
    _freeze_unreached(model)
    return model


class Segmenter(nn.Module):
    """A backbone with a DPT head that scores every pixel; made by ``segmenter``.

    Images may have any size that the backbone takes. If their sides are not multiples of the patch size, they are first
    stretched to the next multiple, corners on corners, so that the patches cover exactly the image; the scores are
    returned at the original size.

    ``pretrained_cfg`` is the backbone's with its actual input size, which ``localscale.adapt`` reads.
    The names of sites start with ``backbone``, such as ``"backbone.blocks.0"``.

    >>> import timm
    >>> swin = timm.create_model("swin_tiny_patch4_window7_224", strict_img_size=False)
    >>> segmenter(swin, classes=3, width=16).eval()(torch.rand(1, 3, 65, 50)).shape
    torch.Size([1, 3, 65, 50])
    """

    def __init__(self, backbone: Any, head: DPTHead, layers: Sequence[int]) -> None:
        super().__init__()
        self.backbone, self.layers = backbone, tuple(layers)
        weight = next(backbone.parameters(), torch.empty(0))
        self.head = head.to(device=weight.device, dtype=weight.dtype)
        self.input_size = usual_input_size(backbone)
        self.patch = _patch(backbone, self.layers)
        self.pretrained_cfg = {
            **(getattr(backbone, "pretrained_cfg", None) or {}),
            "input_size": self.input_size,
            "num_classes": head.classifier.out_channels,
            "classifier": "head.classifier",
        }
        self.train(backbone.training)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores ``(B, classes, H, W)`` for images ``(B, C, H, W)``."""
        if images.dim() != 4 or not images.is_floating_point():
            raise ShapeError(
                f"images are {images.dtype} of shape {tuple(images.shape)}; "
                "expected floating (batch, channels, height, width)"
            )
        size = (images.shape[2], images.shape[3])
        if size[0] < self.patch[0] or size[1] < self.patch[1]:
            raise ShapeError(
                f"images are {_by(size)}; expected at least {_by(self.patch)}, one patch of {self._backbone_name}"
            )
        return self.head(self._features(stretch(images, *self._whole_patches(size))), size)

    def no_weight_decay(self) -> set[str]:
        """Return the parameters that timm excludes from weight decay, such as position embeddings."""
        names: Any = getattr(self.backbone, "no_weight_decay", set)
        return {f"backbone.{name}" for name in names()}

    @property
    def _backbone_name(self) -> str:
        return type(self.backbone).__name__

    def _whole_patches(self, size: tuple[int, int]) -> tuple[int, int]:
        height, width = (-(-side // patch) * patch for side, patch in zip(size, self.patch, strict=True))
        return height, width

    def _features(self, images: Tensor) -> list[Tensor]:
        if torch.compiler.is_compiling() or tuple(images.shape[1:]) == self.input_size:
            return _intermediates(self.backbone, images, self.layers)
        try:
            return _intermediates(self.backbone, images, self.layers)
        except (AssertionError, RuntimeError, ValueError) as error:
            if isinstance(error, LocalScaleError | torch.OutOfMemoryError):
                raise
            channels, *size = images.shape[1:]
            raise ShapeError(
                f"{self._backbone_name} did not take {channels}×{_by(size)} images "
                f"({str(error) or type(error).__name__}); "
                f"it was built for {self.input_size[0]}×{_by(self.input_size[1:])}{self._remedy(size)}"
            ) from error

    def _remedy(self, size: Sequence[int]) -> str:
        """Name the argument of the backbone that makes it take other sizes."""
        known = inspect.signature(type(self.backbone)).parameters
        if hasattr(self.backbone, "dynamic_img_size"):
            return "" if self.backbone.dynamic_img_size else "; create it with dynamic_img_size=True for any size"
        if "strict_img_size" in known:
            strict = getattr(self.backbone.patch_embed, "strict_img_size", True)  # timm before 1.0.31
            return "; create it with strict_img_size=False for any size" if strict else ""
        return f"; create it with img_size=({size[0]}, {size[1]})" if "img_size" in known else ""


def _intermediates(backbone: Any, images: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """Return the features ``(B, C, h, w)`` after ``layers``, without the final norm, as in DPT."""
    return backbone.forward_intermediates(
        images, indices=list(layers), norm=False, output_fmt="NCHW", intermediates_only=True
    )


def _by(size: Sequence[int]) -> str:
    return f"{size[0]}×{size[1]}"


def _features_of(backbone: Any) -> tuple[list[int], list[int]]:
    """Return the channels and strides of every feature in ``backbone.feature_info``."""
    name = type(backbone).__name__
    if not callable(getattr(backbone, "forward_intermediates", None)):
        raise ConfigError(
            f"{name} has no forward_intermediates; expected a timm model that has it, such as a ViT, Swin, ResNet or "
            "ConvNeXt, created without features_only and not yet wrapped or adapted"
        )
    infos = list(getattr(backbone, "feature_info", None) or ())
    if len(infos) < 2:
        raise ConfigError(f"{name} describes {len(infos)} features in its feature_info; expected at least 2")
    return [info["num_chs"] for info in infos], [info["reduction"] for info in infos]


def _usual_layers(strides: Sequence[int]) -> tuple[int, ...]:
    """Choose four features: evenly spaced ones if the last four share a stride, else the last four, as in a pyramid.

    >>> _usual_layers([16] * 12), _usual_layers([2, 4, 8, 16, 32])
    ((2, 5, 8, 11), (1, 2, 3, 4))
    """
    wanted = min(USUAL_FEATURES, len(strides))
    if len(set(strides[-wanted:])) > 1:
        return tuple(range(len(strides) - wanted, len(strides)))
    first = strides.index(strides[-1])
    depth = len(strides) - first
    return tuple(first + (part + 1) * depth // wanted - 1 for part in range(wanted))


def _checked_layers(layers: Sequence[int], count: int) -> tuple[int, ...]:
    taken = tuple(layers)
    rising = all(before < after for before, after in itertools.pairwise(taken))
    if len(taken) < 2 or not rising or taken[0] < 0 or taken[-1] >= count:
        raise ConfigError(f"layers is {taken}; expected at least 2 increasing indices from 0 to {count - 1}")
    return taken


def _patch(backbone: Any, layers: Sequence[int]) -> tuple[int, int]:
    """Return the (height, width) that must divide an image's sides: a transformer's patch, else one pixel."""
    embed: Any = getattr(backbone, "patch_embed", None)
    if hasattr(embed, "feat_ratio"):
        height, width = embed.feat_ratio(as_scalar=False)
        return int(height), int(width)
    strides = {_features_of(backbone)[1][layer] for layer in layers}
    patch = strides.pop() if len(strides) == 1 else 1
    return patch, patch


def _prune(backbone: Any, layers: Sequence[int]) -> None:
    """Remove the layers that the features do not need, as far as timm can."""
    prune = getattr(backbone, "prune_intermediate_layers", None)
    if prune is None:
        return
    try:
        prune(list(layers), prune_norm=True, prune_head=True)
    except AssertionError:  # timm cannot remove some heads; _freeze_unreached freezes them
        prune(list(layers), prune_norm=True, prune_head=False)


def _freeze_unreached(model: Segmenter) -> None:
    """Freeze parameters that no feature depends on, since DistributedDataParallel would wait for their gradients.

    They are found by a forward and backward pass of a copy on the meta device, which needs no memory.
    """
    tensors: dict[int, Any] = {id(b): torch.empty_like(b, device="meta") for b in model.backbone.buffers()}
    for p in model.backbone.parameters():
        tensors[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
    try:
        on_meta = copy.deepcopy(model.backbone, tensors)
        trainable = {name: p for name, p in on_meta.named_parameters() if p.requires_grad}
        if not trainable:
            return
        images = torch.empty(2, *model.input_size, dtype=next(iter(trainable.values())).dtype, device="meta")
        with torch.enable_grad():
            ends = [f.sum() for f in _intermediates(on_meta, images, model.layers) if f.requires_grad]
            reached = torch.autograd.grad(ends, list(trainable.values()), allow_unused=True)
    except Exception as error:
        logger.warning(
            "%s cannot run on the meta device (%s), so its unused parameters were not frozen; "
            "DistributedDataParallel may need find_unused_parameters=True",
            type(model.backbone).__name__,
            error,
        )
        return
    for name, gradient in zip(trainable, reached, strict=True):
        if gradient is None:
            model.backbone.get_parameter(name).requires_grad_(False)
