"""Write results to disk with the command, the machine and the package versions."""

import dataclasses
import json
from pathlib import Path

from benchmarks.measurement import ResultTable
from localscale.files import write_whole
from localscale.lab.pages.paper import render_paper
from localscale.lab.pages.results import render_page
from localscale.machine import machine, versions

ROOT = Path(__file__).parent.parent


def save(target: Path, tables: list[ResultTable], *, command: str, device: str, packages: tuple[str, ...]) -> None:
    """Write ``tables`` to ``target`` as JSON, with the command, the machine and the versions."""
    result = {
        "command": command,
        "machine": machine(device),
        "versions": versions(packages),
        "tables": [dataclasses.asdict(table) for table in tables],
    }
    write_whole(target, json.dumps(result, indent=2) + "\n")


def render() -> None:
    """Render every ``results/*.json`` into ``docs/results.md`` and ``docs/paper.md``."""
    write_whole(ROOT / "docs" / "results.md", render_page(ROOT / "results"))
    write_whole(ROOT / "docs" / "paper.md", render_paper(ROOT / "results"))
