"""A scene of locally scaled objects, and what a trained model says about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from localscale.errors import CheckpointError, ConfigError
from localscale.lab.backbones.catalogue import normalisation, sketch_of
from localscale.lab.data.objects import LocallyScaledObjects
from localscale.lab.runs import Run
from localscale.lab.training import load_run
from localscale.metrics import image_iou

__all__ = ["Scene", "answer_scene", "read_scene"]


@dataclass(frozen=True)
class Scene:
    """The images ``(S, 3, H, W)`` in [0,1] of one scene, their labels ``(S, H, W)``, and a line about each."""

    images: Tensor
    labels: Tensor
    classes: int
    captions: list[str]


def read_scene(root: Path, number: int) -> Scene:
    """Scene ``number`` of the dataset in ``root``."""
    dataset = LocallyScaledObjects(root)
    groups = list(dataset.groups.values())
    if not 0 <= number < len(groups):
        raise ConfigError(f"scene {number} of {len(groups)} in {root}; expected 0 to {len(groups) - 1}")
    items = [dataset[position] for position in groups[number]]
    return Scene(
        torch.stack([T.to_dtype(T.pil_to_tensor(item.image), torch.float32, scale=True) for item in items]),
        torch.stack([item.classes.as_subclass(Tensor) for item in items]),
        len(dataset.classes),
        [" and ".join(f"×{scale:.2f}" for scale in item.scales.tolist()) for item in items],
    )


def answer_scene(folder: Path, scene: Scene) -> tuple[Tensor, list[str]]:
    """The label maps that the run in ``folder`` finds in a scene, and each one's IoU in words."""
    recipe, result = Run(folder).recipe(), Run(folder).result() or {}
    if not recipe.data.dense:
        raise CheckpointError(f"the run in {folder} answers with one class per image; expected a run of objects-…")
    if result.get("classes", scene.classes) != scene.classes:
        raise CheckpointError(f"the run in {folder} knows {result['classes']} classes; the data have {scene.classes}")
    model = load_run(folder)
    with torch.no_grad():
        labels = model(normalisation(sketch_of(recipe.backbone))(scene.images)).argmax(1)
    overlap = image_iou(labels, scene.labels, scene.classes)
    return labels, [f"IoU {100 * value:.0f} %" for value in overlap.tolist()]
