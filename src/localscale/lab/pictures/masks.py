"""Images of one scene at several scales, with the true masks and those of trained models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from localscale.errors import CheckpointError, ConfigError, ShapeError
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.palette import BLUE, GREEN, ORANGE, PURPLE, YELLOW, rgb
from localscale.lab.runs.answers import open_model
from localscale.lab.runs.finished import read_run
from localscale.lab.runs.groups import open_groups

__all__ = ["coloured", "draw_masks", "draw_scene"]

OBJECTS = tuple(map(rgb, (BLUE, ORANGE, GREEN, YELLOW)))  # the classes of the scene
STRANGE = rgb(PURPLE)  # classes that the scene does not have
CELL = 1.15  # inches


def draw_scene(runs: dict[str, Path], data: Path, number: int) -> Any:
    """Return a figure of scene ``number`` of the dataset in ``data`` with the masks of runs, folders by name."""
    answers, captions = {}, {}
    for name, folder in runs.items():
        run = read_run(folder).with_data(data)
        if not run.recipe.data.dense:
            raise CheckpointError(f"the run in {folder} classifies; expected a run of objects-…, which segments")
        groups = open_groups(run, sizes=None)
        if not 0 <= number < groups.count:
            raise ConfigError(f"--scene {number}: {data} has {groups.count} scenes, 0 to {groups.count - 1}")
        scene = groups.read(number)
        answer = open_model(run).ask(scene)
        answers[name], captions[name] = answer.labels, [f"IoU {100 * score:.0f} %" for score in answer.scores]
    assert scene.masks is not None
    return draw_masks(scene.images, scene.masks, answers, captions | {"image": scene.captions})


def draw_masks(
    images: Tensor, truth: Tensor, answers: dict[str, Tensor], captions: dict[str, list[str]] | None = None
) -> Any:
    """Return a figure with one column per image of a scene: a row of images, the true masks, a row for each model.

    Args:
        images: ``(S, 3, H, W)`` in [0,1].
        truth: class numbers ``(S, H, W)``; 0 is background.
        answers: class numbers ``(S, H, W)`` by the model's name.
        captions: one caption per image of a row, by the row's name: ``"image"``, ``"truth"`` or a model's.

    >>> images, truth = torch.rand(2, 3, 16, 16), torch.randint(0, 3, (2, 16, 16))
    >>> len(draw_masks(images, truth, {"Aug": truth, "DEC": truth}).axes)
    8
    """
    for name, labels in {"truth": truth, **answers}.items():
        if labels.shape != (len(images), *images.shape[2:]):
            raise ShapeError(
                f"{name} has shape {tuple(labels.shape)} and the images {tuple(images.shape)}; expected a label for "
                "every pixel"
            )
    shown = [int(label) for label in truth.unique() if label > 0]
    rows: dict[str, Tensor | None] = {"image": None, "truth": truth, **answers}
    figure, axes = new_figure(len(rows), len(images), width=CELL * len(images) + 0.3, height=(CELL + 0.12) * len(rows))
    for line, (name, mask) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(name, fontsize=7)
        for column, axis in enumerate(line):
            picture = images[column] if mask is None else coloured(images[column], mask[column], shown)
            axis.imshow(np.clip(picture.movedim(0, -1).cpu().numpy(), 0, 1))
            axis.set(xticks=[], yticks=[])
            for side in axis.spines.values():
                side.set_visible(False)
            if captions and name in captions:
                axis.set_xlabel(captions[name][column], fontsize=6, labelpad=2)
    return figure


def coloured(image: Tensor, labels: Tensor, shown: list[int]) -> Tensor:
    """Return the image in faint grey with every object pixel in the colour of its class.

    Classes in ``shown`` have a colour of their own; all other classes share one.
    """
    grey = image.mean(dim=0, keepdim=True).expand(3, -1, -1)
    picture = 0.75 + 0.25 * grey
    colours = {label: OBJECTS[k % len(OBJECTS)] for k, label in enumerate(shown)}
    for label in labels.unique().tolist():
        if label > 0:
            colour = torch.tensor(colours.get(label, STRANGE)).view(3, 1, 1)
            picture = torch.where(labels == label, 0.85 * colour + 0.15 * grey, picture)
    return picture
