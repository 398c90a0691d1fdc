"""Reproduce a table: plan its runs, skip the finished ones, and run the rest after the runs they start from."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from localscale.errors import ConfigError
from localscale.lab.clusters import connected
from localscale.lab.recipes import Recipe, find_recipe
from localscale.lab.recipes.changes import flags_between
from localscale.lab.recipes.tables import Line, Table, find_table
from localscale.lab.runs.run import Run
from localscale.lab.training.comparison import compare_runs

__all__ = ["Cell", "Execution", "collect", "plan", "reproduce"]

MOST_SEEDS = 1000
TAIL = 5  # lines of a failed run's output to show


@dataclass(frozen=True)
class Cell:
    """One run of a table: a line, a backbone and a seed.

    ``recipe`` is the whole recipe of the run, ``arguments`` are flags that the user added to every run.
    """

    line: Line
    label: str
    backbone: str
    recipe: Recipe
    folder: Path
    arguments: tuple[str, ...] = ()

    @property
    def start(self) -> Path | None:
        """Folder of the run that this one starts from."""
        return self.recipe.start

    def finished(self) -> bool:
        """Whether the run has a result."""
        return Run(self.folder).result_file.exists()

    def command(self) -> list[str]:
        """Return the arguments of ``localscale`` that train the run, or continue it after an interruption."""
        changes = flags_between(find_recipe(self.recipe.name), self.recipe)
        return ["train", self.recipe.name, *changes, *self.arguments, "--out", str(self.folder), "--resume", "--quiet"]

    def command_line(self) -> str:
        """Return the same command as text for a shell."""
        return shlex.join(["localscale", *self.command()])


@dataclass(frozen=True)
class Execution:
    """The number of runs at a time, and the engine that executes them."""

    jobs: int = 1
    engine: str = "local"
    address: str | None = None
    gpus_per_run: float = 1.0


def plan(
    name: str, *, seeds: int, out: Path, overrides: tuple[str, ...] = (), only: str = "", flags: tuple[str, ...] = ()
) -> list[Cell]:
    """Return every cell of a table, each after the cell it starts from.

    Args:
        name: name of the table.
        seeds: number of seeds; they count from 0.
        out: folder for all runs.
        overrides: ``field=value`` for all recipes.
        only: keep cells whose name contains this, and the cells they start from.
        flags: flags for every run.
    """
    table = find_table(name)
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"--seeds is {seeds}; expected 1 to {MOST_SEEDS:,}")
    arguments = flags + tuple(part for override in overrides for part in _as_flag(override))
    cells = [
        _cell(table, line, backbone, seed, out, arguments)
        for seed in range(seeds)
        for backbone in table.backbones
        for line in table.lines
    ]
    wanted = {cell.folder for cell in cells if only in f"{cell.recipe.name} {cell.line.name}"}
    if not wanted:
        raise ConfigError(f"--only {only}: no cell of {name} has a name that contains it")
    wanted |= {cell.start for cell in cells if cell.folder in wanted and cell.start is not None}
    return [cell for cell in cells if cell.folder in wanted]


def _cell(table: Table, line: Line, backbone: str, seed: int, out: Path, arguments: tuple[str, ...]) -> Cell:
    def folder(name: str) -> Path:
        return out / table.runs / f"{backbone}-{name}" / f"seed{seed}"

    before = table.start(line)
    recipe = replace(table.recipe(line, backbone), seed=seed, start=folder(before) if before else None)
    return Cell(line, table.label(line), backbone, recipe, folder(line.name), arguments)


def _as_flag(override: str) -> tuple[str, str]:
    field, equals, value = override.partition("=")
    if not (field and equals):
        raise ConfigError(f"--set {override}: expected field=value, such as epochs=80")
    return f"--{field.replace('_', '-')}", value


def reproduce(cells: list[Cell], execution: Execution, *, progress: bool = False) -> list[str]:
    """Run the cells that are not finished; return a message for each run that failed or could not begin."""
    if execution.jobs < 1:
        raise ConfigError(f"--jobs is {execution.jobs}; expected at least 1")
    todo = [cell for cell in cells if not cell.finished()]
    bar = tqdm(total=len(cells), initial=len(cells) - len(todo), desc="runs", unit="run", disable=not progress)
    with bar:
        return (_on_ray if execution.engine == "ray" else _here)(todo, execution, bar.update)


def _here(todo: list[Cell], execution: Execution, done: Callable[[], object]) -> list[str]:
    """Run ``jobs`` processes at a time on this machine, each after the run it starts from."""
    waiting, failed = list(todo), []
    running: dict[Future[str], Cell] = {}
    with ThreadPoolExecutor(execution.jobs) as pool:
        while waiting or running:
            unfinished = {cell.folder for cell in [*waiting, *running.values()]}
            for cell in [c for c in waiting if c.start not in unfinished][: execution.jobs - len(running)]:
                waiting.remove(cell)
                running[pool.submit(run_cell, cell)] = cell
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                running.pop(future)
                failed += [future.result()] if future.result() else []
                done()
    return failed


def _on_ray(todo: list[Cell], execution: Execution, done: Callable[[], object]) -> list[str]:
    """Run the cells as tasks of a Ray cluster whose machines share the file system of the runs."""
    with connected(execution.address) as ray:
        task = ray.remote(num_gpus=execution.gpus_per_run, max_retries=2)(_after)
        tasks: dict[Path, Any] = {}
        for cell in todo:  # a cell comes after the one it starts from
            tasks[cell.folder] = task.remote(cell, tasks.get(cell.start) if cell.start else None)
        failed, left = [], list(tasks.values())
        while left:
            ready, left = ray.wait(left)
            failed += [message for message in ray.get(ready) if message]
            done()
    return failed


def _after(cell: Cell, before: Any) -> str:
    """Run a cell; Ray first waits for its argument ``before``, the result of the cell that this one starts from."""
    return run_cell(cell)


def run_cell(cell: Cell) -> str:
    """Run one cell in a process of its own; return an empty text, or a message about the failure."""
    if cell.start is not None and Run(cell.start).result() is None:
        return f"{cell.folder}: this run starts from {cell.start}, which is not finished"
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
            process.terminate()  # Ctrl-C must not leave a process behind
            process.wait()
    if process.returncode == 0:
        return ""
    last = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-TAIL:]
    return "\n  ".join([f"{cell.folder}: exit status {process.returncode}; {output}", *last])


def _budget(folder: Path) -> int:
    """Return the epochs that led to a run's weights, including those of the runs it starts from."""
    recipe = Run(folder).recipe()
    return recipe.optimization.epochs + (_budget(recipe.start) if recipe.start is not None else 0)


def collect(name: str, cells: list[Cell], command: str) -> dict[str, Any]:
    """Return the finished runs of a table as a JSON document."""
    runs = []
    for cell in cells:
        result = Run(cell.folder).result()
        if result is not None:
            about = {"label": cell.label, "row": cell.line.name, "backbone": cell.backbone}
            runs.append({**about, "budget_epochs": _budget(cell.folder), **result})
    if not runs:
        raise ConfigError(f"no run of {name} is finished, so there is nothing to write")
    table = find_table(name)
    differences = _differences(table, cells, {(run["backbone"], run["row"]): run["budget_epochs"] for run in runs})
    return {
        "kind": table.kind,
        "table": name,
        "title": table.title,
        "paper": table.paper,
        "command": command,
        "machine": runs[0]["machine"],
        "versions": runs[0]["versions"],
        "runs": runs,
        **({"differences": differences} if differences else {}),
    }


def _differences(table: Table, cells: list[Cell], epochs: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Return the differences of the lines to controls of the same training budget."""
    folders: dict[tuple[str, str], list[Path]] = {}
    for cell in cells:
        folders.setdefault((cell.backbone, cell.line.name), []).append(cell.folder)
    found = compare_runs(folders, {line.name: table.controls_of(line) for line in table.lines})
    return [
        each for each in found if epochs[each["backbone"], each["row"]] == epochs[each["backbone"], each["control"]]
    ]
