"""Answers of trained models on groups of images: labels, how much they change with scale, and solver statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel
from localscale.canonicalizer import INPUT, SiteReport, SizeNetwork
from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.methods import DiscreteCanonicalizer
from localscale.lab.runs.finished import FinishedRun
from localscale.lab.runs.groups import ImageGroup
from localscale.lab.tasks.objects import IGNORED
from localscale.maps.base import Map
from localscale.metrics import image_iou, invariance_error

__all__ = [
    "PHOTOGRAPHS",
    "Answer",
    "Health",
    "SiteHealth",
    "TrainedModel",
    "measure_changes",
    "method_of",
    "open_model",
]

PHOTOGRAPHS = "canonicalizer for photographs"


@dataclass(frozen=True)
class Answer:
    """The answer of a model on each image of a group, and how much it changes between them.

    ``change`` is the group's share of InvE (squared), or for masks the standard deviation of IoU; NaN for a group
    of one image. Classification: ``labels`` ``(S,)`` and their probabilities. Segmentation: ``labels`` ``(S, H, W)``
    and their IoU.
    """

    change: float
    labels: Tensor
    scores: list[float]


@dataclass
class SiteHealth:
    """Solver statistics of one site: one number per image."""

    residual: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    converged: list[float] = field(default_factory=list)
    displacement: list[float] = field(default_factory=list)
    least_determinant: list[float] = field(default_factory=list)

    def add(self, report: SiteReport) -> None:
        """Add the images of one forward pass."""
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
class TrainedModel:
    """The model of a finished run in float32 on the CPU, with the normalisation it was trained with."""

    network: nn.Module
    normalise: Normalise
    classes: int

    @torch.no_grad()
    def ask(self, group: ImageGroup, health: Health | None = None) -> Answer:
        """Return the answer on every image of ``group``; add solver statistics to ``health``."""
        images = self.normalise(group.images)
        if isinstance(self.network, AdaptedModel):
            logits, report = self.network(images, return_report=True)
            for site, found in report.items() if health is not None else ():
                assert health is not None
                health.setdefault(site, SiteHealth()).add(found)
        else:
            logits = self.network(images)
        return self._judge(logits.float(), group)

    def _judge(self, logits: Tensor, group: ImageGroup) -> Answer:
        if group.masks is not None:
            labels = logits.argmax(1)
            overlap = image_iou(labels, group.masks, self.classes, ignore_index=IGNORED)
            counted = overlap[~overlap.isnan()]
            change = float(counted.std(correction=0)) if len(counted) > 1 else float("nan")
            return Answer(change, labels, overlap.tolist())
        answers = logits.softmax(1)
        scores, labels = answers.max(1)
        kept = group.reference
        others = torch.cat((answers[:kept], answers[kept + 1 :]))
        change = float(invariance_error(answers[kept : kept + 1], others[None])) if len(others) else float("nan")
        return Answer(change, labels, scores.tolist())

    @torch.no_grad()
    def probabilities(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the probability of each image's label, ``(B,)``, for images ``(B, 1 or 3, H, W)`` in [0,1]."""
        answers = self.network(self.normalise(images)).float().softmax(1)
        return answers.gather(1, labels[:, None])[:, 0]

    @torch.no_grad()
    def maps(self, images: Tensor) -> dict[str, Map]:
        """Return the map of each site for images ``(B, 1 or 3, H, W)`` in [0,1]; empty without canonicalizers."""
        pixels = self.normalise(images)
        if isinstance(self.network, AdaptedModel):
            report: dict[str, Any] = self.network(pixels, return_report=True)[1]
            return {site: report[site].map.detach() for site in self.network.canonicalizers if site in report}
        if isinstance(self.network, DiscreteCanonicalizer):
            return {INPUT: self.network.choose(pixels)}
        return {}


def method_of(model: nn.Module) -> str | None:
    """Return the method of a model's canonicalizers; ``None`` for a model without any."""
    if not isinstance(model, AdaptedModel):
        return None
    network = model.dec_config.network
    if not isinstance(network, SizeNetwork):
        return "DEC"
    return PHOTOGRAPHS if network.trunk is not None else "size equilibrium"


def open_model(run: FinishedRun) -> TrainedModel:
    """Load the model of ``run``; raise ``CheckpointError`` if its weights are missing."""
    return TrainedModel(run.load_model(), run.normalise, run.classes)


def measure_changes(model: TrainedModel, groups: Iterable[ImageGroup]) -> tuple[list[float], Health]:
    """Return how much the answer changes within each group, and solver statistics over all images."""
    health: Health = {}
    return [model.ask(group, health).change for group in groups], health
