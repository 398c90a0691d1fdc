"""Canonicalizers that move something, and what they look at."""

import torch
from dec_configs import dec_config
from torch import Tensor, nn

import localscale as ls

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def canonicalizer_for(
    in_channels: int, update: str, fixed: bool, channels: tuple[int, ...], spread: float = 0.3, **settings
) -> ls.Canonicalizer:
    torch.manual_seed(0)
    solver = {"max_steps": 3, "solver": "picard"} if update == "compose" else {"max_steps": 6}
    settings = {"channels": channels, "resolution": 30, "fixed_steps": fixed} | solver | settings
    config = dec_config(update=update, **settings)
    canonicalizer = ls.Canonicalizer(in_channels, (5, 4), config)
    for layer in (canonicalizer.network.to_x, canonicalizer.network.to_y):
        nn.init.normal_(layer.weight, std=spread)
    return canonicalizer.to(DEVICE)  # drawn before, so that every device gets the same


def features_for(in_channels: int) -> Tensor:
    size = (34, 30) if in_channels == 3 else (8, 9)  # of which the first layer halves the larger
    features = torch.rand(2, in_channels, *size, generator=torch.Generator().manual_seed(0))
    return features.mul(torch.tensor([1.0, 0.02]).view(2, 1, 1, 1)).to(DEVICE)  # of which the second rests sooner
