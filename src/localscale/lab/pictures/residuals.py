"""Residuals of the fixed-point solvers at every step, recorded while a model processes images."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from localscale.adaptation import AdaptedModel
from localscale.equilibrium import Estimate, Solver, relative_residual
from localscale.equilibrium.solver import Function
from localscale.errors import CheckpointError, ConfigError, ConvergenceWarning, ShapeError
from localscale.lab.pictures.curves import draw_residuals
from localscale.lab.runs.answers import open_model
from localscale.lab.runs.finished import read_run
from localscale.lab.runs.groups import open_groups

__all__ = ["draw_run_residuals", "residuals_of"]

BATCH = 16


class RecordingSolver(Solver):
    """A solver that records the residual at each of ``steps`` steps, even after convergence, then solves as usual.

    Its estimate is the original solver's, so recording does not change the model's output.
    """

    def __init__(self, solver: Any, steps: int) -> None:
        self.solver = solver
        self.longer = dataclasses.replace(solver, max_steps=steps, tolerance=0.0, fixed_steps=True)
        self.max_steps, self.tolerance, self.fixed_steps = solver.max_steps, solver.tolerance, solver.fixed_steps
        self.recorded: list[Tensor] = []

    def solve(self, f: Function, z0: Tensor) -> Estimate:
        """Solve twice from ``z0``: once to record residuals, once for the estimate."""
        residuals: list[Tensor] = []

        def recorded(point: Tensor) -> Tensor:
            value = f(point)
            residuals.append(relative_residual(point, value))
            return value

        self.longer.solve(recorded, z0)
        self.recorded.append(torch.stack(residuals, dim=1))
        return self.solver.solve(f, z0)


@torch.no_grad()
def residuals_of(model: AdaptedModel, images: Tensor, *, steps: int = 20) -> dict[str, Tensor]:
    """Return the relative residual at each solver step, ``(images, steps)`` by site.

    Recording continues past the model's own tolerance and largest number of steps.

    Args:
        model: a model with canonicalizers, on the CPU.
        images: ``(B, C, H, W)``, normalised for its backbone.
        steps: number of solver steps.

    >>> model = ls.adapt(torch.nn.Flatten(), input_size=(3, 32, 32))
    >>> residuals_of(model, torch.rand(2, 3, 32, 32), steps=5)["input"].shape
    torch.Size([2, 5])
    """
    if steps < 1:
        raise ConfigError(f"steps is {steps}; expected at least 1")
    if images.device.type != "cpu":
        raise ShapeError(f"images are on {images.device}; residuals are recorded on the CPU: call .cpu() on both")
    with _recording(model, steps) as sites, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the residuals themselves show it
        for batch in images.split(BATCH):
            model(batch)
    return {site: torch.cat(solver.recorded) for site, solver in sites.items()}


@contextlib.contextmanager
def _recording(model: AdaptedModel, steps: int) -> Iterator[dict[str, RecordingSolver]]:
    """Replace the solver of every site by a recording one; restore it afterwards."""
    canonicalizers = model.canonicalizers
    found = {site: RecordingSolver(canonicalizer.solver, steps) for site, canonicalizer in canonicalizers.items()}
    try:
        for site, recording in found.items():
            canonicalizers[site].solver = recording
        yield found
    finally:
        for site, recording in found.items():
            canonicalizers[site].solver = recording.solver


def draw_run_residuals(folder: Path, *, images: int, steps: int, data: Path | None = None) -> Any:
    """Return a figure of the residuals of a finished run on its first ``images`` unscaled test images.

    ``data`` is the folder of the test images; ``None`` means the folder that the recipe names.
    """
    if min(images, steps) < 1:
        raise ConfigError(f"images and steps are {images} and {steps}; expected at least 1 each")
    run = read_run(folder).with_data(data)
    model = open_model(run)
    if not isinstance(model.network, AdaptedModel):
        raise CheckpointError(f"the run in {folder} has no equilibrium to solve; expected a run of a dec row")
    groups = open_groups(run)
    read = (groups.read(number) for number in range(min(images, groups.count)))
    pixels = torch.stack([group.images[group.reference] for group in read])
    found = residuals_of(model.network, model.normalise(pixels), steps=steps)
    solver = next(iter(model.network.canonicalizers.values())).solver
    return draw_residuals(found, tolerance=solver.tolerance, max_steps=solver.max_steps)
