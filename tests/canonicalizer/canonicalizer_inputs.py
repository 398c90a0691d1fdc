"""Features, and canonicalizers with random last layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from dec_configs import dec_config
from torch import Tensor

from localscale.canonicalizer import Canonicalizer


def noise(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Independent normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def smooth(batch: int, channels: int, size: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return sums of four plane waves of at most two periods, with a small interpolation error."""
    rng = torch.Generator().manual_seed(seed)
    wave = torch.rand(3, batch, channels, 4, 1, 1, generator=rng, dtype=dtype) * 2
    place = torch.linspace(0, 1, size, dtype=dtype)
    angle = wave[0] * place + wave[1] * place[:, None] + wave[2]
    return torch.sin(2 * math.pi * angle).sum(dim=2)


def canonicalizer(
    in_channels: int,
    knots: tuple[int, int] = (6, 6),
    *,
    std: float = 0.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **settings: Any,
) -> Canonicalizer:
    """Return a canonicalizer with last layers drawn from N(0, ``std``²)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = Canonicalizer(in_channels, knots, dec_config(**settings)).to(dtype)
        for name, parameter in module.network.named_parameters():
            if name.startswith("to_") and std:
                torch.nn.init.normal_(parameter, std=std)
    return module
