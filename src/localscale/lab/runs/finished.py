"""Finished runs as a report reads them."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localscale.errors import CheckpointError
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.tasks.objects import ObjectsData
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.runs.run import Log, Run

__all__ = ["DATA_FLAGS", "TASKS", "Finished", "check_control", "read_finished"]

TASKS: dict[type[Any], str] = {MNISTData: "mnist", ImageNetData: "imagenet", ObjectsData: "objects"}
DATA_FLAGS = {"mnist": "root", "imagenet": "test_root", "objects": "test_root"}  # where test images come from

CLASSES = ("accuracy", "invariance_error", "images", "variants")
MASKS = ("mean_iou", "equivariance_error", "group_deviation", "images", "groups")
MEASURED = {"mnist": CLASSES, "imagenet": CLASSES, "objects": MASKS}


@dataclass(frozen=True)
class Finished:
    """A run's folder with its recipe, its result, and a line of its log per epoch (none if the log is gone)."""

    folder: Path
    recipe: Recipe
    result: dict[str, Any]
    log: list[dict[str, Any]]

    @property
    def task(self) -> str:
        """``mnist``, ``imagenet`` or ``objects``."""
        return TASKS[type(self.recipe.data)]

    @property
    def metrics(self) -> dict[str, Any]:
        """What was measured."""
        return self.result["metrics"]

    @property
    def key_and_row(self) -> tuple[str, str]:
        """The backbone's key and the row, from a recipe's name such as ``mnist-deit_tiny-dec``; else empty."""
        task, _, rest = self.recipe.name.partition("-")
        key, _, row = rest.partition("-")
        return (key, row) if task == self.task else ("", "")

    def with_data(self, folder: Path | None) -> Finished:
        """The same run with its test images in another folder."""
        if folder is None:
            return self
        data: Any = self.recipe.data
        moved = dataclasses.replace(data, **{DATA_FLAGS[self.task]: folder})
        return dataclasses.replace(self, recipe=dataclasses.replace(self.recipe, data=moved))


def read_finished(folder: Path) -> Finished:
    """Read the run in ``folder``, or say why it is none.

    >>> read_finished(Path("nowhere"))
    Traceback (most recent call last):
        ...
    localscale.errors.CheckpointError: there is no folder nowhere; name one that localscale train wrote
    """
    run = Run(folder)
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}; name one that localscale train wrote")
    if not run.recipe_file.exists():
        raise CheckpointError(f"{folder} is no run: it has no recipe.json; name a folder that localscale train wrote")
    recipe, result = run.recipe(), run.result()
    if result is None:
        raise CheckpointError(f"the run in {folder} is not finished; finish it with localscale train … --resume first")
    metrics = MEASURED[TASKS[type(recipe.data)]]
    missing = [name for name in ("metrics", "classes", "seconds") if name not in result]
    missing = missing or [f"metrics.{name}" for name in metrics if name not in result["metrics"]]
    if missing:
        raise CheckpointError(f"{run.result_file} says nothing of {missing[0]}; was it written by another version?")
    log = Log(run.log)
    log.cut(sys.maxsize)
    return Finished(folder, recipe, result, log.lines)


def check_control(run: Finished, control: Finished) -> None:
    """Refuse a control whose answers cannot be laid beside the run's."""
    for what, ours, theirs in (
        ("task", run.task, control.task),
        ("number of classes", run.result["classes"], control.result["classes"]),
        ("image size", run.recipe.data.image_size, control.recipe.data.image_size),
    ):
        if ours != theirs:
            raise CheckpointError(
                f"the control in {control.folder} has another {what}: {theirs}, where the run in {run.folder} has "
                f"{ours}; give --control a run of the same task"
            )
