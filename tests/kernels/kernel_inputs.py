"""Canonicalizers whose maps are not the identity, inputs for them, and a switch between kernels and plain PyTorch."""

import pytest
import torch
from dec_configs import dec_config
from torch import Tensor, nn

import localscale as ls
from localscale import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def use_kernels(monkeypatch: pytest.MonkeyPatch, on: bool = True) -> None:
    """Turn kernels on, interpreted if there is no GPU, or off."""
    monkeypatch.setattr(kernels, "available", lambda *_: on)


def canonicalizer_for(
    in_channels: int, update: str, fixed_steps: bool, channels: tuple[int, ...], spread: float = 0.3, **settings
) -> ls.Canonicalizer:
    torch.manual_seed(0)
    solver = {"max_steps": 3, "solver": "picard"} if update == "compose" else {"max_steps": 6}
    settings = {"channels": channels, "resolution": 30, "fixed_steps": fixed_steps} | solver | settings
    config = dec_config(update=update, **settings)
    canonicalizer = ls.Canonicalizer(in_channels, (5, 4), config)
    for layer in (canonicalizer.network.to_x, canonicalizer.network.to_y):
        nn.init.normal_(layer.weight, std=spread)
    return canonicalizer.to(DEVICE)  # drawn on the CPU, so that every device gets the same weights


def features_for(in_channels: int, size: tuple[int, int] | None = None) -> Tensor:
    size = size or ((34, 30) if in_channels == 3 else (8, 9))  # the first layer halves the larger of the two
    features = torch.rand(2, in_channels, *size, generator=torch.Generator().manual_seed(0))
    return features.mul(torch.tensor([1.0, 0.02]).view(2, 1, 1, 1)).to(DEVICE)  # the second image converges sooner
