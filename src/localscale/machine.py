"""What a number was measured on: the hardware in words, and the versions of packages."""

from __future__ import annotations

import platform
from importlib import metadata

import torch

__all__ = ["machine", "versions"]


def machine(device: str | torch.device) -> str:
    """The hardware, in words."""
    device = torch.device(device)
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    return f"{torch.get_num_threads()} threads of a {platform.machine()} CPU"


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Python's version and each package's, if it was installed and not only found."""
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "from source"
