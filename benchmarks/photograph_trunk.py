"""Read timm's weights of EfficientNet-Lite0 into the trunk of a size network, whose batch norms are folded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from localscale.canonicalizer.trunks import EfficientNetLite0, FoldedConvolution

__all__ = ["convolutions", "load_trunk", "read_weights"]

EPSILON = 1e-3  # of the batch norms
PARTS = (("conv_dw", "bn1"), ("conv_pw", "bn2")), (("conv_pw", "bn1"), ("conv_dw", "bn2"), ("conv_pwl", "bn3"))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file in float32; int8 tensors are multiplied by the ``.scale`` beside them.

    A scale holds one number per output channel.
    """
    held = load_file(path)
    scales = {name for name in held if name.endswith(".scale") and name.removesuffix(".scale") in held}
    found = {}
    for name, tensor in held.items():
        if name in scales:
            continue
        if f"{name}.scale" in scales:
            scale = held[f"{name}.scale"].float()
            tensor = tensor.float() * scale.view(-1, *(1,) * (tensor.dim() - 1))
        found[name] = tensor.float() if tensor.is_floating_point() else tensor
    return found


def convolutions(trunk: EfficientNetLite0) -> Iterator[tuple[FoldedConvolution, str, str]]:
    """Yield the convolutions of the stages with the names of timm's convolutions and batch norms."""
    yield trunk.stem, "conv_stem", "bn1"
    for number, stage in enumerate(trunk.stages):
        blocks: Any = stage
        for index, block in enumerate(blocks):
            names = PARTS[len(block) - 2]
            for layer, (convolution, norm) in zip(block, names, strict=True):
                yield layer, f"blocks.{number}.{index}.{convolution}", f"blocks.{number}.{index}.{norm}"


def gain_of(state: dict[str, Tensor], norm: str) -> Tensor:
    """Return the factor γ/√(σ² + ε) by which a batch norm multiplies each channel."""
    return state[f"{norm}.weight"].float() * (state[f"{norm}.running_var"].float() + EPSILON).rsqrt()


@torch.no_grad()
def load_trunk(trunk: EfficientNetLite0, state: dict[str, Tensor]) -> None:
    """Load timm's ``tf_efficientnet_lite0`` into the stages of ``trunk``."""
    for layer, convolution, norm in convolutions(trunk):
        gain = gain_of(state, norm)
        layer.weight.copy_(state[f"{convolution}.weight"] * gain[:, None, None, None])
        assert layer.bias is not None
        layer.bias.copy_(state[f"{norm}.bias"] - gain * state[f"{norm}.running_mean"])
