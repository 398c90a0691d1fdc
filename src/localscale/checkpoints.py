"""Checkpoints and weights as safetensors files, written atomically and never pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from localscale.errors import CheckpointError, OutputError
from localscale.files import write_all

__all__ = ["read_checkpoint", "read_state", "read_weights", "write_checkpoint", "write_weights"]


def write_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write the tensors of model and optimizer, and ``state`` as JSON in the file header."""
    tensors = {f"model.{name}": tensor for name, tensor in _tensors(model).items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
    _write(path, tensors, state)


def read_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Load a checkpoint into model and optimizer; return its state."""
    tensors, state = _read(path)
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    _load(model, weights, path)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            moments.setdefault(int(number), {})[key] = tensor
    try:
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    except ValueError as error:
        raise CheckpointError(f"{path} is of another optimizer ({error}); remove it to start again") from error
    return state


def read_state(path: Path) -> dict[str, Any]:
    """Return the state in the header of a file, and read none of its tensors."""
    return _read(path, tensors=False)[1]


def write_weights(path: Path, model: nn.Module, state: dict[str, Any]) -> None:
    """Write the tensors of the model, and ``state`` as JSON in the file header."""
    _write(path, _tensors(model), state)


def read_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Load weights into the model; return their state."""
    tensors, state = _read(path)
    _load(model, tensors, path)
    return state


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers; the run's recipe or the caller describes the model, so no extra state is kept."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.endswith("_extra_state")}


def _write(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    # Tensors that share memory are copied, because safetensors refuses shared memory.
    separate = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    header = {"format": "pt", "localscale": json.dumps(state)}
    try:
        write_all({path: lambda draft: safetensors.torch.save_file(separate, draft, metadata=header)})
    except (OSError, safetensors.SafetensorError) as error:
        raise OutputError(f"{path} cannot be written: {error}") from error


def _read(path: Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            state = json.loads((file.metadata() or {})["localscale"])
            names = list(file.keys()) if tensors else []
            return {name: file.get_tensor(name) for name in names}, state
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {path.name} in {path.parent}; copy or train the run again") from error
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {error}); was it copied whole?"
        ) from error


def _load(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise CheckpointError(f"{path} is of another model: {lines[1] if len(lines) > 1 else lines[0]}") from error
