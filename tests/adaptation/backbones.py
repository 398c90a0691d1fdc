"""Tiny networks of every supported family, with random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers
from dec_configs import dec_config
from torch import Tensor, nn

from localscale import AdaptedModel, DECConfig, Picard, Site, SizeNetwork, adapt

TIMM_VIT = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3, "num_classes": 5}
TIMM_DINO = {**TIMM_VIT, "img_size": 56}
TIMM_SWIN = {"img_size": 64, "window_size": 4, "depths": (1, 1), "num_heads": (2, 4), "embed_dim": 24, "num_classes": 5}
HF_VIT = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "num_labels": 5,
}
HF_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 12,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
    "num_labels": 5,
}
SMALL: dict[str, Any] = {"knots": 4, "channels": (8, 8), "resolution": 16}


class Body(nn.Module):
    """A module that mixes channels, in any layout."""

    def __init__(self, channels: int, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.mix: nn.Module = nn.Conv2d(channels, channels, 1) if layout == "NCHW" else nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.mix(x))


class Custom(nn.Module):
    """A custom network: patches, then a body in the given layout."""

    def __init__(self, layout: str, stride: tuple[int, int] = (4, 4), prefix: int = 0) -> None:
        super().__init__()
        self.layout = layout
        self.stem = nn.Conv2d(3, 6, kernel_size=stride, stride=stride)
        self.prefix = nn.Parameter(torch.zeros(prefix, 6)) if prefix else None
        self.trunk = nn.ModuleDict({"body": Body(6, layout)})
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.layout == "NHWC":
            x = x.permute(0, 2, 3, 1)
        if self.layout == "tokens":
            x = x.flatten(2).transpose(1, 2)
            if self.prefix is not None:
                x = torch.cat((self.prefix.expand(len(x), -1, -1), x), dim=1)
        x = torch.tanh(self.trunk["body"](x)) ** 2
        return self.head(x.mean(dim=(2, 3)) if self.layout == "NCHW" else x.flatten(1, -2).mean(dim=1))


@dataclass(frozen=True)
class Backbone:
    """A function that makes a network, its image size, and a site in it."""

    make: Callable[[], nn.Module]
    size: tuple[int, int]
    site: str | Site

    def build(self, seed: int = 0) -> nn.Module:
        """Return the network in eval mode, with noise on every weight, because some heads start at zero."""
        torch.manual_seed(seed)
        model = self.make().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return model

    def adapted(self, model: nn.Module | None = None, **settings: Any) -> AdaptedModel:
        config = dec_config(**{"sites": ("input", self.site), **SMALL, **settings})
        return adapt(self.build() if model is None else model, config, input_size=(3, *self.size)).eval()

    def images(self, batch: int = 2, seed: int = 1) -> Tensor:
        return torch.randn(batch, 3, *self.size, generator=torch.Generator().manual_seed(seed))


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, **settings)


TIMM = {
    "timm ViT": Backbone(_timm("vit_tiny_patch16_224", **TIMM_VIT), (64, 64), "blocks.0"),
    "timm DeiT": Backbone(_timm("deit_tiny_patch16_224", **TIMM_VIT), (64, 64), "blocks.0"),
    "timm DeiT distilled": Backbone(_timm("deit_tiny_distilled_patch16_224", **TIMM_VIT), (64, 64), "blocks.0"),
    "timm Swin": Backbone(_timm("swin_tiny_patch4_window7_224", **TIMM_SWIN), (64, 64), "layers.1"),
    "timm BEiT": Backbone(_timm("beit_base_patch16_224", **TIMM_VIT), (64, 64), "blocks.0"),
    "timm DINOv2": Backbone(_timm("vit_small_patch14_dinov2", **TIMM_DINO), (56, 56), "blocks.0"),
    "timm DINOv2 registers": Backbone(_timm("vit_small_patch14_reg4_dinov2", **TIMM_DINO), (56, 56), "blocks.0"),
    "timm ResNet": Backbone(_timm("test_resnet", num_classes=5), (64, 64), "layer2"),
    "timm EfficientNet": Backbone(_timm("test_efficientnet", num_classes=5), (64, 64), "blocks.2"),
}
TRANSFORMERS = {
    "transformers ViT": Backbone(
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**HF_VIT)), (32, 32), "vit.layers.0"
    ),
    "transformers Swin": Backbone(
        lambda: transformers.SwinForImageClassification(transformers.SwinConfig(**HF_SWIN)),
        (32, 32),
        "swin.encoder.layers.1.blocks.0",
    ),
    "transformers BEiT": Backbone(
        lambda: transformers.BeitForImageClassification(transformers.BeitConfig(**HF_VIT)), (32, 32), "beit.layers.0"
    ),
    "transformers DINOv2": Backbone(
        lambda: transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**HF_VIT)),
        (32, 32),
        "dinov2.encoder.layer.0",
    ),
}
TORCHVISION = {
    "torchvision ResNet": Backbone(
        lambda: torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=5),
        (64, 64),
        "layer2",
    ),
    "torchvision Swin": Backbone(
        lambda: torchvision.models.SwinTransformer([4, 4], 24, [1, 1], [2, 2], [4, 4], num_classes=5),
        (64, 64),
        "features.1",
    ),
    "torchvision ViT": Backbone(
        lambda: torchvision.models.VisionTransformer(32, 8, 2, 2, 24, 48, num_classes=5),
        (32, 32),
        "encoder.layers.encoder_layer_0",
    ),
}
CUSTOM = {
    "custom NCHW": Backbone(lambda: Custom("NCHW"), (32, 48), Site("trunk.body", layout="NCHW", channels=6)),
    "custom NHWC": Backbone(lambda: Custom("NHWC"), (32, 48), Site("trunk.body", layout="NHWC", channels=6)),
    "custom tokens": Backbone(
        lambda: Custom("tokens", stride=(4, 8), prefix=2),
        (32, 48),
        Site("trunk.body", layout="tokens", channels=6, prefix=2, stride=(4, 8)),
    ),
}
BACKBONES = {**TIMM, **TRANSFORMERS, **TORCHVISION, **CUSTOM}
VIT, RESNET = BACKBONES["timm ViT"], BACKBONES["timm ResNet"]


def vit(**settings: Any) -> nn.Module:
    """Return a tiny timm ViT with the given settings."""
    return Backbone(_timm("vit_tiny_patch16_224", **{**TIMM_VIT, **settings}), (64, 64), "blocks.0").build()


def logits(answer: Any) -> Tensor:
    """Return the logits of a classifier's output; transformers wraps them."""
    return answer if isinstance(answer, Tensor) else answer.logits


def randomise_heads(model: AdaptedModel, std: float = 0.3) -> AdaptedModel:
    """Give the canonicalizers random last layers, so that their maps differ from the identity."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for canonicalizer in model.canonicalizers.values():
            for name, parameter in canonicalizer.named_parameters():
                if name.startswith("network.to_"):
                    parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    return model


LOOSE = {"tolerance": 1e-3, "max_steps": 40}


def trained(backbone: Backbone = VIT, base: nn.Module | None = None, **settings) -> AdaptedModel:
    """An adapted model whose maps are far from the identity."""
    return randomise_heads(backbone.adapted(base, **LOOSE | settings))


def gradients(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(images).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def train_head(model: AdaptedModel) -> AdaptedModel:
    with torch.no_grad():
        model.base.head.weight.add_(0.1)
        model.base.head.bias.sub_(0.1)
    return model


def save_trained(path: Path) -> Path:
    """A trained model on VIT's weights, its base unchanged, saved in a folder of ``path``."""
    trained().save_pretrained(path / "saved")
    return path / "saved"


def sized(
    *sites: str, backbone: Backbone = VIT, base: nn.Module | None = None, source_size: Any = None, **settings: Any
) -> AdaptedModel:
    """An adapted model with random size networks, trusted as if they had learned, so that its maps move things.

    ``settings`` are fields of ``DECConfig``; two solver steps with random networks do not reach an equilibrium.
    """
    config: dict[str, Any] = {
        "knots": 4,
        "update": "compose",
        "network": SizeNetwork(width=8, blocks=1, resolution=16),
        "solver": Picard(max_steps=2, tolerance=1e-3, fixed_steps=True),
        "gradient": "implicit",
    }
    base = backbone.build() if base is None else base
    sizes = {"input_size": (3, *backbone.size), "source_size": source_size}
    model = adapt(base, DECConfig(sites=sites, **config | settings), **sizes).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for canonicalizer in model.canonicalizers.values():
            head = canonicalizer.network.head
            head.weight.copy_(0.5 * torch.randn(head.weight.shape, generator=generator))
            canonicalizer.network.trust.fill_(0.5)
    return model
