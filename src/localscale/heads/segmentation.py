"""``segmenter``: a timm backbone that answers for every pixel."""

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
    """A DPT head over ``backbone``, any timm model that gives its intermediate features.

    The classifier, the final norm and the blocks after the last layer taken are removed from ``backbone`` itself, and
    what timm leaves of them is frozen: every parameter that asks for a gradient gets one. Load weights before.

    Args:
        backbone: such as ``timm.create_model("vit_base_patch16_224", pretrained=True, dynamic_img_size=True)``.
        classes: scores per pixel.
        width: channels of the head; DPT's 256.
        layers: indices into ``backbone.feature_info``, rising; by default four, evenly over the depth of a plain
            transformer (2, 5, 8, 11 of 12 blocks), the last stages of a pyramid.

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
    """Scores for every pixel of an image, of any size its backbone takes; made by ``segmenter``.

    An image whose sides are no multiple of the patch is first stretched to the next one, corners on corners, so that
    the patches cover the image and nothing else; the scores come back at the image's own size.

    ``pretrained_cfg`` is the backbone's, with the size it was built for, so that ``localscale.adaptation`` finds its
    way; sites inside are named ``"backbone.blocks.0"``.

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
        """Scores ``(B, classes, H, W)`` for images ``(B, C, H, W)``."""
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
        """The parameters that timm does not decay, such as position embeddings."""
        ask: Any = getattr(self.backbone, "no_weight_decay", set)
        return {f"backbone.{name}" for name in ask()}

    @property
    def _backbone_name(self) -> str:
        return type(self.backbone).__name__

    def _whole_patches(self, size: tuple[int, int]) -> tuple[int, int]:
        height, width = (-(-side // patch) * patch for side, patch in zip(size, self.patch, strict=True))
        return height, width

    def _features(self, images: Tensor) -> list[Tensor]:
        if torch.compiler.is_compiling() or tuple(images.shape[1:]) == self.input_size:
            return _ask(self.backbone, images, self.layers)
        try:
            return _ask(self.backbone, images, self.layers)
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
        """Which argument of the backbone's own makes it take other sizes."""
        known = inspect.signature(type(self.backbone)).parameters
        if hasattr(self.backbone, "dynamic_img_size"):
            return "" if self.backbone.dynamic_img_size else "; create it with dynamic_img_size=True for any size"
        if "strict_img_size" in known:
            strict = getattr(self.backbone.patch_embed, "strict_img_size", True)  # timm before 1.0.31
            return "; create it with strict_img_size=False for any size" if strict else ""
        return f"; create it with img_size=({size[0]}, {size[1]})" if "img_size" in known else ""


def _ask(backbone: Any, images: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """The features ``(B, C, h, w)`` after ``layers``, without the final norm, as DPT takes them."""
    return backbone.forward_intermediates(
        images, indices=list(layers), norm=False, output_fmt="NCHW", intermediates_only=True
    )


def _by(size: Sequence[int]) -> str:
    return f"{size[0]}×{size[1]}"


def _features_of(backbone: Any) -> tuple[list[int], list[int]]:
    """Channels and strides of every feature that ``backbone`` can give."""
    name = type(backbone).__name__
    if not callable(getattr(backbone, "forward_intermediates", None)):
        raise ConfigError(
            f"{name} has no forward_intermediates; expected a timm model that has, such as a ViT, Swin, ResNet or "
            "ConvNeXt, as timm.create_model makes it without features_only, before anything wraps or adapts it"
        )
    infos = list(getattr(backbone, "feature_info", None) or ())
    if len(infos) < 2:
        raise ConfigError(f"{name} describes {len(infos)} features in its feature_info; expected at least 2")
    return [info["num_chs"] for info in infos], [info["reduction"] for info in infos]


def _usual_layers(strides: Sequence[int]) -> tuple[int, ...]:
    """Four of the features: the last of a pyramid, or evenly over the depth where the last have one stride.

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
        raise ConfigError(f"layers is {taken}; expected at least 2 rising indices from 0 to {count - 1}")
    return taken


def _patch(backbone: Any, layers: Sequence[int]) -> tuple[int, int]:
    """The (height, width) that an image's sides must be multiples of: the patch of a transformer, else one pixel."""
    embed: Any = getattr(backbone, "patch_embed", None)
    if hasattr(embed, "feat_ratio"):
        height, width = embed.feat_ratio(as_scalar=False)
        return int(height), int(width)
    strides = {_features_of(backbone)[1][layer] for layer in layers}
    patch = strides.pop() if len(strides) == 1 else 1
    return patch, patch


def _prune(backbone: Any, layers: Sequence[int]) -> None:
    """Remove what comes after the features, as far as timm can."""
    prune = getattr(backbone, "prune_intermediate_layers", None)
    if prune is None:
        return
    try:
        prune(list(layers), prune_norm=True, prune_head=True)
    except AssertionError:  # a few heads cannot go: they are frozen
        prune(list(layers), prune_norm=True, prune_head=False)


def _freeze_unreached(model: Segmenter) -> None:
    """Ask no gradient for parameters that no feature depends on: distributed training would wait for theirs.

    A copy of the backbone without memory, on the meta device, is run forward and backward.
    """
    tensors: dict[int, Any] = {id(b): torch.empty_like(b, device="meta") for b in model.backbone.buffers()}
    for p in model.backbone.parameters():
        tensors[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
    try:
        sketch = copy.deepcopy(model.backbone, tensors)
        asking = {name: p for name, p in sketch.named_parameters() if p.requires_grad}
        if not asking:
            return
        images = torch.empty(2, *model.input_size, dtype=next(iter(asking.values())).dtype, device="meta")
        with torch.enable_grad():
            ends = [f.sum() for f in _ask(sketch, images, model.layers) if f.requires_grad]
            reached = torch.autograd.grad(ends, list(asking.values()), allow_unused=True)
    except Exception as error:
        logger.warning(
            "%s cannot be followed without running it (%s): parameters it does not use may still ask for gradients; "
            "DistributedDataParallel then needs find_unused_parameters=True",
            type(model.backbone).__name__,
            error,
        )
        return
    for name, gradient in zip(asking, reached, strict=True):
        if gradient is None:
            model.backbone.get_parameter(name).requires_grad_(False)
