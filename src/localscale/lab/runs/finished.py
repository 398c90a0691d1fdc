"""The reader of finished runs: recipe, result, log, trained model and test data."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from localscale.adaptation import AdaptedModel
from localscale.checkpoints import read_weights
from localscale.errors import CheckpointError, ConfigError
from localscale.files import errors_as
from localscale.lab.backbones.catalogue import Normalise, normalisation, sketch_of
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.runs.models import create_model, make_task
from localscale.lab.runs.run import Log, Run
from localscale.lab.tasks import TASKS

__all__ = ["FinishedRun", "check_control", "load_run", "read_run"]


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, its recipe and its result; log, model and data are read on demand."""

    folder: Path
    recipe: Recipe
    result: dict[str, Any]

    @property
    def task(self) -> str:
        """Name of the task in ``TASKS``, such as ``mnist``."""
        return next(name for name, kind in TASKS.items() if type(self.recipe.data) is kind)

    @property
    def classes(self) -> int:
        """The number of classes that the model was trained for."""
        return self.result["classes"]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the labels; empty if the run's data has none."""
        return tuple(self.result.get("class_names", ()))

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics on the test images."""
        return self.result["metrics"]

    @property
    def normalise(self) -> Normalise:
        """The normalisation that the backbone was pretrained with."""
        return normalisation(sketch_of(self.recipe.backbone))

    @property
    def key_and_row(self) -> tuple[str, str]:
        """Backbone key and row, taken from a recipe name such as ``mnist-deit_tiny-dec``; empty for other names."""
        task, _, rest = self.recipe.name.partition("-")
        key, _, row = rest.partition("-")
        return (key, row) if task == self.task else ("", "")

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """One entry per epoch; empty if ``log.jsonl`` is missing."""
        with errors_as(CheckpointError, f"{self.folder} cannot be read"):
            return self._read_log()

    def _read_log(self) -> list[dict[str, Any]]:
        log = Log(Run(self.folder).log)
        log.cut(sys.maxsize)
        last = self.result.get("last_epoch")
        if log.path.exists() and isinstance(last, dict) and last.get("epoch") != len(log.lines):
            raise CheckpointError(
                f"{log.path} has {len(log.lines)} epochs, and the run has {last.get('epoch')}; was it copied whole?"
            )
        return log.lines

    def load_model(self, device: str = "cpu") -> nn.Module:
        """Return the trained model in evaluation mode."""
        model = self.recipe.build(create_model(self.recipe, self.classes, pretrained="none"))
        read_weights(Run(self.folder).weights, model)
        if isinstance(model, AdaptedModel) and model.preprocessing is not None:
            model.preprocessing = self.recipe.data.preprocessing(model.preprocessing)
        return model.to(device).eval()

    def make_task(self) -> Any:
        """Return the task, with its data opened."""
        return make_task(dataclasses.replace(self.recipe, data=self.recipe.data.with_classes(self.class_names)))

    def with_data(self, folder: Path | None) -> FinishedRun:
        """Return the same run with its test images in ``folder``; ``None`` keeps the recipe's folder."""
        if folder is None:
            return self
        data: Any = self.recipe.data
        if data.test_field not in [field.name for field in dataclasses.fields(data)]:
            raise ConfigError(f"{type(data).__name__} has no field {data.test_field} for a folder; leave out --data")
        moved = dataclasses.replace(data, **{data.test_field: folder})
        return dataclasses.replace(self, recipe=dataclasses.replace(self.recipe, data=moved))


def read_run(folder: str | Path) -> FinishedRun:
    """Read the finished run in ``folder``; raise ``CheckpointError`` if there is none.

    >>> read_run("nowhere")
    Traceback (most recent call last):
        ...
    localscale.errors.CheckpointError: there is no folder nowhere; name one that localscale train wrote
    """
    with errors_as(CheckpointError, f"{folder} cannot be read"):
        return _read(Run(Path(folder)))


def _read(run: Run) -> FinishedRun:
    folder = run.folder
    if not run.folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}; name one that localscale train wrote")
    if not run.recipe_file.exists():
        raise CheckpointError(f"{folder} is not a run: it has no recipe.json; name one that localscale train wrote")
    recipe, result = run.recipe(), run.result()
    if result is None:
        raise CheckpointError(f"the run in {folder} is not finished; finish it with localscale train … --resume first")
    missing = [name for name in ("metrics", "classes", "seconds") if name not in result]
    missing = missing or [name for name in ("metrics", "seconds") if not isinstance(result[name], dict)]
    missing = missing or [f"metrics.{name}" for name in recipe.data.metrics if name not in result["metrics"]]
    if missing:
        raise CheckpointError(
            f"{run.result_file} has no {missing[0]}; another version of localscale wrote it: train the run again"
        )
    return FinishedRun(run.folder, recipe, result)


def load_run(folder: str | Path, *, device: str = "cpu") -> nn.Module:
    """Return the trained model of the finished run in ``folder``, in evaluation mode.

    A run on data of your own needs their class registered: import its module first (``localscale.lab.tasks.register``).

    >>> model = load_run("runs/mnist-deit_tiny-dec/seed0")  # doctest: +SKIP
    """
    return read_run(folder).load_model(device)


def check_control(run: FinishedRun, control: FinishedRun) -> None:
    """Raise ``CheckpointError`` unless ``control`` has the task, classes and image sizes of ``run``."""
    for what, ours, theirs in (
        ("task", run.task, control.task),
        ("number of classes", run.classes, control.classes),
        ("image size", run.recipe.loaded_data.image_size, control.recipe.loaded_data.image_size),
    ):
        if ours != theirs:
            raise CheckpointError(
                f"the control in {control.folder} has another {what}: {theirs}, where the run in {run.folder} has "
                f"{ours}; give --control a run of the same task"
            )
