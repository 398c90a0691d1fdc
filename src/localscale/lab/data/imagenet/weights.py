"""Turn failures of model loading and of devices into errors of one sentence that say what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from localscale.errors import ConfigError, DataError, LocalScaleError

__all__ = ["check_device", "loading"]


@contextlib.contextmanager
def loading(what: str, remedy: str) -> Iterator[None]:
    """Turn any exception of a library that loads ``what`` into a ``DataError`` with the cause and the remedy.

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
    except Exception as error:  # hubs, parsers and devices each have exception types of their own
        cause = (str(error).strip() or "no message").splitlines()[0]
        raise DataError(f"{what} cannot be loaded ({type(error).__name__}: {cause[:200]}); {remedy}") from error


def check_device(name: str) -> str:
    """Return the device's name; raise ``ConfigError`` if PyTorch does not know the device or cannot see it.

    >>> check_device("gpu")
    Traceback (most recent call last):
        ...
    localscale.errors.ConfigError: --device gpu is unknown; expected cpu, cuda, cuda:1 …
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name} is unknown; expected cpu, cuda, cuda:1 …") from error
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"--device {name}: PyTorch sees {count} CUDA devices here; use --device cpu")
    return name
