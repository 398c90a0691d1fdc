"""Describe the hardware and the package versions that a result was measured with."""

from __future__ import annotations

import platform
from importlib import metadata
from importlib.util import find_spec

import torch

__all__ = ["machine", "versions"]


def machine(device: str | torch.device) -> str:
    """Return a short description of the hardware behind ``device``."""
    device = torch.device(device)
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    return f"{torch.get_num_threads()} threads of a {platform.machine()} CPU"


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of Python and of those ``packages`` that can be imported."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if find_spec(name) is not None:
                found[name] = "from source"
        except OSError:  # a disk that fails is no reason to lose what is saved with the versions
            found[name] = "unknown"
    return found
