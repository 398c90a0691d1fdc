"""Augmentation moves labels exactly as it moves their images."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import reference
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from tiny_objects import CLASSES, tiny, write_both
from torch import Tensor, nn

from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.methods import RandomScaling
from localscale.lab.randomness import Draws
from localscale.lab.tasks.objects import IGNORED, ObjectsTask, pixel_cross_entropy
from localscale.lab.training.loop import Loop
from localscale.maps import FAMILIES
from localscale.warp import unscale

HEIGHT, WIDTH = 19, 23
STRONG = RandomScaling(strength=2.0, knots=4)
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def draws(batch: int = 4) -> Draws:
    return Draws(5, torch.arange(batch))


def numbered(batch: int = 4) -> tuple[Tensor, Tensor]:
    """Images whose channels are row, column and label, and labels that are different at every pixel."""
    row, column = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    labels = row * WIDTH + column
    return torch.stack((row, column, labels)).float().expand(batch, -1, -1, -1), labels.expand(batch, -1, -1)


# Scaling images with labels


@EACH_FAMILY
def test_labels_are_the_nearest_pixels_of_their_image(family: str):
    scaling, (images, labels) = dataclasses.replace(STRONG, family=family), numbered()
    _, moved = scaling.both(images, labels, draws())
    expected = unscale(images, scaling.maps(draws()), mode="nearest")[:, 2]
    assert torch.equal(moved.float(), expected)
    assert (moved != labels).float().mean() > 0.5


@EACH_FAMILY
def test_an_image_and_its_labels_are_read_at_the_same_place(family: str):
    """The image's channels hold row and column; after scaling, rounding them gives the pixel of the label."""
    scaling, (images, labels) = dataclasses.replace(STRONG, family=family), numbered()
    scaled, moved = scaling.both(images, labels, draws())
    assert torch.equal(scaled, scaling(images, draws()))
    row, column = scaled[:, 0], scaled[:, 1]
    apart = torch.stack((row - row.round(), column - column.round())).abs().amax(0)
    clear = apart < 0.499  # halfway between pixels, rounding may go either way
    assert clear.float().mean() > 0.98
    assert torch.equal(moved[clear], (row.round() * WIDTH + column.round()).long()[clear])


def test_labels_are_where_a_slow_oracle_finds_them():
    images, labels = numbered(2)
    _, moved = STRONG.both(images, labels, draws(2))
    control = STRONG.maps(draws(2)).control_points.double().numpy()
    compared = 0
    for n, i, j in itertools.product(range(2), range(HEIGHT), range(WIDTH)):
        point = torch.tensor([[j / (WIDTH - 1), i / (HEIGHT - 1)]], dtype=torch.float64)
        ((x, y),) = reference.evaluate(control[n], point.numpy()) * (WIDTH - 1, HEIGHT - 1)
        if max(abs(x - round(x)), abs(y - round(y))) < 0.499:
            assert moved[n, i, j] == round(y) * WIDTH + round(x)
            compared += 1
    assert compared > 0.98 * 2 * HEIGHT * WIDTH


@pytest.mark.parametrize("scaling", [RandomScaling(probability=0.0), RandomScaling(strength=0.0)])
def test_without_scaling_both_stay_bitwise(scaling: RandomScaling):
    images, labels = numbered()
    scaled, moved = scaling.both(images, labels, draws())
    assert torch.equal(scaled, images)
    assert torch.equal(moved, labels)


def test_images_that_are_not_drawn_stay_bitwise():
    images, labels = numbered(12)
    scaled, moved = dataclasses.replace(STRONG, probability=0.5).both(images, labels, draws(12))
    still = (scaled == images).flatten(1).all(1)
    assert 2 < int(still.sum()) < 10
    assert torch.equal(still, (moved == labels).flatten(1).all(1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_labels_keep_their_type_and_never_become_new_ones(dtype: torch.dtype):
    images, labels = numbered()
    few = torch.where(labels % 7 == 0, 100, labels % 3).to(dtype)
    _, moved = STRONG.both(images, few, draws())
    assert moved.dtype == dtype
    assert set(moved.unique().tolist()) == {0, 1, 2, 100}


def test_ignored_pixels_move_and_stay_ignored():
    images, labels = numbered()
    holes = torch.where(labels % 5 == 0, IGNORED, labels)
    moved, expected = STRONG.both(images, holes, draws())[1], STRONG.both(images, labels, draws())[1]
    assert torch.equal(moved, torch.where(expected % 5 == 0, IGNORED, expected))


# The training loop


@pytest.fixture(scope="module")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_both(tmp_path_factory.mktemp("discs"))


def test_a_step_is_judged_by_the_scaled_labels_of_the_scaled_images(discs: Path):
    """One step of the loop with a 1 × 1 convolution, computed by hand."""
    recipe = tiny(discs, augmentation=STRONG)
    task = ObjectsTask(recipe.data, Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), 4)
    torch.manual_seed(0)
    model = nn.Conv2d(3, CLASSES, 1)
    AcceleratorState._reset_state()
    loop = Loop(recipe, model, task, Accelerator(cpu=True))
    images, labels = task.train.take(torch.tensor([3, 1, 4, 1]))
    samples = torch.tensor([40, 41, 42, 43])
    scaled, moved = STRONG.both(images, labels, Draws(recipe.seed, samples))
    with torch.no_grad():
        expected, unmoved = (
            pixel_cross_entropy(model(task.normalise(scaled)), truth, background_weight=0.1)
            for truth in (moved, labels)
        )
    found = loop.one_step(0, samples, (images, labels))["loss"]
    assert found == expected
    assert abs(found - unmoved) > 1e-3


def test_smoothing_reaches_the_pixels(discs: Path):
    task = ObjectsTask(tiny(discs).data, Normalise((0.0,) * 3, (1.0,) * 3), 4)
    logits, labels = torch.randn(2, CLASSES, 8, 8), torch.randint(0, CLASSES, (2, 8, 8))
    for smoothing in (0.0, 0.3):
        expected = pixel_cross_entropy(logits, labels, background_weight=0.1, label_smoothing=smoothing)
        assert task.criterion(smoothing)(logits, labels) == expected
