"""A scene at several scales: the images, what is true, and what models say."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from localscale.errors import ShapeError
from localscale.lab.pictures.files import new_figure

__all__ = ["draw_masks"]

# Blue and orange for the scene's objects, reddish purple for anything else: told apart by all eyes.
OBJECTS = ((0.0, 0.447, 0.698), (0.902, 0.624, 0.0), (0.0, 0.62, 0.451), (0.941, 0.894, 0.259))
STRANGE = (0.8, 0.475, 0.655)
CELL = 1.15  # inches


def draw_masks(
    images: Tensor, truth: Tensor, answers: dict[str, Tensor], captions: dict[str, list[str]] | None = None
) -> Any:
    """A matplotlib figure: one column per image of a scene, a row of images, one of truth, one for each model.

    Args:
        images: ``(S, 3, H, W)`` in [0,1].
        truth: ``(S, H, W)``, 0 is background.
        answers: label maps ``(S, H, W)`` by the model's name.
        captions: a line under each image of a row, by the row's name (``"image"``, ``"truth"``, or a model's).

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
            axis.set_xticks([])
            axis.set_yticks([])
            for side in axis.spines.values():
                side.set_visible(False)
            if captions and name in captions:
                axis.set_xlabel(captions[name][column], fontsize=6, labelpad=2)
    return figure


def coloured(image: Tensor, labels: Tensor, shown: list[int]) -> Tensor:
    """The image in faint grey, every pixel that is no background in its class's colour."""
    grey = image.mean(dim=0, keepdim=True).expand(3, -1, -1)
    picture = 0.75 + 0.25 * grey
    colours = {label: OBJECTS[k % len(OBJECTS)] for k, label in enumerate(shown)}
    for label in labels.unique().tolist():
        if label > 0:
            colour = torch.tensor(colours.get(label, STRANGE)).view(3, 1, 1)
            picture = torch.where(labels == label, 0.85 * colour + 0.15 * grey, picture)
    return picture
