"""``localscale recipes|train|evaluate|reproduce|tables``: from a recipe's name to a table in the docs."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from localscale.errors import LocalScaleError, TrainingError
from localscale.files import write_whole

__all__ = ["Evaluate", "Recipes", "Reproduce", "Tables", "Train", "parse_evaluate", "parse_train"]


@dataclass(frozen=True)
class Recipes:
    """Show the rows and backbones that recipes combine, on one screen; with a pattern, list matching names."""

    pattern: tyro.conf.Positional[str] = ""
    """List the names that contain this, for example deit_tiny or mnist-."""

    def run(self) -> None:
        from localscale.lab.recipes.listing import list_matching, overview

        print(list_matching(self.pattern) if self.pattern else overview())


@dataclass(frozen=True)
class Where:
    """The run's folder and device; none of these settings changes what is learned."""

    out: Path | None = None
    """Folder of the run; by default runs/RECIPE/seedN."""
    resume: bool = False
    """Continue from the last checkpoint in the folder, or start if there is none."""
    wait: bool = False
    """If another process trains in the folder, wait for its end."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Loggers in addition to log.jsonl: tensorboard (extra: train) and wandb, if installed."""
    cpu: bool = False
    """Run on the CPU even if a GPU is available."""
    cuda_graph: bool = True
    """On one GPU, record a training step as a CUDA graph and replay it."""
    compile_blocks: bool = False
    """Compile the backbone's repeated blocks with torch.compile."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints, which are written after an epoch."""
    quiet: bool = False
    """Show no progress bars."""


@dataclass(frozen=True)
class Train:
    """Train and evaluate a recipe, or fine-tune on your own photographs.

    localscale train folder --data.train-root my/train --backbone resnet18; localscale train folder --help.
    localscale train RECIPE [--field value …]; localscale train RECIPE --help.
    """

    recipe: tyro.conf.Positional[str]
    """folder, for your own photographs; the name of a recipe, TASK-BACKBONE-ROW, which localscale recipes shows; or a
    task of yours (with --import). The flags depend on it: localscale train folder --help shows those of a folder."""

    def run(self) -> None:
        parse_train(self.recipe, []).run()  # a name that looks like an option, after --


@dataclass(frozen=True)
class Training:
    """A recipe with its changed fields, and where it runs."""

    recipe: Any
    where: Where

    def run(self) -> None:
        from localscale.lab.training import train

        where, recipe = self.where, self.recipe
        folder = run_folder(self)
        result = train(
            recipe,
            folder,
            resume=where.resume,
            wait=where.wait,
            trackers=where.trackers,
            cpu=where.cpu,
            cuda_graph=where.cuda_graph,
            compile_blocks=where.compile_blocks,
            checkpoint_seconds=where.checkpoint_seconds,
            progress=not where.quiet,
        )
        if "learned_sizes" in result:
            print(describe_sizes(result["learned_sizes"]))
        if "learned_energies" in result:
            print(describe_energies(result["learned_energies"]))
        print(describe(result["metrics"]))
        print(
            f"{folder}: weights.safetensors, result.json, log.jsonl; {result['seconds']['training']:.0f} s of training"
        )


def run_folder(training: Training) -> Path:
    """Return the folder of a run: ``--out``, or one named after the recipe and the seed."""
    return training.where.out or Path("runs") / training.recipe.name / f"seed{training.recipe.seed}"


def parse_train(name: str, arguments: list[str]) -> Any:
    """Return the recipe called ``name`` with the changes of the command line; unknown flags end the program."""
    if name == "folder":
        from localscale.cli.folder import parse_folder

        return parse_folder(arguments)
    from localscale.lab.recipes import PROTOCOLS, find_recipe, find_row
    from localscale.lab.tasks import TASKS

    if name in TASKS and name not in PROTOCOLS:
        from localscale.cli.folder import parse_own

        return parse_own(name, arguments)
    recipe, row = find_recipe(name), find_row(name)
    start = f" --start runs/{recipe.needs_start}/seed0" if recipe.needs_start else ""
    folders = " --data.train-root FOLDER --data.test-root FOLDER" if hasattr(recipe.data, "train_root") else ""
    about = f"{row.label}: {row.about}\n\nlocalscale train {name}{start}{folders}"
    return parse_recipe(recipe, arguments, prog=f"localscale train {name}", about=about)


def parse_recipe(recipe: Any, arguments: list[str], *, prog: str, about: str) -> Training:
    """Return ``recipe`` with the changes of the command line; ``prog`` and ``about`` are for the help text."""
    from localscale.lab.recipes.recipe import Recipe

    both = dataclasses.make_dataclass("Arguments", [], bases=(Recipe, Where), frozen=True)
    fields = [f.name for f in dataclasses.fields(recipe)]
    default = both(**{field: getattr(recipe, field) for field in fields})
    given: Any = tyro.cli(
        both, config=(tyro.conf.AvoidSubcommands,), default=default, args=arguments, prog=prog, description=about
    )
    where = Where(**{f.name: getattr(given, f.name) for f in dataclasses.fields(Where)})
    return Training(Recipe(**{field: getattr(given, field) for field in fields}), where)


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a finished run again: localscale evaluate RUN [--data.field value …]; localscale evaluate RUN --help."""

    folder: tyro.conf.Positional[Path]
    """Folder of a finished run. The flags depend on it: localscale evaluate FOLDER --help shows them."""

    def run(self) -> None:
        parse_evaluate(str(self.folder), []).run()


@dataclass(frozen=True)
class Evaluation:
    """A finished run, the data to evaluate it on, and the file for its metrics."""

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
    """Return the run in ``folder`` with the data settings that the command line changes."""
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
    kind.__doc__ = "Evaluate a finished run, by default on the data it was evaluated on before."
    given: Any = tyro.cli(kind, args=arguments, prog=f"localscale evaluate {folder}")
    return Evaluation(
        Path(folder), dataclasses.replace(recipe, data=given.data), given.json, given.cpu, given.cuda_graph
    )


@dataclass(frozen=True)
class Reproduce:
    """Train every run of a table and write results/TABLE.json; finished runs are skipped, interrupted ones continue.

    The file has all finished runs of the table in --out, also those that --only leaves out.
    """

    table: tyro.conf.Positional[str] = ""
    """Name of the table; without it all tables are listed."""
    seeds: int = 5
    """Number of seeds: 0, 1, …"""
    out: Path = Path("runs")
    """Folder for the runs."""
    results: Path = Path("results")
    """Folder for the JSON file of the table."""
    set: tuple[str, ...] = ()
    """Changes to all recipes: epochs=80 data.root=mnist pretrained=deit.safetensors …"""
    only: tuple[str, ...] = ()
    """Train only these runs, and the runs they start from: names of their folders, such as deit_tiny-dec, or parts of
    several names."""
    jobs: int = 1
    """Runs at a time; several small ones can share a GPU."""
    engine: Literal["local", "ray"] = "local"
    """local: processes on this machine; ray: a Ray cluster with a shared file system (extra: ray)."""
    address: str | None = None
    """Address of the Ray cluster; without it a local cluster is started."""
    gpus_per_run: float = 1.0
    """GPUs of the Ray cluster that each run takes; 0 on machines without a GPU."""
    cpu: bool = False
    """Run on the CPU even if a GPU is available."""
    compile_blocks: bool = False
    """Compile the backbones' repeated blocks with torch.compile."""
    plan: bool = False
    """Print the commands of all runs, and train nothing."""
    collect: bool = False
    """Write the results of the finished runs, and train nothing."""

    def run(self) -> None:
        from localscale.lab.recipes.tables import TABLES
        from localscale.lab.training.reproduce import Execution, collect, plan, reproduce

        if not self.table:
            print("\n".join(f"{name:18} {table.title}" for name, table in TABLES.items()))
            return
        flags = (("--cpu",) if self.cpu else ()) + (("--compile-blocks",) if self.compile_blocks else ())
        every = plan(self.table, seeds=self.seeds, out=self.out, overrides=self.set, flags=flags)
        cells = plan(self.table, seeds=self.seeds, out=self.out, overrides=self.set, only=self.only, flags=flags)
        if self.plan:
            for cell in cells:
                print(f"{'done ' if cell.finished() else 'to do'} {cell.command_line()}")
            return
        execution = Execution(self.jobs, self.engine, self.address, self.gpus_per_run)
        failed = [] if self.collect else reproduce(cells, execution, progress=True)
        if failed and not any(cell.finished() for cell in cells):
            raise TrainingError("\n".join([f"no run of {self.table} is finished; these failed:", *failed]))
        arguments = [argument for argument in sys.argv[1:] if argument != "--collect"]
        command = f"localscale {' '.join(arguments)}" if len(arguments) > 1 else self.table
        target = self.results / f"{self.table.replace('-', '_')}.json"
        try:
            write_whole(target, json.dumps(collect(self.table, every, command), indent=2) + "\n")
        except LocalScaleError as error:  # which must not hide the errors of the runs
            others = ["these runs failed, too:", *failed] if failed else []
            raise type(error)("\n".join([str(error), *others])) from error
        print(
            f"{sum(cell.finished() for cell in every)} of {len(every)} runs in {target}; localscale tables renders it"
        )
        if failed:
            raise TrainingError("\n".join(["these runs failed:", *failed]))


@dataclass(frozen=True)
class Tables:
    """Render results/*.json as a page of all tables, and as a page that follows the paper."""

    results: Path = Path("results")
    """Folder of the JSON files."""
    out: Path = Path("docs/results.md")
    """Markdown file to write; the page that follows the paper is written beside it, as paper.md."""

    def run(self) -> None:
        from localscale.lab.pages.paper import render_paper
        from localscale.lab.pages.results import render_page

        for path, render in ((self.out, render_page), (self.out.with_name("paper.md"), render_paper)):
            write_whole(path, render(self.results))
            print(path)


def describe_sizes(found: dict[str, Any]) -> str:
    """Return what ``learn_sizes`` measured on held-out images as a line for a terminal."""
    known = ""
    if "thing_error" in found:
        known = (
            f"; on things known from masks: error {found['thing_error']:.3f}, IoU {found['thing_overlap']:.2f}, "
            f"{found['thing_spread']:.2f} of their spread kept"
        )
    return (
        f"sizes learned in {found['steps']:,} steps: error {found['error']:.3f} in log size; canonical forms keep "
        f"{found['spread']:.2f} of the spread of sizes; {100 * found['converged']:.0f} % of the equilibria converged"
        f"{known}"
    )


def describe_energies(found: dict[str, Any]) -> str:
    """Return what Canon's energies learned as a line for a terminal."""
    return (
        f"energies learned in {found['steps']:,} steps: the least one undoes {100 * found['undone']:.1f} % of the "
        f"known configurations, and chance {100 * found['chance']:.1f} %"
    )


def describe(metrics: dict[str, Any]) -> str:
    """Return the metrics as text for a terminal."""
    if "mean_iou" in metrics:
        return _describe_masks(metrics)
    if "invariance_error" not in metrics:  # a task of a user's own
        return "\n".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in metrics.items())
    errors = metrics["invariance_error"]
    lines = [
        f"accuracy {100 * metrics['accuracy']:.2f} % of {metrics['images']:,} images",
        f"InvE {100 * errors['squared']:.2f}e-2 squared (the paper's equation), {100 * errors['l2']:.2f}e-2 l2, "
        f"{100 * errors['relative']:.2f}e-2 relative; variants of each image: {metrics['variants']}",
    ]
    if "scaled_accuracy" in metrics:
        lines.append(f"accuracy {100 * metrics['scaled_accuracy']:.2f} % of the variants")
    if "per_scale" in metrics:
        scales = metrics["per_scale"]
        cells = ", ".join(f"{name}: {100 * value:.2f}" for name, value in scales["accuracy"].items())
        lines.append(f"per scale {cells}; {100 * scales['mean']:.2f} ± {100 * scales['std']:.2f} %")
    return "\n".join(lines)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _describe_masks(metrics: dict[str, Any]) -> str:
    errors, floor = metrics["equivariance_error"], metrics["equivariance_floor"]
    return "\n".join(
        (
            f"mIoU {100 * metrics['mean_iou']:.2f} % of {metrics['images']:,} images{_without_background(metrics)}",
            *_describe_small_objects(metrics),
            f"EquE {errors['squared']:.4f} squared (the paper's equation, per pixel), {errors['l2']:.4f} l2, "
            f"{errors['relative']:.4f} relative; {_scalings(metrics)}",
            f"floor of EquE {floor['squared']:.4f}, {floor['l2']:.4f}, {floor['relative']:.4f}: the error of a "
            "perfect segmenter, caused by resampling alone",
            *_describe_uniform(metrics),
            *([_describe_scenes(metrics)] if "groups" in metrics else []),
        )
    )


def _without_background(metrics: dict[str, Any]) -> str:
    found = metrics.get("mean_iou_objects")
    return "" if found is None else f"; {100 * found:.2f} % without the background"


def _scalings(found: dict[str, Any]) -> str:
    """Describe the scalings of one EquE; older runs did not measure the displacement."""
    moved = f", which move points by {100 * found['displacement']:.1f} % of the side" if "displacement" in found else ""
    return f"scalings of each image: {found['variants']}{moved}"


def _describe_uniform(metrics: dict[str, Any]) -> list[str]:
    found = metrics.get("uniform")
    if found is None:
        return []
    errors, floor = found["equivariance_error"], found["equivariance_floor"]
    return [
        f"EquE with increments uniform on the simplex {errors['squared']:.4f} squared, {errors['l2']:.4f} l2, "
        f"{errors['relative']:.4f} relative; {_scalings(found)}; floor {floor['squared']:.4f}"
    ]


def _describe_small_objects(metrics: dict[str, Any]) -> list[str]:
    found = metrics.get("small_object_iou")
    return [] if found is None else [f"mIoU {100 * found:.2f} % of the smaller half of the objects"]


def _describe_scenes(metrics: dict[str, Any]) -> str:
    deviation = metrics["group_deviation"]
    if deviation is None:
        return f"{metrics['groups']:,} scenes of one image each, so there is no IoU deviation within a scene"
    return f"IoU deviation {100 * deviation:.2f} % within a scene; {metrics['groups']:,} scenes"
