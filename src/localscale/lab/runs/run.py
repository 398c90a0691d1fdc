"""The folder of a run: recipe, log, checkpoint, weights and result."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localscale.errors import CheckpointError, ConfigError, OutputError
from localscale.files import errors_as, is_sealed, reason_of, seal, unseal, write_whole
from localscale.lab.folders import differences, locked
from localscale.lab.recipes.recipe import Recipe, from_dict, to_dict

__all__ = ["Log", "Run"]


@dataclass(frozen=True)
class Run:
    """The files of a training run."""

    folder: Path

    @property
    def recipe_file(self) -> Path:
        return self.folder / "recipe.json"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    @property
    def preparation(self) -> Path:
        return self.folder / "preparation.safetensors"

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    @property
    def outcomes(self) -> Path:
        """The outcome of each test image; only classifiers have it."""
        return self.folder / "outcomes.safetensors"

    @property
    def result_file(self) -> Path:
        return self.folder / "result.json"

    def recipe(self) -> Recipe:
        """Read the recipe of the run."""
        values = _read_json(self.recipe_file)
        try:
            return from_dict(values)
        except ConfigError as error:
            raise CheckpointError(f"{self.recipe_file} cannot be read: {error}") from error

    def result(self) -> dict[str, Any] | None:
        """Read the result of the run, or return None if it is not finished."""
        return _read_json(self.result_file) if self.result_file.exists() else None

    @contextlib.contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Lock the folder against other processes; the lock ends with this process, even if it is killed.

        If another process has the lock, ``wait`` waits for its end; otherwise ``OutputError`` is raised.
        """
        with locked(self.folder, activity="training in", patience=math.inf if wait else 0.0):
            with errors_as(OutputError, f"{self.folder} cannot be written"):
                for draft in self.folder.glob(".*.part"):  # left by processes that were killed while writing
                    draft.unlink(missing_ok=True)
            yield

    def claim(self, recipe: Recipe, *, resume: bool) -> None:
        """Write the recipe to the folder, or raise if the folder holds another run or other files."""
        if not self.recipe_file.exists():
            strange = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
            if strange:
                raise OutputError(
                    f"{self.folder} holds {strange[0]} and no recipe.json; choose a new or empty folder with --out"
                )
        begun = (self.preparation, self.log, self.checkpoint, self.weights, self.result_file)
        if not any(path.exists() for path in begun):
            # The folder is new, or an earlier run stopped before its first epoch.
            write_whole(self.recipe_file, seal(to_dict(recipe), indent=2), durable=True)
            return
        differing = differences(to_dict(self.recipe()), to_dict(recipe))
        if differing:
            raise CheckpointError(
                f"{self.folder} holds a run with other settings ({'; '.join(differing[:3])}"
                f"{' …' if len(differing) > 3 else ''}); choose another folder with --out"
            )
        if self.result_file.exists() and not resume:
            raise OutputError(f"the run in {self.folder} is finished; choose another folder with --out to repeat it")
        if not resume:
            raise OutputError(
                f"{self.folder} holds an unfinished run; add --resume to continue, or choose another --out"
            )


class Log:
    """One line of JSON per epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []

    def cut(self, epochs: int) -> None:
        """Read the log up to ``epochs``."""
        if self.path.exists():
            try:
                texts = self.path.read_text(encoding="utf-8").splitlines()
                lines = [unseal(text) for text in texts]
                if len({is_sealed(text) for text in texts}) > 1:
                    raise ValueError("some of its lines lack their checksum")
                for number, line in enumerate(lines, start=1):
                    if line.get("epoch") != number or not isinstance(line.get("seconds"), int | float):
                        raise ValueError(f"line {number} is not the one of epoch {number}")
                self.lines = lines[:epochs]
            except (OSError, ValueError, RecursionError) as error:
                raise CheckpointError(
                    f"{self.path} cannot be read ({reason_of(error)}); was it copied whole?"
                ) from error

    def resume(self, epochs: int) -> None:
        """Read the log up to ``epochs``, the epoch of the checkpoint that a run continues from; it must have them."""
        self.cut(epochs)
        if len(self.lines) < epochs:
            raise CheckpointError(
                f"{self.path} has {len(self.lines)} epochs, and the checkpoint beside it is of epoch {epochs}; copy "
                "the folder again, or remove the checkpoint to start again"
            )

    def add(self, line: dict[str, Any]) -> None:
        """Append the line of an epoch."""
        self.lines.append(line)

    def write(self) -> None:
        """Write all lines to the file."""
        write_whole(self.path, "".join(map(seal, self.lines)), durable=True)

    @property
    def seconds(self) -> float:
        """Seconds that all epochs took."""
        return sum(line["seconds"] for line in self.lines)

    @property
    def last(self) -> dict[str, Any]:
        """The line of the last epoch."""
        return self.lines[-1]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return unseal(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"there is no {path.name} in {path.parent}; name a folder that localscale train wrote"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({reason_of(error)}); was it copied whole?") from error
