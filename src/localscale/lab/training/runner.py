"""Train and evaluate a recipe in a run's folder, and continue after interruptions."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from localscale.checkpoints import read_checkpoint, read_weights, write_checkpoint, write_weights
from localscale.errors import CheckpointError, ConfigError, near_misses
from localscale.extras import require
from localscale.files import seal, write_whole
from localscale.fitting.accelerator import import_before_groups
from localscale.fitting.traps import least_head_rate
from localscale.lab.recipes.recipe import Recipe, to_dict
from localscale.lab.runs.finished import read_run
from localscale.lab.runs.models import create_model, make_task
from localscale.lab.runs.run import Log, Run
from localscale.lab.tasks.outcomes import OUTCOMES, Outcomes
from localscale.lab.training.evaluation import evaluate
from localscale.lab.training.loop import Epoch, Loop, Position
from localscale.machine import machine, versions
from localscale.processes import explained

__all__ = ["evaluate_run", "make_backbone", "train"]

logger = logging.getLogger(__name__)

TRACKERS = {"tensorboard": "train", "wandb": "wandb"}  # each with the extra that installs it
PACKAGES = ("localscale", "torch", "torchvision", "timm", "accelerate", "torchmetrics")
RESUME = "run the same command again with --resume, which goes on from the last checkpoint"
AGAIN = "run the same command again"
FEWER = "fewer --data.workers"


@explained(RESUME, FEWER)
def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    wait: bool = False,
    trackers: tuple[str, ...] = (),
    cpu: bool = False,
    cuda_graph: bool = True,
    compile_blocks: bool = False,
    checkpoint_seconds: float = 60.0,
    progress: bool = False,
) -> dict[str, Any]:
    """Train and evaluate ``recipe`` in ``folder``; return its result, which is also ``result.json`` there.

    Args:
        recipe: the recipe to train.
        folder: the run's folder, new or empty unless ``resume``.
        resume: continue from the last checkpoint in the folder, or start if there is none.
        wait: if another process trains in the folder, wait for its end instead of raising ``OutputError``.
        trackers: any of ``"tensorboard"`` and ``"wandb"``; ``log.jsonl`` is always written.
        cpu: run on the CPU even if a GPU is available.
        cuda_graph: on one GPU, record a step as a CUDA graph and replay it, which makes small backbones several times
            faster.
        compile_blocks: compile the backbone's repeated blocks with ``torch.compile``.
        checkpoint_seconds: seconds between checkpoints, which are written after an epoch.
        progress: show progress bars.
    """
    recipe = _with_short_warmup(recipe)
    recipe.check()
    run = Run(folder)
    accelerator = _accelerator(recipe, run, trackers, cpu=cpu)
    with run.locked(wait=wait) if accelerator.is_main_process else contextlib.nullcontext():
        if accelerator.is_main_process:
            run.claim(recipe, resume=resume)
        accelerator.wait_for_everyone()
        if trackers:
            accelerator.init_trackers("localscale", config={"recipe": json.dumps(to_dict(recipe))})
        found = run.result()
        if found is None:
            show = progress and accelerator.is_main_process
            found = _train(
                recipe,
                run,
                accelerator,
                checkpoint_seconds,
                cuda_graph=cuda_graph,
                compile_blocks=compile_blocks,
                progress=show,
            )
        elif accelerator.is_main_process:
            run.checkpoint.unlink(missing_ok=True)  # the run was killed between its result and this
        accelerator.end_training()
    return found


def _with_short_warmup(recipe: Recipe) -> Recipe:
    before, after = recipe.optimization, recipe.optimization.with_short_warmup()
    if after is before:
        return recipe
    logger.warning(
        "--warmup-epochs %g does not fit into --epochs %d; the warm-up is shortened to %g epochs",
        before.warmup_epochs,
        before.epochs,
        after.warmup_epochs,
    )
    return dataclasses.replace(recipe, optimization=after)


def _train(
    recipe: Recipe,
    run: Run,
    accelerator: Accelerator,
    checkpoint_seconds: float,
    *,
    cuda_graph: bool,
    compile_blocks: bool,
    progress: bool,
) -> dict[str, Any]:
    torch.manual_seed(recipe.seed)
    backbone, task = make_backbone(recipe)
    loop = Loop(recipe, backbone, task, accelerator, cuda_graph=cuda_graph, compile_blocks=compile_blocks)
    _warn_about_rate(recipe, task, loop.total_steps)
    prepared: dict[str, Any] = {"seconds": 0.0, "found": None}

    def save() -> None:
        state = {"position": loop.state(), "prepared": prepared}
        write_checkpoint(run.checkpoint, loop.model, loop.optimizer, state)

    if run.checkpoint.exists():
        state = read_checkpoint(run.checkpoint, loop.model, loop.optimizer)
        try:
            loop.restore(Position.from_state(state, loop.total_steps))
        except ValueError as error:
            raise CheckpointError(
                f"{run.checkpoint} has no usable position: {error}; remove it to start again"
            ) from error
        prepared = state.get("prepared", prepared)
    else:
        started = time.perf_counter()
        found = loop.prepare(progress=progress, checkpoint=run.preparation)
        prepared = {"seconds": time.perf_counter() - started, "found": found}
        if found is not None:
            save()  # preparation takes longer than many epochs
    if accelerator.is_main_process:
        run.preparation.unlink(missing_ok=True)
    epochs = Log(run.log)
    epochs.resume(loop.position.step // loop.batches.per_epoch)
    saved = time.monotonic()

    def after_epoch(epoch: Epoch) -> None:
        nonlocal saved
        epochs.add({"epoch": epoch.number, "seconds": epoch.seconds, "skipped": epoch.skipped, **epoch.scalars})
        accelerator.log(epoch.scalars, step=epoch.number)
        if accelerator.is_main_process:
            epochs.write()
        if accelerator.is_main_process and time.monotonic() - saved >= checkpoint_seconds:
            save()
            saved = time.monotonic()

    try:
        loop.run(after_epoch, progress=progress)
    except KeyboardInterrupt:
        if accelerator.num_processes == 1 and not loop.updating:  # several processes stop at different steps
            save()
        raise
    if accelerator.is_main_process:
        save()  # after this checkpoint, an interruption of the evaluation loses no training
    started = time.perf_counter()
    metrics = evaluate(
        loop.model,
        task,
        accelerator,
        batch_size=recipe.optimization.batch_size,
        progress=progress,
        cuda_graph=cuda_graph,
    )
    outcomes: Outcomes | None = metrics.pop(OUTCOMES, None)
    result = {
        "name": recipe.name,
        "seed": recipe.seed,
        "metrics": metrics,
        "data": task.describe(),
        "classes": task.classes,
        **({"class_names": list(task.class_names)} if task.class_names else {}),
        **({recipe.method.prepared: prepared["found"]} if prepared["found"] is not None else {}),
        "steps": loop.total_steps,
        "skipped_steps": loop.position.skipped,
        "seconds": {
            "preparation": prepared["seconds"],
            "training": epochs.seconds,
            "evaluation": time.perf_counter() - started,
        },
        "processes": accelerator.num_processes,
        "machine": machine(accelerator.device),
        "parameters": sum(p.numel() for p in loop.model.parameters()),
        "last_epoch": epochs.last,
        "versions": versions(PACKAGES),
        "recipe": to_dict(recipe),
    }
    if accelerator.is_main_process:
        write_weights(run.weights, loop.model, {"name": recipe.name})
        if outcomes is not None:
            outcomes.write(run.outcomes)
        write_whole(run.result_file, seal(result, indent=2), durable=True)
        run.checkpoint.unlink(missing_ok=True)
    return result


def _warn_about_rate(recipe: Recipe, task: Any, steps: int) -> None:
    """Warn if the learning rate is too low to train a head that starts from random weights."""
    rate, least = recipe.optimization.learning_rate, least_head_rate(steps)
    if task.fresh_head and recipe.start is None and rate < least:
        logger.warning(
            "--learning-rate %g is too low to train a new head of %d classes in %d steps; "
            "raise it to about %g, or train for more --epochs",
            rate,
            task.classes,
            steps,
            _rounded_up(least),
        )


def _rounded_up(value: float) -> float:
    """Return the smallest number of one digit that is not less than ``value``.

    >>> _rounded_up(0.0022)
    0.003
    """
    unit = 10.0 ** math.floor(math.log10(value))
    return float(f"{math.ceil(value / unit) * unit:.1g}")


def make_backbone(recipe: Recipe) -> tuple[nn.Module, Any]:
    """Return the backbone with its first weights, and the task."""
    if recipe.needs_start and recipe.start is None:
        raise ConfigError(
            f"{recipe.name} starts from a finished run of {recipe.needs_start}: train that first, then add "
            f"--start runs/{recipe.needs_start}/seed{recipe.seed}"
        )
    task = make_task(recipe)
    pretrained = "none" if recipe.start is not None else recipe.pretrained
    backbone = create_model(recipe, task.classes, pretrained=pretrained, fresh_head=task.fresh_head)
    if recipe.start is not None:
        _start_from(backbone, recipe, task.classes)
    return backbone, task


def _start_from(backbone: nn.Module, recipe: Recipe, classes: int) -> None:
    assert recipe.start is not None
    earlier = Run(recipe.start)
    before = earlier.recipe()
    if earlier.result() is None:
        raise CheckpointError(f"the run in {recipe.start} is not finished; finish it with --resume first")
    if before.backbone != recipe.backbone:
        raise CheckpointError(
            f"{recipe.start} trained {before.backbone}, not {recipe.backbone}; start from a run of the same backbone"
        )
    if before.data.image_size != recipe.data.image_size:
        raise CheckpointError(
            f"{recipe.start} trained on images of {before.data.image_size} px, not {recipe.data.image_size}; "
            f"add --data.image-size {before.data.image_size}"
        )
    if recipe.data.dense and before.head_width != recipe.head_width:
        raise CheckpointError(
            f"{recipe.start} trained a head of {before.head_width} channels, not {recipe.head_width}; "
            f"add --head-width {before.head_width}"
        )
    if before.head_norm != recipe.head_norm:
        raise CheckpointError(
            f"{recipe.start} trained {'with' if before.head_norm else 'without'} a norm before the classifier; add "
            f"--{'' if before.head_norm else 'no-'}head-norm"
        )
    model = before.build(backbone)
    try:
        read_weights(earlier.weights, model)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; this task has {classes} classes") from error
    unwrap = getattr(model, "unwrap", None)
    if unwrap is not None:
        unwrap()


@explained(AGAIN, FEWER)
def evaluate_run(
    folder: Path, recipe: Recipe, *, cpu: bool = False, cuda_graph: bool = True, progress: bool = False
) -> dict[str, Any]:
    """Evaluate a finished run on the data of ``recipe``, which may differ from the run's own."""
    recipe.check()
    run = Run(folder)
    accelerator = _accelerator(recipe, run, (), cpu=cpu)
    own = run.recipe()
    if (own.backbone, own.data.image_size) != (recipe.backbone, recipe.data.image_size):
        raise CheckpointError(
            f"the run in {folder} is of {own.backbone} at {own.data.image_size} px, "
            f"not of {recipe.backbone} at {recipe.data.image_size} px; use the run's own --data.image-size"
        )
    finished = read_run(folder)
    model = finished.load_model(str(accelerator.device))
    task = make_task(dataclasses.replace(recipe, data=recipe.data.with_classes(finished.class_names)))
    classes = finished.classes
    if classes != task.classes:
        raise CheckpointError(
            f"the run in {folder} has {classes} classes, and these data have {task.classes}; "
            "evaluate it on data with the same classes"
        )
    batch_size = recipe.optimization.batch_size
    found = evaluate(model, task, accelerator, batch_size=batch_size, progress=progress, cuda_graph=cuda_graph)
    found.pop(OUTCOMES, None)
    return found


def _accelerator(recipe: Recipe, run: Run, trackers: tuple[str, ...], *, cpu: bool) -> Accelerator:
    for tracker in trackers:
        if tracker not in TRACKERS:
            raise ConfigError(f"no tracker {tracker!r}: {near_misses(tracker, TRACKERS)}")
        require(tracker, TRACKERS[tracker])
    import_before_groups()
    AcceleratorState._reset_state()  # otherwise accelerate keeps the precision of the last run
    accelerator = Accelerator(
        mixed_precision=recipe.precision, cpu=cpu, log_with=list(trackers) or None, project_dir=run.folder
    )
    return accelerator
