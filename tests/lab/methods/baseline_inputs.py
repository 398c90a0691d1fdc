"""Small backbones, pictures and draws for the methods to train on."""

from __future__ import annotations

import math
from typing import Any

import timm
import torch
import torch.nn.functional as F
from dec_configs import dec_config
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel
from localscale.lab.methods import DEC, DiscreteCanonicalizer, SaliencySampler
from localscale.lab.randomness import Draws

SMALL: dict[str, Any] = {
    "knots": 4, "channels": (4, 6), "resolution": 16, "max_steps": 3, "tolerance": 1e-3, "fixed_steps": True,
}  # fmt: skip
METHOD_FIELDS = ("supervision", "prior", "separation", "identity", "supervised_scaling")
LABELS = torch.tensor([0, 3, 1])


class TinyCNN(nn.Module):
    """Two convolutions and a mean, smooth everywhere."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, stride=2), nn.Conv2d(6, 8, 3, stride=2)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(x.mean(dim=(2, 3)))


def cnn(dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TinyCNN().to(dtype)


def vit() -> nn.Module:
    """Return a tiny timm ViT whose head is not zero."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2, "num_classes": 4}
        model = timm.create_model("vit_tiny_patch16_224", patch_size=8, **sizes)
        nn.init.normal_(model.head.weight, std=0.3)
    return model


def images(batch: int = 3, size: int = 32, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return sums of four plane waves of at most two periods, which interpolation hardly changes."""
    rng = torch.Generator().manual_seed(seed)
    wave = torch.rand(3, batch, 3, 4, 1, 1, generator=rng, dtype=dtype) * 2
    place = torch.linspace(0, 1, size, dtype=dtype)
    return torch.sin(2 * math.pi * (wave[0] * place + wave[1] * place[:, None] + wave[2])).sum(dim=2)


def draws(batch: int = 3, seed: int = 0) -> Draws:
    return Draws(seed, torch.arange(batch))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def randomise(model: nn.Module, std: float = 0.5) -> nn.Module:
    """Draw the last layers, which start at zero, from N(0, ``std``²), as if the model had been trained."""
    rng = torch.Generator().manual_seed(2)
    networks = [model.energy] if isinstance(model, DiscreteCanonicalizer) else []
    if isinstance(model, SaliencySampler):
        networks = [model.saliency]
    if isinstance(model, AdaptedModel):
        networks = [canonicalizer.network for canonicalizer in model.canonicalizers.values()]
    assert networks
    with torch.no_grad():
        for network in networks:
            for name, parameter in network.named_parameters():
                if name.startswith("to_"):
                    parameter.copy_(std * torch.randn(parameter.shape, generator=rng))
    return model


def dec(**settings: Any) -> DEC:
    """Return a small DEC; the fields of its configuration, solver and network are given flat."""
    own = {name: settings.pop(name) for name in METHOD_FIELDS if name in settings}
    return DEC(dec_config(**{**SMALL, **settings}), **own)
