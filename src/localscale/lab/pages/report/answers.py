"""Trained models, asked about examples: what they say, how much it changes, and what their canonicalizers do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel
from localscale.canonicalizer import INPUT, SiteReport
from localscale.lab.backbones.catalogue import normalisation, sketch_of
from localscale.lab.methods import DiscreteCanonicalizer
from localscale.lab.pages.report.examples import Example
from localscale.lab.runs.finished import Finished
from localscale.lab.tasks.objects import IGNORED
from localscale.lab.tasks.task import Normalise
from localscale.lab.training import load_run
from localscale.maps.base import Map
from localscale.metrics import image_iou, invariance_error

__all__ = ["Answer", "Health", "Model", "SiteHealth", "look", "open_model"]


@dataclass(frozen=True)
class Answer:
    """What a model says of each image of an example, and how much that changes from image to image.

    ``change`` is the example's share of InvE (squared), or for masks the standard deviation of IoU; NaN if neither can
    be told. For classes, ``labels`` and how sure the model is; for masks, ``labels`` ``(S, H, W)`` and their IoU.
    """

    change: float
    labels: Tensor
    scores: list[float]


@dataclass
class SiteHealth:
    """One number per image that was looked at, for one site."""

    residual: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    converged: list[float] = field(default_factory=list)
    displacement: list[float] = field(default_factory=list)
    least_determinant: list[float] = field(default_factory=list)

    def add(self, report: SiteReport) -> None:
        """The images of one pass."""
        for into, values in (
            (self.residual, report.residual),
            (self.steps, report.steps),
            (self.converged, report.converged),
            (self.displacement, report.map.mean_displacement()),
            (self.least_determinant, report.map.min_determinant()),
        ):
            into += values.detach().double().tolist()


Health = dict[str, SiteHealth]  # by site


@dataclass(frozen=True)
class Model:
    """A run's model in float32 on the CPU, with the normalisation it was trained with."""

    network: nn.Module
    normalise: Normalise
    classes: int

    @torch.no_grad()
    def ask(self, example: Example, health: Health | None = None) -> Answer:
        """Its answer on every image of ``example``; what its solvers did is added to ``health``."""
        images = self.normalise(example.images)
        if isinstance(self.network, AdaptedModel):
            logits, report = self.network(images, return_report=True)
            for site, found in report.items() if health is not None else ():
                assert health is not None
                health.setdefault(site, SiteHealth()).add(found)
        else:
            logits = self.network(images)
        return self._judge(logits.float(), example)

    def _judge(self, logits: Tensor, example: Example) -> Answer:
        if example.masks is not None:
            labels = logits.argmax(1)
            overlap = image_iou(labels, example.masks, self.classes, ignore_index=IGNORED)
            counted = overlap[~overlap.isnan()]
            change = float(counted.std(correction=0)) if len(counted) > 1 else float("nan")
            return Answer(change, labels, overlap.tolist())
        answers = logits.softmax(1)
        scores, labels = answers.max(1)
        kept = example.reference
        others = torch.cat((answers[:kept], answers[kept + 1 :]))
        change = float(invariance_error(answers[kept : kept + 1], others[None])) if len(others) else float("nan")
        return Answer(change, labels, scores.tolist())

    @torch.no_grad()
    def maps(self, images: Tensor) -> dict[str, Map]:
        """The map found at each site for ``images`` ``(B, 1 or 3, H, W)`` in [0,1]; none without canonicalizers."""
        pixels = self.normalise(images)
        if isinstance(self.network, AdaptedModel):
            report: dict[str, Any] = self.network(pixels, return_report=True)[1]
            return {site: report[site].map.detach() for site in self.network.canonicalizers if site in report}
        if isinstance(self.network, DiscreteCanonicalizer):
            return {INPUT: self.network.choose(pixels)}
        return {}


def open_model(run: Finished) -> Model:
    """The trained model of ``run``; ``CheckpointError`` where its weights are gone."""
    return Model(load_run(run.folder), normalisation(sketch_of(run.recipe.backbone)), run.result["classes"])


def look(model: Model, examples: Iterable[Example]) -> tuple[list[float], Health]:
    """How much ``model``'s answer changes in each example, and what its solvers did on all their images."""
    health: Health = {}
    return [model.ask(example, health).change for example in examples], health
