"""Loading models: what can go wrong with downloads, files and devices, said in a sentence."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from localscale.errors import ConfigError, DataError, LocalScaleError
from localscale.lab.data.imagenet.options import ImageNetOptions

__all__ = ["check_device", "loading", "with_absolute_paths"]

FILES = ("images", "class_index", "classifier_weights", "boxes", "sam_encoder", "sam_decoder", "masks", "lama")
MODELS = ("dino_model", "sam_model")


@contextlib.contextmanager
def loading(what: str, remedy: str) -> Iterator[None]:
    """Turn whatever a library raises while it loads ``what`` into one sentence with the remedy.

    >>> with loading("the weights of resnet18", "name a file"):
    ...     raise OSError("offline")
    Traceback (most recent call last):
        ...
    localscale.errors.DataError: the weights of resnet18 cannot be loaded (OSError: offline); name a file
    """
    try:
        yield
    except LocalScaleError:
        raise
    except Exception as error:  # hubs, parsers and devices each have errors of their own
        cause = (str(error).strip() or "no message").splitlines()[0]
        raise DataError(f"{what} cannot be loaded ({type(error).__name__}: {cause[:200]}); {remedy}") from error


def check_device(name: str) -> str:
    """The device's name, if torch knows it and has it.

    >>> check_device("gpu")
    Traceback (most recent call last):
        ...
    localscale.errors.ConfigError: device "gpu" is unknown; expected cpu, cuda, cuda:1 …
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'device "{name}" is unknown; expected cpu, cuda, cuda:1 …') from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {name}: this PyTorch sees {torch.cuda.device_count()} CUDA devices; use --device cpu"
        )
    return name


def with_absolute_paths(options: ImageNetOptions) -> ImageNetOptions:
    """The same options for a process with another working folder, as on a cluster."""
    changes: dict[str, Any] = {}
    for name in FILES:
        path = getattr(options, name)
        changes[name] = None if path is None else path.absolute()
    for name in MODELS:
        text = getattr(options, name)
        changes[name] = str(Path(text).absolute()) if Path(text).is_dir() else text
    return dataclasses.replace(options, **changes)
