"""How sure finished runs are of the right class when things change size (paper, Fig. perscale)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from localscale.errors import ConfigError, DataError
from localscale.lab.data.imagenet import LocallyScaledImageNet
from localscale.lab.data.mnist import LocallyScaledMNIST
from localscale.lab.pages.report.answers import Model, open_model
from localscale.lab.runs.finished import Finished, read_finished
from localscale.lab.tasks.imagenet import ImageNetData, central_crop
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.training.models import make_task

__all__ = ["SCALES", "run_probabilities"]

SCALES = (0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0)  # of MNIST's digits; runs are trained on 0.4 to 2
AT_ONCE = 32  # images


def run_probabilities(
    folder: Path, *, images: int, scales: tuple[float, ...] = (), data: Path | None = None, progress: bool = False
) -> tuple[list[float], Tensor]:
    """The scales, and the probability that the run in ``folder`` gives the right class, ``(images, scales)``.

    Args:
        folder: a finished run that classifies.
        images: how many test images to ask about, each at every scale.
        scales: of all digits, for MNIST; ImageNet's are those that its dataset was made with.
        data: folder of the test images, where it is not the one that the recipe names.
        progress: show a bar.
    """
    if images < 1:
        raise ConfigError(f"images is {images}; expected at least 1")
    run = read_finished(folder).with_data(data)
    if run.recipe.data.dense:
        raise ConfigError(f"the run in {folder} segments; there is one right class per image in runs that classify")
    bar = tqdm(total=images, desc=str(folder), unit="image", leave=False, disable=not progress)
    with torch.no_grad(), bar:
        if isinstance(run.recipe.data, MNISTData):
            return _of_numbers(run, images, scales or SCALES, bar)
        if scales:
            raise ConfigError("the scales of ImageNet are those its dataset was made with; leave --scales out")
        return _of_photographs(run, images, bar)


def _of_numbers(run: Finished, images: int, scales: tuple[float, ...], bar: tqdm) -> tuple[list[float], Tensor]:
    data, model, digits = run.recipe.data, open_model(run), make_task(run.recipe).test.digits
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
    for index in torch.arange(images).split(AT_ONCE):
        found.append(torch.stack([_sure(model, *draw(index)) for draw in draws], dim=1))
        bar.update(len(index))
    return list(scales), torch.cat(found)


def _of_photographs(run: Finished, images: int, bar: tqdm) -> tuple[list[float], Tensor]:
    data, model = run.recipe.data, open_model(run)
    assert isinstance(data, ImageNetData)
    if data.test_root is None:
        raise ConfigError("the recipe names no data.test_root; add --data FOLDER")
    dataset = LocallyScaledImageNet(data.test_root, transform=central_crop(data))
    scales: tuple[float, ...] = ()
    found: list[Tensor] = []
    for name in dataset.groups:
        group = dataset.read_group(name)
        scales = scales or group.scales
        if group.scales == scales and len(found) < images:  # an object too large for some scales has fewer
            labels = torch.full((len(scales),), int(group.label))
            found.append(_sure(model, group.images.float() / 255, labels))
            bar.update()
    if not found:
        raise DataError(f"{data.test_root} has no images")
    return list(scales), torch.stack(found)


def _sure(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    """The probability of each image's own class."""
    answers = model.network(model.normalise(images)).float().softmax(1)
    return answers.gather(1, labels[:, None])[:, 0]
