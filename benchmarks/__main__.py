"""Measure the core and write results: ``python -m benchmarks [--device cuda] [--json FILE] [--quick]``.

Prints a table per measurement, writes them as JSON, and renders every ``results/*.json`` into ``docs/results.md``.
"""

import argparse
import dataclasses
import json
import platform
import sys
from importlib import metadata
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.core import MEASUREMENTS
from benchmarks.render import render_page, render_table

ROOT = Path(__file__).parent.parent
PEERS = ("localscale", "torch", "timm", "torchdeq")


def main() -> None:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--json", type=Path, help="file to write (results/core_DEVICE.json); its folder is rendered")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: shows that it runs, measures nothing worth keeping"
    )
    parser.add_argument("--render", action="store_true", help="measure nothing, only render results/*.json")
    arguments = parser.parse_args()
    if arguments.render:
        write(ROOT / "docs" / "results.md", render_page(ROOT / "results"))
        return
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(f"--device {arguments.device}: this PyTorch sees no CUDA device; use --device cpu")
    target = arguments.json or ROOT / "results" / f"core_{arguments.device}.json"
    tables = []
    for measurement in tqdm(MEASUREMENTS, desc="measuring", unit="table", leave=False):
        table = dataclasses.asdict(measurement(arguments.device, arguments.quick))
        tqdm.write(render_table(table) + "\n", file=sys.stdout)
        tables.append(table)
    result = {
        "command": f"python -m benchmarks --device {arguments.device}{' --quick' if arguments.quick else ''}",
        "machine": machine(arguments.device),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PEERS}},
        "tables": tables,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    write(target, json.dumps(result, indent=2) + "\n")
    if arguments.json is None:
        write(ROOT / "docs" / "results.md", render_page(target.parent))


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


def write(path: Path, text: str) -> None:
    """Write beside ``path``, then rename."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    main()
