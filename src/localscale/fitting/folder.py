"""The progress of ``fit``, and its folder: best weights, log and checkpoint."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel
from localscale.checkpoints import read_checkpoint, read_state, read_weights, write_checkpoint, write_weights
from localscale.errors import CheckpointError, ConfigError, OutputError
from localscale.files import write_whole
from localscale.fitting.settings import EpochReport, FitSettings
from localscale.registry import check_types

__all__ = ["FitFolder", "Progress"]

NAMES = {"invariance_error": "InvE", "equivariance_error": "EquE"}  # as the documentation writes them
logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """The progress of a fit.

    ``history`` holds the epochs that are trained and validated. If ``step`` is the last step of the next one, only its
    validation is missing. ``loss`` and ``seconds`` are sums over the steps of that epoch, and ``order`` holds the
    random states with which it began. ``random`` holds those of the checkpoint. ``waited`` counts the epochs since the
    best one.
    """

    step: int = 0
    waited: int = 0
    ended: str = ""
    history: list[EpochReport] = field(default_factory=list)
    best: EpochReport | None = None
    loss: Tensor | float = 0.0
    seconds: float = 0.0
    order: dict[str, Any] | None = None
    random: dict[str, Any] | None = None
    weights: dict[str, Tensor] | None = None  # of the best epoch, if it was in this process

    def add(self, report: EpochReport, *, better: bool) -> None:
        """Add an epoch that is trained and validated."""
        self.history.append(report)
        self.best, self.waited = (report, 0) if better else (self.best, self.waited + 1)
        self.loss, self.seconds, self.order = 0.0, 0.0, None

    def keep(self, model: nn.Module, report: EpochReport, folder: FitFolder | None) -> None:
        """Keep the weights of the best epoch, ``report``, in memory and in ``folder``."""
        self.weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}
        if folder is not None:
            folder.keep(model, report)

    def load_best(self, model: nn.Module, folder: FitFolder | None) -> None:
        """Load the weights of the best epoch into ``model``."""
        if self.weights is not None:
            model.load_state_dict(self.weights)
        elif folder is not None:
            read_weights(folder.best, model)


@dataclass(frozen=True)
class FitFolder:
    """The folder ``out`` of a fit."""

    path: Path
    settings: FitSettings
    steps: int

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def best(self) -> Path:
        return self.path / "best.safetensors"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Load the checkpoint, if there is one, and return the progress; other settings raise."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{self.path} cannot be created: {error.strerror or error}; choose another out"
            ) from error
        if not self.checkpoint.exists():
            return Progress()
        state = read_state(self.checkpoint)
        found, wanted = state.get("settings"), self._settings()
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.checkpoint} is not a checkpoint of ls.fit; choose another out, or remove it")
        differing = [
            f"{name} was {found.get(name)} and is now {value}"
            for name, value in wanted.items()
            if found.get(name) != value
        ]
        if differing:
            raise CheckpointError(
                f"{self.path} holds a fit with other settings ({'; '.join(differing[:3])}); choose another out, or "
                "remove the folder"
            )
        try:
            progress = _progress_of(state)
        except (ConfigError, LookupError, TypeError) as error:
            raise CheckpointError(
                f"{self.checkpoint} has no usable position ({error!r}); remove {self.path} to start again"
            ) from error
        read_checkpoint(self.checkpoint, model, optimizer)
        if progress.ended:
            logger.warning(
                "the fit in %s had ended (%s), so nothing is trained; choose another out to train again",
                self.path,
                progress.ended,
            )
        return progress

    def keep(self, model: nn.Module, report: EpochReport) -> None:
        """Write the weights of ``model`` as those of the best epoch; ``from_pretrained`` loads an adapted model's.

        The model card states the metrics of ``report``.
        """
        write_weights(self.best, model, {})
        if isinstance(model, AdaptedModel):
            validation = {NAMES.get(name, name): value for name, value in report.metrics.items()}
            model.save_pretrained(
                self.path, results={"epoch": report.epoch, "validation": validation} if validation else None
            )

    def write(self, at: Progress, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the checkpoint and the log."""
        state: dict[str, Any] = {
            "settings": self._settings(),
            "step": at.step,
            "waited": at.waited,
            "ended": at.ended,
            "loss": float(at.loss),
            "seconds": at.seconds,
            "order": at.order,
            "random": at.random,
            "history": [asdict(report) for report in at.history],
            "best": at.history.index(at.best) if at.best is not None else None,
        }
        write_checkpoint(self.checkpoint, model, optimizer, state)
        write_whole(self.log, "".join(json.dumps(asdict(report)) + "\n" for report in at.history), durable=True)

    def _settings(self) -> dict[str, Any]:
        return {**asdict(self.settings), "batches": self.steps}


def _progress_of(state: dict[str, Any]) -> Progress:
    """Return the progress in the state of a checkpoint."""
    history = [EpochReport(**each) for each in state["history"]]
    for report in history:
        check_types(report)
    best = None if state["best"] is None else history[state["best"]]
    kept = {name: state[name] for name in ("loss", "seconds", "order", "random") if name in state}
    progress = Progress(state["step"], state["waited"], state["ended"], history, best, **kept)
    check_types(progress)
    return progress
