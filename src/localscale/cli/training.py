"""``localscale recipes|train|evaluate|reproduce|tables``: from a recipe's name to a table in the docs."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from localscale.errors import ConfigError, TrainingError
from localscale.files import write_whole

__all__ = ["Evaluate", "Recipes", "Reproduce", "Tables", "Train", "parse_evaluate", "parse_train"]


@dataclass(frozen=True)
class Recipes:
    """List the recipes: a row of a table for a backbone each."""

    pattern: tyro.conf.Positional[str] = ""
    """Only names that contain this."""

    def run(self) -> None:
        from localscale.lab.recipes import RECIPES, find_recipe

        found = {name: recipe for name, recipe in RECIPES.items() if self.pattern in name}
        if not found:
            find_recipe(self.pattern)
        width = max(map(len, found))
        for name, recipe in found.items():
            print(f"{name:{width}}  {(type(recipe).__doc__ or '').splitlines()[0]}")
        print(f"\n{len(found)} recipes; localscale train NAME --help shows what each can be given")


@dataclass(frozen=True)
class Where:
    """Where and how a recipe runs; none of it changes what is learned."""

    out: Path | None = None
    """Folder of the run; by default runs/RECIPE/seedN."""
    resume: bool = False
    """Go on from the folder's last checkpoint, or begin if there is none."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where to log beside the run's log.jsonl: tensorboard (extra: train) and wandb, if installed."""
    cpu: bool = False
    """Leave a GPU alone."""
    cuda_graph: bool = True
    """On one GPU, record a training step once and replay it."""
    compile_blocks: bool = False
    """Compile the blocks that the backbone repeats."""
    checkpoint_seconds: float = 60.0
    """After an epoch, write a checkpoint if the last one is older than this."""
    quiet: bool = False
    """No progress bars."""


@dataclass(frozen=True)
class Train:
    """Train and evaluate a recipe: localscale train RECIPE [--field value …]; localscale train RECIPE --help."""

    recipe: tyro.conf.Positional[str]
    """Name of a recipe; localscale recipes lists them."""

    def run(self) -> None:
        raise AssertionError("a recipe's own fields are parsed by parse_train")


@dataclass(frozen=True)
class Training:
    """A recipe with its fields, and where it runs."""

    recipe: Any
    where: Where

    def run(self) -> None:
        from localscale.lab.training import train

        where, recipe = self.where, self.recipe
        folder = where.out or Path("runs") / recipe.name / f"seed{recipe.seed}"
        result = train(
            recipe,
            folder,
            resume=where.resume,
            trackers=where.trackers,
            cpu=where.cpu,
            cuda_graph=where.cuda_graph,
            compile_blocks=where.compile_blocks,
            checkpoint_seconds=where.checkpoint_seconds,
            progress=not where.quiet,
        )
        print(describe(result["metrics"]))
        print(
            f"{folder}: weights.safetensors, result.json, log.jsonl; {result['seconds']['training']:.0f} s of training"
        )


def parse_train(name: str, arguments: list[str]) -> Training:
    """The recipe called ``name``, overridden by the command line; unknown fields end the program."""
    from localscale.lab.recipes import find_recipe

    recipe, where = with_arguments(find_recipe(name), arguments, f"localscale train {name}")
    return Training(recipe, where)


def with_arguments(recipe: Any, arguments: list[str], prog: str) -> tuple[Any, Where]:
    """``recipe`` and a ``Where`` with the fields that ``arguments`` name changed."""
    kind = type(recipe)
    both = dataclasses.make_dataclass(
        kind.__name__, [], bases=(kind, Where), frozen=True, namespace={"__doc__": inspect.getdoc(kind)}
    )
    fields = [f.name for f in dataclasses.fields(recipe)]
    default = both(**{name: getattr(recipe, name) for name in fields})
    given: Any = tyro.cli(both, default=default, args=arguments, prog=prog, description=inspect.getdoc(kind))
    where = Where(**{f.name: getattr(given, f.name) for f in dataclasses.fields(Where)})
    return kind(**{name: getattr(given, name) for name in fields}), where


@dataclass(frozen=True)
class Evaluate:
    """Measure a finished run again: localscale evaluate RUN [--data.field value …]; localscale evaluate RUN --help."""

    folder: tyro.conf.Positional[Path]
    """Folder of a finished run."""

    def run(self) -> None:
        raise AssertionError("a run's own fields are parsed by parse_evaluate")


@dataclass(frozen=True)
class Evaluation:
    """A finished run, the data to measure it on, and where the numbers go."""

    folder: Path
    recipe: Any
    json: Path | None
    cpu: bool
    cuda_graph: bool

    def run(self) -> None:
        from localscale.lab.training import evaluate_run

        metrics = evaluate_run(self.folder, self.recipe, cpu=self.cpu, cuda_graph=self.cuda_graph, progress=True)
        print(describe(metrics))
        if self.json is not None:
            write_whole(self.json, json.dumps(metrics, indent=2) + "\n")
            print(self.json)


def parse_evaluate(folder: str, arguments: list[str]) -> Evaluation:
    """The run in ``folder``, its data overridden by the command line."""
    from localscale.lab.runs import Run

    recipe = Run(Path(folder)).recipe()
    kind = dataclasses.make_dataclass(
        "Arguments",
        [
            ("data", type(recipe.data), recipe.data),
            ("json", Path | None, None),
            ("cpu", bool, False),
            ("cuda_graph", bool, True),
        ],
    )
    kind.__doc__ = "Measure a finished run, by default on the data it was measured on before."
    given: Any = tyro.cli(kind, args=arguments, prog=f"localscale evaluate {folder}")
    return Evaluation(
        Path(folder), dataclasses.replace(recipe, data=given.data), given.json, given.cpu, given.cuda_graph
    )


@dataclass(frozen=True)
class Reproduce:
    """Run every cell of a table: finished ones are skipped, stopped ones go on; then write results/TABLE.json."""

    table: tyro.conf.Positional[str] = ""
    """Which table; without one they are listed."""
    seeds: int = 5
    """Runs of every cell, seeds 0, 1, …"""
    out: Path = Path("runs")
    """Folder for the runs."""
    results: Path = Path("results")
    """Folder for the table's JSON."""
    set: tuple[str, ...] = ()
    """Fields of all recipes to change: epochs=80 data.root=mnist pretrained=deit.safetensors …"""
    only: str = ""
    """Only cells whose name contains this, and what they start from."""
    jobs: int = 1
    """Runs at a time; several small ones share a GPU well."""
    engine: Literal["local", "ray"] = "local"
    """Processes on this machine, or a Ray cluster with a shared disk (extra: ray)."""
    address: str | None = None
    """The Ray cluster's address; without it a local one is started."""
    gpus_per_run: float = 1.0
    """Of the Ray cluster's GPUs; 0 on machines without."""
    cpu: bool = False
    """Leave a GPU alone."""
    compile_blocks: bool = False
    """Compile the blocks that backbones repeat."""
    plan: bool = False
    """Print what would be run, and stop."""

    def run(self) -> None:
        from localscale.lab.recipes.tables import TABLES
        from localscale.lab.training.reproduce import Settings, collect, plan, reproduce

        if not self.table:
            for name, table in TABLES.items():
                print(f"{name:18} {table.title}")
            return
        flags = (("--cpu",) if self.cpu else ()) + (("--compile-blocks",) if self.compile_blocks else ())
        cells = plan(self.table, seeds=self.seeds, out=self.out, overrides=self.set, only=self.only, flags=flags)
        if self.plan:
            for cell in cells:
                print(f"{'done ' if cell.finished() else 'to do'} {cell.command_line()}")
            return
        failed = reproduce(cells, Settings(self.jobs, self.engine, self.address, self.gpus_per_run), progress=True)
        command = f"localscale reproduce {' '.join(sys.argv[2:])}" if len(sys.argv) > 2 else self.table
        target = self.results / f"{self.table.replace('-', '_')}.json"
        write_whole(target, json.dumps(collect(self.table, cells, command), indent=2) + "\n")
        print(
            f"{sum(cell.finished() for cell in cells)} of {len(cells)} runs in {target}; localscale tables renders it"
        )
        if failed:
            raise TrainingError("\n".join(["these runs failed:", *failed]))


@dataclass(frozen=True)
class Tables:
    """Render results/*.json as a page of tables, the paper's figures beside ours."""

    results: Path = Path("results")
    """Folder of JSON files."""
    out: Path = Path("docs/results.md")
    """Markdown file to write."""

    def run(self) -> None:
        from localscale.lab.pages.results import render_page

        if not self.results.is_dir():
            raise ConfigError(f"{self.results} is not a folder; run it where results/ is, or name one with --results")
        write_whole(self.out, render_page(self.results))
        print(self.out)


def describe(metrics: dict[str, Any]) -> str:
    """What was measured, for a terminal."""
    if "mean_iou" in metrics:
        return _describe_masks(metrics)
    errors = metrics["invariance_error"]
    lines = [
        f"accuracy {100 * metrics['accuracy']:.2f} % of {metrics['images']:,} images",
        f"InvE {100 * errors['squared']:.2f}e-2 squared (the paper's equation), {100 * errors['l2']:.2f}e-2 l2, "
        f"{100 * errors['relative']:.2f}e-2 relative; {metrics['variants']} variants of each image",
    ]
    if "per_scale" in metrics:
        scales = metrics["per_scale"]
        cells = ", ".join(f"{name}: {100 * value:.2f}" for name, value in scales["accuracy"].items())
        lines.append(f"per scale {cells}; {100 * scales['mean']:.2f} ± {100 * scales['std']:.2f} %")
    return "\n".join(lines)


def _describe_masks(metrics: dict[str, Any]) -> str:
    errors, floor = metrics["equivariance_error"], metrics["equivariance_floor"]
    return "\n".join(
        (
            f"mIoU {100 * metrics['mean_iou']:.2f} % of {metrics['images']:,} images",
            f"EquE {errors['squared']:.4f} squared (the paper's equation, per pixel), {errors['l2']:.4f} l2, "
            f"{errors['relative']:.4f} relative; {metrics['variants']} scalings of each image",
            f"floor of EquE {floor['squared']:.4f}, {floor['l2']:.4f}, {floor['relative']:.4f}: what resampling alone "
            "costs a perfect segmenter",
            _describe_scenes(metrics),
        )
    )


def _describe_scenes(metrics: dict[str, Any]) -> str:
    deviation = metrics["group_deviation"]
    if deviation is None:
        return f"{metrics['groups']:,} scenes of one image each, so nothing is said about IoU within a scene"
    return f"IoU deviation {100 * deviation:.2f} % within a scene; {metrics['groups']:,} scenes"
