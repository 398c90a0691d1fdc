"""Probability of the correct class against local scale (paper, Fig. perscale)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from localscale.errors import ConfigError
from localscale.lab.data.mnist import LocallyScaledMNIST
from localscale.lab.runs.answers import open_model
from localscale.lab.runs.finished import FinishedRun, read_run
from localscale.lab.runs.groups import open_groups
from localscale.lab.tasks.mnist import MNISTData

__all__ = ["SCALES", "run_probabilities"]

SCALES = (0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0)  # of MNIST's digits; runs are trained on 0.4 to 2
BATCH = 32


def run_probabilities(
    folder: Path, *, images: int, scales: tuple[float, ...] = (), data: Path | None = None, progress: bool = False
) -> tuple[list[float], Tensor]:
    """Return the scales and the probability of the correct class at each, ``(images, scales)``.

    Args:
        folder: a finished classification run.
        images: number of test images, each tested at every scale.
        scales: sizes of the digits, for MNIST only; ImageNet has the scales that its dataset was made with.
        data: folder of the test images; ``None`` means the folder that the recipe names.
        progress: show a progress bar.
    """
    if images < 1:
        raise ConfigError(f"images is {images}; expected at least 1")
    run = read_run(folder).with_data(data)
    if run.recipe.data.dense:
        raise ConfigError(f"the run in {folder} segments; expected a run that classifies")
    bar = tqdm(total=images, desc=str(folder), unit="image", leave=False, disable=not progress)
    with bar:
        if isinstance(run.recipe.data, MNISTData):
            return _of_numbers(run, images, scales or SCALES, bar)
        if scales:
            raise ConfigError("ImageNet has the scales that its dataset was made with; leave --scales out")
        return _of_photographs(run, images, bar)


def _of_numbers(run: FinishedRun, images: int, scales: tuple[float, ...], bar: tqdm) -> tuple[list[float], Tensor]:
    data, model, digits = run.recipe.data, open_model(run), run.make_task().test.digits
    draws = [
        LocallyScaledMNIST(
            train=False,
            count=images,
            seed=data.data_seed,
            factors=(scale, scale),
            image_size=data.image_size,
            digits=digits,
        ).renderer()
        for scale in scales
    ]
    found = []
    for index in torch.arange(images).split(BATCH):
        found.append(torch.stack([model.probabilities(*draw(index)) for draw in draws], dim=1))
        bar.update(len(index))
    return list(scales), torch.cat(found)


def _of_photographs(run: FinishedRun, images: int, bar: tqdm) -> tuple[list[float], Tensor]:
    groups, model = open_groups(run, sizes=None), open_model(run)
    scales: tuple[float, ...] = ()
    found: list[Tensor] = []
    for number in range(groups.count):
        group = groups.read(number)
        assert group.label is not None
        scales = scales or group.scales
        if group.scales == scales and len(found) < images:  # large objects are missing at some scales
            labels = torch.full((len(scales),), group.label)
            found.append(model.probabilities(group.images, labels))
            bar.update()
    return list(scales), torch.stack(found)
