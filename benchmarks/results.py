"""Results on disk: what was measured, by which command, on what."""

import dataclasses
import json
import platform
from importlib import metadata
from pathlib import Path

import torch

from benchmarks.measurement import Table
from localscale.files import write_whole
from localscale.results import render_page

ROOT = Path(__file__).parent.parent


def save(target: Path, tables: list[Table], *, command: str, device: str, packages: tuple[str, ...]) -> None:
    """Write ``tables`` to ``target`` with the command, the machine and the versions."""
    result = {
        "command": command,
        "machine": machine(device),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "tables": [dataclasses.asdict(table) for table in tables],
    }
    write_whole(target, json.dumps(result, indent=2) + "\n")


def render() -> None:
    """Render every ``results/*.json`` into ``docs/results.md``."""
    write_whole(ROOT / "docs" / "results.md", render_page(ROOT / "results"))


def version(package: str) -> str:
    """The installed version of ``package``, if it was installed and not only found."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "from source"


def machine(device: str) -> str:
    """The hardware, in words."""
    if device.startswith("cuda"):
        return f"one {torch.cuda.get_device_name()}"
    return f"{torch.get_num_threads()} threads of a {platform.machine()} CPU"
