"""Reproduce a table: plan its runs, skip the finished ones, and run the rest after the runs they start from."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from localscale.errors import ConfigError
from localscale.lab.children import Child, ended_by_signals, stop_all
from localscale.lab.clusters import connected
from localscale.lab.recipes import Recipe, find_recipe
from localscale.lab.recipes.changes import flags_between
from localscale.lab.recipes.tables import Line, Table, find_table
from localscale.lab.runs.run import Run
from localscale.lab.training.comparison import compare_runs

__all__ = ["Cell", "Execution", "collect", "plan", "reproduce"]

MOST_SEEDS = 1000
TAIL = 5  # lines of a failed run's output to show
POLL = 0.1  # seconds between looks at the processes


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
        where = ["--out", str(self.folder), "--resume", "--wait", "--quiet"]
        return ["train", self.recipe.name, *changes, *self.arguments, *where]

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
    name: str,
    *,
    seeds: int,
    out: Path,
    overrides: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
) -> list[Cell]:
    """Return every cell of a table, each after the cell it starts from.

    Args:
        name: name of the table.
        seeds: number of seeds; they count from 0.
        out: folder for all runs.
        overrides: ``field=value`` for all recipes.
        only: keep the cells with these names, and the cells they start from. A name is that of a cell's folder, such as
            deit_tiny-dec, or a part of several names.
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
    if not only:
        return cells
    wanted = {folder for pattern in only for folder in _named(pattern, cells, name)}
    wanted |= {cell.start for cell in cells if cell.folder in wanted and cell.start is not None}
    return [cell for cell in cells if cell.folder in wanted]


def _named(pattern: str, cells: list[Cell], name: str) -> list[Path]:
    """Return the folders of the cells that are called ``pattern``, or else whose names contain it."""
    exact = [cell.folder for cell in cells if cell.folder.parent.name == pattern]
    found = exact or [cell.folder for cell in cells if pattern in f"{cell.recipe.name} {cell.line.name}"]
    if not found:
        raise ConfigError(f"--only {pattern}: no cell of {name} has a name that contains it")
    return found


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
    """Run the cells that are not finished; return a message for each run that failed or could not begin.

    With ``progress``, each message is also printed at once. All runs end with this process, also if it is killed; what
    another process still runs is waited for.
    """
    if execution.jobs < 1:
        raise ConfigError(f"--jobs is {execution.jobs}; expected at least 1")
    todo = [cell for cell in cells if not cell.finished()]
    bar = tqdm(total=len(cells), initial=len(cells) - len(todo), desc="runs", unit="run", disable=not progress)
    run, failed = (_on_ray if execution.engine == "ray" else _here), []
    with bar, ended_by_signals(), contextlib.closing(run(todo, execution)) as messages:
        for message in messages:
            if message:
                failed.append(message)
                if progress:
                    bar.write(message, file=sys.stderr)
            bar.update()
    return failed


def _here(todo: list[Cell], execution: Execution) -> Generator[str, None, None]:
    """Run ``jobs`` processes at a time on this machine, each after the run it starts from; yield what ``Attempt`` says.

    No thread waits for a process, because the kernel ends a child with the thread that made it.
    """
    waiting, running = list(todo), list[Attempt]()
    try:
        while waiting or running:
            unfinished = {cell.folder for cell in [*waiting, *(attempt.cell for attempt in running)]}
            for cell in [c for c in waiting if c.start not in unfinished][: execution.jobs - len(running)]:
                waiting.remove(cell)
                running.append(Attempt(cell))
            for attempt in list(running):
                message = attempt.message()
                if message is not None:
                    running.remove(attempt)
                    yield message
            time.sleep(POLL)
    finally:
        stop_all(attempt.child for attempt in running if attempt.child is not None)


def _on_ray(todo: list[Cell], execution: Execution) -> Generator[str, None, None]:
    """Run the cells as tasks of a Ray cluster whose machines share the file system of the runs."""
    with connected(execution.address) as ray:
        task = ray.remote(num_gpus=execution.gpus_per_run, max_retries=2)(_after)
        tasks: dict[Path, Any] = {}
        for cell in todo:  # a cell comes after the one it starts from
            tasks[cell.folder] = task.remote(cell, tasks.get(cell.start) if cell.start else None)
        left = list(tasks.values())
        while left:
            ready, left = ray.wait(left)
            yield from ray.get(ready)


def _after(cell: Cell, before: Any) -> str:
    """Run a cell; Ray first waits for its argument ``before``, the result of the cell that this one starts from."""
    (message,) = _here([cell], Execution())
    return message


class Attempt:
    """One cell in a process of its own, which continues the run or waits for the process that still trains it."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.output = cell, cell.folder.with_suffix(".txt")
        self.child: Child | None = None
        if self._can_begin():
            cell.folder.parent.mkdir(parents=True, exist_ok=True)
            self._printed = self.output.stat().st_size if self.output.exists() else 0  # by earlier attempts
            threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "2"}
            self.child = Child("localscale", cell.command(), self.output, **threads)

    def _can_begin(self) -> bool:
        return self.cell.start is None or Run(self.cell.start).result() is not None

    def message(self) -> str | None:
        """Return None while the process runs, an empty text after its success, or a message about the failure."""
        if self.child is None:
            return f"{self.cell.folder}: this run starts from {self.cell.start}, which is not finished"
        status = self.child.status()
        if not status:
            return None if status is None else ""
        with self.output.open("rb") as file:
            file.seek(self._printed)
            last = file.read().decode(errors="replace").strip().splitlines()[-TAIL:]
        return "\n  ".join([f"{self.cell.folder}: {_exit(status)}; {self.output}", *last])


def _exit(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    return f"killed by signal {-status}; if memory ran out, take fewer --jobs; the same command continues the run"


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
