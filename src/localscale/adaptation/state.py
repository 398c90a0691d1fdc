"""The tensors of a model under the names of its base, their checksums, and a description that fits into a tensor."""

from __future__ import annotations

import json
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation.wrapper import AdaptedSite

__all__ = ["DESCRIPTION", "allow_no_description", "as_tensor", "checksum", "checksums", "from_tensor", "plain_state"]

DESCRIPTION = "_extra_state"  # PyTorch's name in a state_dict for what a module adds to its tensors


def plain_state(base: nn.Module) -> dict[str, Tensor]:
    """Return ``base.state_dict()`` under the names without wrappers."""
    wrappers = [path for path, module in base.named_modules() if isinstance(module, AdaptedSite)]
    plain = {}
    for name, tensor in base.state_dict().items():
        for path in sorted(wrappers, key=len, reverse=True):  # inner modules first
            if name.startswith(f"{path}.canonicalizer."):
                break
            name = name.replace(f"{path}.wrapped.", f"{path}.", 1) if name.startswith(f"{path}.wrapped.") else name
        else:
            plain[name] = tensor
    return plain


def checksums(base: nn.Module) -> dict[str, int]:
    """Return a checksum of every parameter and buffer of ``base``."""
    return {name: checksum(tensor) for name, tensor in plain_state(base).items()}


def checksum(tensor: Tensor) -> int:
    """Return the CRC-32 of a tensor's bytes."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(raw.numpy().data) if raw.numel() else 0


def as_tensor(description: dict[str, Any], device: torch.device) -> Tensor:
    """Return JSON values as the bytes of their text, so that a safetensors file can hold them."""
    text = json.dumps(description, separators=(",", ":")).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)


def from_tensor(tensor: Tensor) -> Any:
    """Return the JSON values that ``as_tensor`` wrote; other tensors raise ``ValueError``."""
    return json.loads(bytes(tensor.to(torch.uint8).flatten().tolist()).decode())


def allow_no_description(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let ``load_state_dict`` accept tensors without a description, such as those of older files."""
    state.setdefault(prefix + DESCRIPTION, torch.empty(0, dtype=torch.uint8))
