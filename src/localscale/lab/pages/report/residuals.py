"""How fast a finished run's solvers come to rest on its test images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from localscale.adaptation import AdaptedModel
from localscale.errors import CheckpointError, ConfigError
from localscale.lab.pages.report.answers import open_model
from localscale.lab.pages.report.examples import open_examples
from localscale.lab.pictures.residuals import residuals_of
from localscale.lab.runs.finished import read_finished

__all__ = ["RunResiduals", "run_residuals"]


@dataclass(frozen=True)
class RunResiduals:
    """By site the residual of each image at each evaluation ``(images, steps)``; and where the run itself stops."""

    residuals: dict[str, Tensor]
    tolerance: float
    max_steps: int


def run_residuals(folder: Path, *, images: int, steps: int, data: Path | None = None) -> RunResiduals:
    """Residuals of the run in ``folder`` on the first ``images`` of its test images, each as it is and not scaled.

    ``data`` is the folder of the test images, where it is not the one that the recipe names.
    """
    if min(images, steps) < 1:
        raise ConfigError(f"images and steps are {images} and {steps}; expected at least 1 each")
    run = read_finished(folder).with_data(data)
    model = open_model(run)
    if not isinstance(model.network, AdaptedModel):
        raise CheckpointError(f"the run in {folder} solves for no equilibrium; expected a run of a dec row")
    examples = open_examples(run)
    seen = (examples.read(number) for number in range(min(images, examples.count)))
    pixels = torch.stack([example.images[example.reference] for example in seen])
    found = residuals_of(model.network, model.normalise(pixels), steps=steps)
    config = model.network.config
    return RunResiduals(found, config.tolerance, config.max_steps)
