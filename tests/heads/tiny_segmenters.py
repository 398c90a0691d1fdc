"""Small backbones of every family, with random weights, and segmenters on top of them."""

from dataclasses import dataclass, field
from typing import Any

import timm
import torch
from dec_configs import dec_config
from torch import Tensor, nn

from localscale import AdaptedModel, adapt
from localscale.heads import Segmenter, segmenter

VIT = {"img_size": 64, "depth": 4, "embed_dim": 24, "num_heads": 3}
SWIN = {"img_size": 64, "window_size": 4, "depths": (1, 1, 2, 1), "num_heads": (1, 1, 2, 2), "embed_dim": 12}
RESNET = {"layers": (1, 1, 1, 1), "channels": (8, 12, 16, 20), "stem_width": 8}
CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (8, 12, 16, 20)}


@dataclass(frozen=True)
class Family:
    """A timm model with its settings, those that let it take any image size, and a site to adapt."""

    name: str
    site: str
    settings: dict[str, Any] = field(default_factory=dict)
    any_size: dict[str, Any] | None = field(default_factory=dict)
    size: tuple[int, int] = (64, 64)

    def backbone(self, *, any_size: bool = False, **settings: Any) -> Any:
        torch.manual_seed(0)
        extra = (self.any_size or {}) if any_size else {}
        model = timm.create_model(self.name, **{**self.settings, **extra, **settings})
        with torch.no_grad():
            for parameter in model.parameters():  # some start at zero, which would hide the layers after them
                parameter.add_(0.02 * torch.randn_like(parameter))
        return model

    def segmenter(self, *, any_size: bool = False, classes: int = 5, **settings: Any) -> Segmenter:
        return segmenter(self.backbone(any_size=any_size, **settings), classes, width=8)

    def images(self, batch: int = 2, size: tuple[int, int] | None = None) -> Tensor:
        return torch.randn(batch, 3, *(size or self.size), generator=torch.Generator().manual_seed(1))


DYNAMIC = {"dynamic_img_size": True}
FAMILIES = {
    "ViT": Family("vit_tiny_patch16_224", "backbone.blocks.0", VIT, DYNAMIC),
    "DeiT": Family("deit_tiny_patch16_224", "backbone.blocks.1", VIT, DYNAMIC),
    "DeiT distilled": Family("deit_tiny_distilled_patch16_224", "backbone.blocks.1", VIT, DYNAMIC),
    "DINOv2": Family("vit_small_patch14_dinov2", "backbone.blocks.0", {**VIT, "img_size": 56}, DYNAMIC, (56, 56)),
    "DINOv2 registers": Family(
        "vit_small_patch14_reg4_dinov2", "backbone.blocks.0", {**VIT, "img_size": 56}, DYNAMIC, (56, 56)
    ),
    "BEiT": Family("beit_base_patch16_224", "backbone.blocks.0", VIT, None),
    "Swin": Family("swin_tiny_patch4_window7_224", "backbone.layers.1", SWIN, {"strict_img_size": False}),
    "ResNet": Family("resnet18", "backbone.layer2", RESNET),
    "ConvNeXt": Family("convnext_atto", "backbone.stages.1", CONVNEXT),
    "EfficientNet": Family("test_efficientnet", "backbone.blocks.2"),
}
PLAIN = [name for name, family in FAMILIES.items() if "blocks" in family.site and name != "EfficientNet"]


def adapted(model: nn.Module, site: str, **settings: Any) -> AdaptedModel:
    small: dict[str, Any] = {"sites": ("input", site), "knots": 4, "channels": (8, 8), "resolution": 16}
    return adapt(model, dec_config(**{**small, "tolerance": 1e-3, "max_steps": 40, **settings}))


def randomise_statistics(model: nn.Module) -> None:
    """Draw random statistics of batch normalisations, as if they had been trained."""
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(0.1 * torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=generator))


def without_gradient(model: nn.Module) -> list[str]:
    """Return the parameters that require a gradient but have none, or only zeros."""
    return [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
