"""Learned maps over their images, and the canonical forms they give (paper, Fig. learned_warp)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from localscale.adaptation import AdaptedModel
from localscale.canonicalizer import INPUT
from localscale.errors import CheckpointError, ConfigError, ShapeError
from localscale.lab.pictures.files import new_figure
from localscale.lab.pictures.grids import draw_grid, warp_grid
from localscale.lab.runs.finished import FinishedRun, read_run
from localscale.lab.runs.groups import open_groups
from localscale.maps.base import Map
from localscale.warp import unscale

__all__ = ["draw_canonical", "draw_learned", "learned_maps", "open_canonicalizer"]

CELL = 1.1  # inches


def draw_learned(images: Tensor, m: Map, captions: list[str] | None = None) -> Any:
    """Return a figure with each image ``(N, 1 or 3, H, W)`` in [0,1] under its map, and its canonical form below.

    The grid shows the positions at which the canonical form samples the image: S⁻¹(I; l)(p) = I(l(p)).

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
    for axis, grid in zip(axes[0], warp_grid(m), strict=True):
        draw_grid(axis, grid, (0, width - 1, height - 1, 0), width=0.5)
    for axis, picture in zip(axes.flat, pictures, strict=True):
        axis.imshow(picture.numpy())
        axis.set(xticks=[], yticks=[])
    for row, name in zip(axes, ("image and map", "canonical form"), strict=True):
        row[0].set_ylabel(name, fontsize=7)
    for axis, caption in zip(axes[0], captions or (), strict=False):
        axis.set_title(caption, fontsize=7)
    return figure


def draw_canonical(images: Tensor, m: Map, sizes: int) -> Any:
    """Return a figure with a row of images and a row of their canonical forms for each of ``sizes`` draws of sizes.

    ``images`` ``(N · sizes, 1 or 3, H, W)`` in [0,1] hold the draws of one image next to each other, as
    ``learned_maps`` returns them. If the canonicalizer works, all rows of canonical forms look alike.

    >>> len(draw_canonical(torch.rand(6, 1, 16, 16), localscale.random_map(6), sizes=2).axes)
    12
    """
    if images.dim() != 4 or m.batch != len(images) or len(images) % sizes:
        raise ShapeError(
            f"images have shape {tuple(images.shape)} and there are {m.batch} maps; "
            f"expected a multiple of {sizes} of both"
        )
    columns = len(images) // sizes
    pictures = torch.stack((images, unscale(images, m))).expand(-1, -1, 3, -1, -1).clamp(0, 1)
    pictures = pictures.unflatten(1, (columns, sizes)).permute(2, 0, 1, 4, 5, 3).flatten(0, 1)
    figure, axes = new_figure(2 * sizes, columns, width=CELL * columns + 0.3, height=2 * sizes * CELL + 0.1)
    for row, line in zip(axes, pictures, strict=True):
        for axis, picture in zip(row, line, strict=True):
            axis.imshow(picture.numpy())
            axis.set(xticks=[], yticks=[])
    for number, row in enumerate(axes):
        row[0].set_ylabel("canonical form" if number % 2 else f"sizes {number // 2 + 1}", fontsize=7)
    return figure


def learned_maps(folder: Path, *, numbers: int, sizes: int, data: Path | None = None) -> tuple[Tensor, Map, list[str]]:
    """Return test images of a run at several sizes, their maps at the input, and the names of their classes, if any.

    Args:
        folder: a finished run with a canonicalizer at the input.
        numbers: how many test images.
        sizes: how many draws of each image's local sizes, the image itself among them.
        data: folder of the test images; ``None`` means the folder that the recipe names.
    """
    run, model = open_canonicalizer(folder, data)
    data_of_run: Any = run.recipe.data
    if hasattr(data_of_run, "variants"):  # these are drawn, so there can be more than the run was measured with
        drawn = dataclasses.replace(data_of_run, variants=max(1, sizes - 1))
        run = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, data=drawn))
    groups = open_groups(run, sizes=sizes)
    read = [groups.read(number) for number in range(min(numbers, groups.count))]
    if any(len(group.images) < sizes for group in read):
        raise ConfigError(f"--sizes is {sizes}; this run has {min(len(group.images) for group in read)} of each image")
    images = torch.cat([group.images[:sizes] for group in read])
    names = [groups.name_of(group.label) for group in read for _ in range(sizes) if group.label is not None]
    with torch.no_grad():
        _, report = model(run.normalise(images), return_report=True)
    return images, report[INPUT].map, names


def open_canonicalizer(folder: Path, data: Path | None = None) -> tuple[FinishedRun, AdaptedModel]:
    """Return the finished run in ``folder`` and its model, which needs a canonicalizer at the input."""
    run = read_run(folder).with_data(data)
    model = run.load_model()
    if not isinstance(model, AdaptedModel) or INPUT not in model.canonicalizers:
        raise CheckpointError(
            f"the run in {folder} has no canonicalizer at the input; expected a run of a sizes or dec row"
        )
    return run, model
