"""The smallest HRViT and ResFormer that have every part of the real ones."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from localscale.lab.backbones import HRViT, HRViTConfig, ResFormer

HRVIT, RESFORMER = "hrvit_b1", "resformer_tiny_patch16_224"

TINY_HRVIT = HRViTConfig(
    stem=16,
    channels=(8, 16, 32),
    windows=(1, 2, 3),
    heads=(1, 1, 2),
    ratio=2,
    blocks=(((1,),), ((1, 1),), ((1, 1, 2), (1, 1, 1))),
)

SMALLEST_HRVIT = HRViTConfig(  # quick to compile
    stem=8, channels=(8, 16), windows=(1, 7), heads=(1, 1), ratio=2, blocks=(((1,),), ((1, 1),))
)

TINY: dict[str, Callable[..., nn.Module]] = {
    HRVIT: lambda **settings: HRViT(TINY_HRVIT, num_classes=5, **settings),
    RESFORMER: lambda **settings: ResFormer(embed_dim=24, depth=2, num_heads=2, num_classes=5, **settings),
}


def tiny(name: str, **settings: float) -> nn.Module:
    """Return a tiny model with random changes to all weights and statistics."""
    torch.manual_seed(0)
    return shaken(TINY[name](**settings))


def shaken(model: nn.Module, by: float = 0.2) -> nn.Module:
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(by * torch.randn_like(weight))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, by)
                module.running_var.uniform_(0.5, 2)
    return model


def images(height: int = 48, width: int = 64, *, count: int = 2, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))
