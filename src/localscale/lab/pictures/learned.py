"""What a canonicalizer learned: images under the maps it finds, and canonical forms (paper, Fig. learned_warp)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from localscale.adaptation import AdaptedModel
from localscale.canonicalizer import INPUT
from localscale.errors import CheckpointError, ShapeError
from localscale.lab.pictures.files import BLUE, new_figure
from localscale.lab.runs import Run
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.training import load_run
from localscale.lab.training.models import make_task
from localscale.maps.base import Map
from localscale.warp import unscale

__all__ = ["draw_learned", "learned_maps"]

LINES, POINTS = 11, 100
CELL = 1.1  # inches


def draw_learned(images: Tensor, m: Map, captions: list[str] | None = None) -> Any:
    """A matplotlib figure: each image ``(N, 1 or 3, H, W)`` in [0,1] under its map, its canonical form below.

    The grid shows where an even grid of the canonical form lies in the image: S⁻¹(I; l)(p) = I(l(p)).

    >>> len(draw_learned(torch.rand(3, 1, 16, 16), localscale.random_map(3)).axes)
    6
    """
    if images.dim() != 4 or m.batch != len(images):
        raise ShapeError(
            f"images have shape {tuple(images.shape)} and there are {m.batch} maps; expected (N, channels, H, W) and N"
        )
    count, _, height, width = images.shape
    figure, axes = new_figure(2, count, width=CELL * count + 0.3, height=2 * CELL + 0.3)
    pictures = torch.cat((images, unscale(images, m))).expand(-1, 3, -1, -1).clamp(0, 1).movedim(1, -1)
    even = torch.linspace(0, 1, POINTS, dtype=m.dtype)
    for line in torch.linspace(0, 1, LINES, dtype=m.dtype):
        for pair in ((even, line.expand(POINTS)), (line.expand(POINTS), even)):
            x, y = m(torch.stack(pair, -1)[None].expand(count, -1, -1)).unbind(-1)
            for axis, across, down in zip(axes[0], x, y, strict=True):
                axis.plot(across * (width - 1), down * (height - 1), color=BLUE, linewidth=0.5)
    for axis, picture in zip(axes.flat, pictures, strict=True):
        axis.imshow(picture.numpy())
        axis.set_xticks([])
        axis.set_yticks([])
    for row, name in zip(axes, ("image and map", "canonical form"), strict=True):
        row[0].set_ylabel(name, fontsize=7)
    for axis, caption in zip(axes[0], captions or (), strict=False):
        axis.set_title(caption, fontsize=7)
    return figure


def learned_maps(folder: Path, *, numbers: int, sizes: int, data: Path | None = None) -> tuple[Tensor, Map, list[str]]:
    """Test images of a run on MNIST, ``numbers`` of them at ``sizes`` draws of their digits' sizes, and their maps.

    ``data`` is the folder with MNIST, where it is not where the run had it.
    """
    recipe = Run(folder).recipe()
    if not isinstance(recipe.data, MNISTData):
        raise CheckpointError(f"the run in {folder} is not on MNIST; localscale report shows what others learned")
    model = load_run(folder)
    if not isinstance(model, AdaptedModel) or INPUT not in model.canonicalizers:
        raise CheckpointError(f"the run in {folder} has no canonicalizer at the image; expected a run of a dec row")
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, root=data))
    task = make_task(recipe)
    draw = task.test.renderer("cpu")
    index = torch.arange(numbers)
    drawn = [draw(index, variant) for variant in range(sizes)]
    images = torch.stack([image for image, _ in drawn], dim=1).flatten(0, 1)
    labels = torch.stack([label for _, label in drawn], dim=1).flatten()
    with torch.no_grad():
        _, report = model(task.normalise(images), return_report=True)
    return images, report[INPUT].map, [f"{label:03d}" for label in labels.tolist()]
