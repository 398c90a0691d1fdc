"""Residuals of every evaluation of a solve, watched while a model looks at images."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from localscale.adaptation import AdaptedModel
from localscale.equilibrium import Anderson, Estimate, Picard, relative_residual
from localscale.equilibrium.solvers import Function
from localscale.errors import ConfigError, ConvergenceWarning, ShapeError

__all__ = ["residuals_of"]

BATCH = 16


class Watched:
    """A solver that first goes on for ``steps`` evaluations, whatever the tolerance, and notes each one's residual.

    What it answers is the solver's own answer, so a model goes on as it always does.
    """

    def __init__(self, solver: Anderson | Picard, steps: int) -> None:
        self.solver = solver
        self.further = dataclasses.replace(solver, max_steps=steps, tolerance=0.0, fixed_steps=True)
        self.max_steps, self.tolerance, self.fixed_steps = solver.max_steps, solver.tolerance, solver.fixed_steps
        self.seen: list[Tensor] = []

    def solve(self, f: Function, z0: Tensor) -> Estimate:
        """Iterate twice from ``z0``: once to watch, once to answer."""
        residuals: list[Tensor] = []

        def watched(point: Tensor) -> Tensor:
            image = f(point)
            residuals.append(relative_residual(point, image))
            return image

        self.further.solve(watched, z0)
        self.seen.append(torch.stack(residuals, dim=1))
        return self.solver.solve(f, z0)


@torch.no_grad()
def residuals_of(model: AdaptedModel, images: Tensor, *, steps: int = 20) -> dict[str, Tensor]:
    """The relative residual at each evaluation, by site ``(images, steps)``, also past the model's own tolerance.

    Args:
        model: with canonicalizers, on the CPU.
        images: ``(B, C, H, W)``, normalised as its backbone wants them.
        steps: evaluations.

    >>> model = ls.adapt(torch.nn.Flatten(), ls.DECConfig(), input_size=(3, 32, 32))
    >>> residuals_of(model, torch.rand(2, 3, 32, 32), steps=5)["input"].shape
    torch.Size([2, 5])
    """
    if steps < 1:
        raise ConfigError(f"steps is {steps}; expected at least 1 evaluation")
    if images.device.type != "cpu":
        raise ShapeError(f"images are on {images.device}; residuals are watched on the CPU: call .cpu() on both")
    with _watched(model, steps) as sites, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the residuals tell
        for batch in images.split(BATCH):
            model(batch)
    return {site: torch.cat(watched.seen) for site, watched in sites.items()}


@contextlib.contextmanager
def _watched(model: AdaptedModel, steps: int) -> Iterator[dict[str, Watched]]:
    """Every site's solver, watched; its own again afterwards."""
    canonicalizers = model.canonicalizers
    found = {site: Watched(canonicalizer.solver, steps) for site, canonicalizer in canonicalizers.items()}
    try:
        for site, watched in found.items():
            canonicalizers[site].solver = watched  # type: ignore[assignment]
        yield found
    finally:
        for site, watched in found.items():
            canonicalizers[site].solver = watched.solver
