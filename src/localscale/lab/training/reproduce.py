"""Reproducing a table: all its runs planned, finished ones skipped, the rest run in order of what they start from."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from localscale.errors import ConfigError
from localscale.lab.clusters import connected
from localscale.lab.recipes import find_recipe
from localscale.lab.recipes.tables import Row, Table, find_table
from localscale.lab.runs.run import Run

__all__ = ["Cell", "Settings", "collect", "plan", "reproduce"]

TAIL = 5  # lines of a failed run's output to show


@dataclass(frozen=True)
class Cell:
    """One run: a row, a backbone and a seed."""

    row: Row
    backbone: str
    seed: int
    recipe: str
    arguments: tuple[str, ...]
    folder: Path
    start: Path | None

    def finished(self) -> bool:
        """Whether its result is there."""
        return Run(self.folder).result_file.exists()

    def command(self) -> list[str]:
        """What trains it, or takes it up again."""
        start = [] if self.start is None else ["--start", str(self.start)]
        return ["train", self.recipe, *self.arguments, *start, "--out", str(self.folder), "--resume", "--quiet"]

    def command_line(self) -> str:
        """The same, to be typed."""
        return shlex.join(["localscale", *self.command()])


@dataclass(frozen=True)
class Settings:
    """How runs are run."""

    jobs: int = 1
    engine: str = "local"
    address: str | None = None
    gpus_per_run: float = 1.0


def plan(
    name: str, *, seeds: int, out: Path, overrides: tuple[str, ...] = (), only: str = "", flags: tuple[str, ...] = ()
) -> list[Cell]:
    """Every cell of a table, what others start from first.

    ``overrides`` are ``field=value`` for all recipes; ``flags`` go to every run; ``only`` picks cells by name.
    """
    table = find_table(name)
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}; expected at least 1")
    changed = flags + tuple(part for override in overrides for part in _as_flag(override))
    cells = [
        _cell(table, row, backbone, seed, out, changed)
        for seed in range(seeds)
        for backbone in table.backbones
        for row in table.rows
    ]
    wanted = {cell.folder for cell in cells if only in f"{cell.recipe} {cell.row.name}"}
    if not wanted:
        raise ConfigError(f"--only {only}: no cell of {name} is called so")
    wanted |= {cell.start for cell in cells if cell.folder in wanted and cell.start is not None}
    return [cell for cell in cells if cell.folder in wanted]


def _cell(table: Table, row: Row, backbone: str, seed: int, out: Path, changed: tuple[str, ...]) -> Cell:
    recipe = find_recipe(f"{table.task}-{backbone}-{row.recipe}")

    def folder(key: str) -> Path:
        return out / table.runs / f"{backbone}-{key}" / f"seed{seed}"

    before = recipe.needs_start.rpartition("-")[2]
    if table.before:
        before = table.before if row.recipe != table.before else ""
    arguments = (*table.settings, *_length(table, row, bool(before)), *row.arguments, *changed)
    start = folder(before) if before else None
    return Cell(row, backbone, seed, recipe.name, (*arguments, "--seed", str(seed)), folder(row.name), start)


def _length(table: Table, row: Row, added: bool) -> tuple[str, ...]:
    if added:
        return table.more
    return table.both if row.recipe.endswith(("_joint", "_long")) else table.first


def _as_flag(override: str) -> tuple[str, str]:
    field, equals, value = override.partition("=")
    if not (field and equals):
        raise ConfigError(f"--set {override}: expected field=value, such as epochs=80")
    return f"--{field.replace('_', '-')}", value


def reproduce(cells: list[Cell], settings: Settings, *, progress: bool = False) -> list[str]:
    """Run what is not finished; return a line for each run that failed or could not begin."""
    if settings.jobs < 1:
        raise ConfigError(f"--jobs {settings.jobs}; expected at least 1")
    todo = [cell for cell in cells if not cell.finished()]
    bar = tqdm(total=len(cells), initial=len(cells) - len(todo), desc="runs", unit="run", disable=not progress)
    with bar:
        return (_on_ray if settings.engine == "ray" else _here)(todo, settings, bar.update)


def _here(todo: list[Cell], settings: Settings, done: Callable[[], object]) -> list[str]:
    """Processes on this machine, ``jobs`` at a time, a run as soon as what it starts from is finished."""
    waiting, failed = list(todo), []
    running: dict[Future[str], Cell] = {}
    with ThreadPoolExecutor(settings.jobs) as pool:
        while waiting or running:
            unfinished = {cell.folder for cell in [*waiting, *running.values()]}
            for cell in [c for c in waiting if c.start not in unfinished][: settings.jobs - len(running)]:
                waiting.remove(cell)
                running[pool.submit(run_cell, cell)] = cell
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                running.pop(future)
                failed += [future.result()] if future.result() else []
                done()
    return failed


def _on_ray(todo: list[Cell], settings: Settings, done: Callable[[], object]) -> list[str]:
    """Tasks on a Ray cluster whose machines share the disk that the runs are on."""
    with connected(settings.address) as ray:
        task = ray.remote(num_gpus=settings.gpus_per_run, max_retries=2)(_after)
        tasks: dict[Path, Any] = {}
        for cell in todo:  # what others start from comes first
            tasks[cell.folder] = task.remote(cell, tasks.get(cell.start) if cell.start else None)
        failed, left = [], list(tasks.values())
        while left:
            ready, left = ray.wait(left)
            failed += [message for message in ray.get(ready) if message]
            done()
    return failed


def _after(cell: Cell, before: Any) -> str:
    """Run a cell, once Ray has the answer of the one it starts from."""
    return run_cell(cell)


def run_cell(cell: Cell) -> str:
    """Run one cell in a process of its own; empty, or what went wrong."""
    if cell.start is not None and Run(cell.start).result() is None:
        return f"{cell.folder}: it starts from {cell.start}, which is not finished"
    cell.folder.parent.mkdir(parents=True, exist_ok=True)
    output = cell.folder.with_suffix(".txt")
    with output.open("a", encoding="utf-8") as sink:
        environment = {"OMP_NUM_THREADS": "2", **os.environ}
        process = subprocess.Popen(
            [sys.executable, "-m", "localscale", *cell.command()],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
        finally:
            process.terminate()  # after Ctrl-C no run is left behind
            process.wait()
    if process.returncode == 0:
        return ""
    last = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-TAIL:]
    return "\n  ".join([f"{cell.folder}: exit status {process.returncode}; {output}", *last])


def _budget(folder: Path) -> int:
    """The epochs that led to a run's weights, those of the run it starts from included."""
    recipe = Run(folder).recipe()
    return recipe.optimization.epochs + (_budget(recipe.start) if recipe.start is not None else 0)


def collect(name: str, cells: list[Cell], command: str) -> dict[str, Any]:
    """The finished runs of a table as one value for JSON."""
    runs = []
    for cell in cells:
        result = Run(cell.folder).result()
        if result is not None:
            about = {"label": cell.row.label, "row": cell.row.name, "backbone": cell.backbone}
            runs.append({**about, "budget_epochs": _budget(cell.folder), **result})
    if not runs:
        raise ConfigError(f"no run of {name} is finished, so there is nothing to write")
    table = find_table(name)
    return {
        "kind": table.kind,
        "table": name,
        "title": table.title,
        "paper": table.paper,
        "command": command,
        "machine": runs[0]["machine"],
        "versions": runs[0]["versions"],
        "runs": runs,
    }
