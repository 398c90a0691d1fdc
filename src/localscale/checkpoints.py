"""Checkpoints and weights as safetensors files, written atomically and never pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from localscale.errors import CheckpointError, OutputError
from localscale.files import reason_of, write_all
from localscale.tensor_files import read_metadata, read_tensors, write_tensors

__all__ = ["read_checkpoint", "read_state", "read_weights", "write_checkpoint", "write_weights"]


def write_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], *, prefix: str = "model."
) -> None:
    """Write the tensors of model and optimizer, and ``state`` as JSON in the file header.

    The names of the model's tensors begin with ``prefix``.
    """
    tensors = {f"{prefix}{name}": tensor for name, tensor in _tensors(model).items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
    _write(path, tensors, state)


def read_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, prefix: str = "model."
) -> dict[str, Any]:
    """Load a checkpoint into model and optimizer; return its state."""
    tensors, state = _read(path)
    _load(model, {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}, path)
    try:
        moments = _moments_in(tensors, optimizer)
    except ValueError as error:
        raise CheckpointError(f"{path} is of another optimizer ({error}); remove it to start again") from error
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return state


def read_state(path: Path) -> dict[str, Any]:
    """Return the state in the header of a file, and read none of its tensors."""
    return _state_in(read_metadata(path, missing=_missing(path)), path)


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
    metadata = {"localscale": json.dumps(state)}
    try:
        write_all({path: lambda draft: write_tensors(draft, tensors, metadata)})
    except (OSError, ValueError) as error:
        raise OutputError(f"{path} cannot be written: {reason_of(error)}") from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, metadata = read_tensors(path, missing=_missing(path))
    return tensors, _state_in(metadata, path)


def _state_in(metadata: dict[str, str], path: Path) -> dict[str, Any]:
    try:
        state = json.loads(metadata["localscale"])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: localscale did not write it ({error!r})") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} cannot be read: its state is a {type(state).__name__}, not a JSON object")
    return state


def _moments_in(tensors: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Tensor]]:
    """Return the optimizer's moments by the number of their parameter; raise ``ValueError`` if they do not fit."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            number, _, key = name.removeprefix("optimizer.").partition(".")
            if not number.isdecimal() or int(number) >= len(parameters):
                raise ValueError(f"{name} is of a parameter that it does not have")
            if tensor.dim() and tensor.shape != parameters[int(number)].shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}")
            moments.setdefault(int(number), {})[key] = tensor
    expected = set().union(*moments.values())
    if isinstance(optimizer, torch.optim.Adam) and moments:  # and AdamW, which derives from it
        expected |= {"step", "exp_avg", "exp_avg_sq"}
    for place, held in moments.items():
        if lacking := sorted(expected - set(held)):
            raise ValueError(f"parameter {place} lacks its {lacking[0]}")
    return moments


def _missing(path: Path) -> str:
    return f"there is no {path.name} in {path.parent}; copy or train the run again"


def _load(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise CheckpointError(f"{path} is of another model: {lines[1] if len(lines) > 1 else lines[0]}") from error
