"""The random states that decide in which order a loader gives its batches, and what a training step draws."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["capture", "restore", "restore_torch"]

WRAPPERS = ("batch_sampler", "sampler")  # a DataLoader and its samplers hold each other under these names


def capture(loader: Any) -> dict[str, Any]:
    """Return the states of PyTorch's generators and of the loader's own, as JSON values.

    States of Python's ``random`` and of NumPy are not among them: a sampler that draws from these gives another order
    after an interruption.
    """
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in cuda],
        "loader": [_text(generator.get_state()) for generator in _generators(loader)],
    }


def restore(state: dict[str, Any], loader: Any, *, torch_too: bool = True) -> None:
    """Set the generators as ``capture`` found them; generators that did not exist then keep their states."""
    for text, generator in zip(state["loader"], _generators(loader), strict=False):
        generator.set_state(_tensor(text))
    if torch_too:
        restore_torch(state)


def restore_torch(state: dict[str, Any]) -> None:
    """Set PyTorch's own generators as ``capture`` found them."""
    torch.set_rng_state(_tensor(state["torch"]))
    for index, text in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_tensor(text), index)


def _generators(loader: Any) -> list[torch.Generator]:
    """Return the generators of a loader and of its samplers, each once."""
    return list({id(found): found for found in _walk(loader, set())}.values())


def _walk(part: Any, seen: set[int]) -> Iterator[torch.Generator]:
    if part is None or id(part) in seen:
        return
    seen.add(id(part))
    own = getattr(part, "generator", None)
    if isinstance(own, torch.Generator):
        yield own
    for name in WRAPPERS:
        yield from _walk(getattr(part, name, None), seen)


def _text(state: Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
