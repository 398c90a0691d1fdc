"""Metrics on test images, compared with known values and with the functions applied to the whole dataset."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_objects import CLASSES, COLOURS, SIZE, tiny, write_both, write_objects
from torch import Tensor

from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.randomness import Draws
from localscale.lab.tasks.mask_metrics import UNIFORM
from localscale.lab.tasks.objects import IGNORED, ObjectsTask
from localscale.lab.tasks.task import Predict, Shard
from localscale.metrics import VARIANTS, equivariance_error, equivariance_floor, image_iou, mean_iou
from localscale.warp import scale, unscale

PLAIN = Normalise((0.0,) * 3, (1.0,) * 3)
PALETTE = torch.tensor([(35, 35, 35), *COLOURS.values()]) / 255


@pytest.fixture(scope="module")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_both(tmp_path_factory.mktemp("discs"))


def task_of(folder: Path, batch_size: int = 5, **changes) -> ObjectsTask:
    return ObjectsTask(tiny(folder, **changes).data, PLAIN, batch_size)


def measured(task: ObjectsTask, predict: Predict) -> dict[str, Any]:
    return task.evaluate(predict, torch.device("cpu"), Shard(), progress=False)


def by_colour(images: Tensor) -> Tensor:
    """Return the scores of a perfect, pointwise segmenter: the class with the nearest colour wins."""
    return -100 * (images.unsqueeze(1) - PALETTE.view(1, CLASSES, 3, 1, 1)).square().sum(2)


def always(label: int) -> Predict:
    return lambda images: 9.0 * F.one_hot(torch.full_like(images[:, 0], label).long(), CLASSES).movedim(-1, 1)


def in_patches(images: Tensor) -> Tensor:
    """Return the scores of a coarse segmenter, one answer per patch of 8 × 8 pixels, so it is not equivariant."""
    return F.interpolate(F.avg_pool2d(by_colour(images), 8), scale_factor=8)


def by_counting(predicted: Tensor, labels: Tensor) -> float:
    """Return the mean IoU over classes, with the pixels of all images counted together."""
    terms = []
    for c in range(CLASSES):
        said, there = (predicted == c) & (labels != IGNORED), labels == c
        if (said | there).any():
            terms.append(int((said & there).sum()) / int((said | there).sum()))
    return sum(terms) / len(terms)


def test_a_perfect_segmenter_has_the_error_of_resampling(discs: Path):
    found = measured(task_of(discs), by_colour)
    assert (found["images"], found["groups"], found["variants"]) == (12, 4, 2)
    assert found["mean_iou"] == 1
    assert found["group_deviation"] < 1e-6
    for variant in VARIANTS:
        assert found["equivariance_floor"][variant] > 0.01
        assert 0.3 < found["equivariance_error"][variant] / found["equivariance_floor"][variant] < 3


def test_an_answer_that_never_changes_is_equivariant_and_worthless(discs: Path):
    task = task_of(discs)
    found = measured(task, always(0))
    background = (task.test.labels == 0).float().mean().item()
    assert found["mean_iou"] == pytest.approx(background / CLASSES, rel=1e-5)
    assert max(found["equivariance_error"].values()) < 1e-6
    assert found["group_deviation"] == 0
    assert found["equivariance_floor"] == measured(task, by_colour)["equivariance_floor"], "the truth's alone"


def test_the_numbers_are_those_of_the_functions_on_everything(discs: Path):
    task = task_of(discs, data_seed=3)
    found = measured(task, in_patches)
    images, labels = task.test.take(torch.arange(12))
    answer = in_patches(images)
    assert found["mean_iou"] == pytest.approx(by_counting(answer.argmax(1), labels), rel=1e-6)
    each = image_iou(answer.argmax(1), labels, CLASSES).double().view(4, 3)
    assert found["group_deviation"] == pytest.approx(each.std(1, correction=0).mean().item(), rel=1e-5)
    assert found["group_deviation"] > 0.01
    for variant in VARIANTS:
        errors, floors = [], []
        for number in range(2):
            u = task.data.scaling.maps(Draws(3, torch.arange(12)), f"evaluation/{number}")
            scaled = in_patches(unscale(images, u)).softmax(1)
            errors.append(equivariance_error(answer.softmax(1), scaled, u.inverse(), variant=variant).item())
            floors.append(equivariance_floor(labels, u.inverse(), CLASSES, variant=variant).item())
        assert found["equivariance_error"][variant] == pytest.approx(sum(errors) / 2, rel=1e-5)
        assert found["equivariance_floor"][variant] == pytest.approx(sum(floors) / 2, rel=1e-5)
        assert errors[0] != errors[1]


def test_equivariance_over_uniform_maps_is_that_of_the_function(discs: Path):
    """Φ itself is drawn, its increments uniform on the simplex; the second draw differs from the first."""
    found = measured(task_of(discs, uniform_variants=2), in_patches)
    images, labels = task_of(discs).test.take(torch.arange(12))
    answer = in_patches(images)
    maps = [UNIFORM.maps(Draws(0, torch.arange(12)), f"uniform/{number}") for number in range(2)]
    errors = [equivariance_error(answer.softmax(1), in_patches(scale(images, m)).softmax(1), m) for m in maps]
    floors = [equivariance_floor(labels, m, CLASSES) for m in maps]
    uniform = found["uniform"]
    assert uniform["variants"] == 2
    assert uniform["equivariance_error"]["squared"] == pytest.approx(sum(map(float, errors)) / 2, rel=1e-5)
    assert uniform["equivariance_floor"]["squared"] == pytest.approx(sum(map(float, floors)) / 2, rel=1e-5)
    assert errors[0] != errors[1]
    assert uniform["displacement"] > 2 * found["displacement"] > 0.04
    assert "uniform" not in measured(task_of(discs, uniform_variants=0), in_patches)


def test_mean_iou_without_background_leaves_one_class_out(discs: Path):
    task = task_of(discs)
    images, labels = task.test.take(torch.arange(12))
    metric = mean_iou(CLASSES, background=0, ignore_index=IGNORED)
    metric.update(in_patches(images), labels)
    found = measured(task, in_patches)
    assert found["mean_iou_objects"] == pytest.approx(float(metric.compute()))
    assert found["mean_iou_objects"] != pytest.approx(found["mean_iou"], abs=1e-3)


def test_batches_do_not_matter_and_seeds_do(discs: Path):
    whole, small, other = (
        measured(task_of(discs, size, data_seed=seed), in_patches) for size, seed in ((12, 0), (1, 0), (12, 1))
    )
    assert small["mean_iou"] == whole["mean_iou"] == other["mean_iou"]
    assert small["equivariance_error"] == pytest.approx(whole["equivariance_error"], rel=1e-5)
    assert other["equivariance_error"] != pytest.approx(whole["equivariance_error"], rel=1e-3)


def test_answers_are_asked_for_of_normalised_images(discs: Path):
    normalise = Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    task = ObjectsTask(tiny(discs).data, normalise, 5)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (normalise.mean, normalise.std))
    found = measured(task, lambda images: by_colour(images * std + mean))
    assert found["mean_iou"] == 1
    expected = measured(task_of(discs), by_colour)["equivariance_error"]
    assert found["equivariance_error"] == pytest.approx(expected, rel=1e-4)


def test_ignored_pixels_are_not_judged(tmp_path: Path):
    """A segmenter that is wrong at ignored pixels only has a perfect score."""
    write_objects(tmp_path / "train")
    write_objects(tmp_path / "test", seed=1, spoil={1: lambda pixels, classes: (255 - pixels, 0 * classes + 255)})
    found = measured(task_of(tmp_path, ignore_index=255), by_colour)
    assert found["mean_iou"] == 1
    assert math.isfinite(found["equivariance_floor"]["relative"])
    assert found["group_deviation"] < 1e-6, "a scene whose pixels are all ignored is left out"


def test_images_without_objects_are_judged_by_their_background(tmp_path: Path):
    write_objects(tmp_path / "train")
    write_objects(tmp_path / "test", groups=2, spoil={0: lambda pixels, classes: (0 * pixels, 0 * classes)})
    task = task_of(tmp_path)
    found, lost = measured(task, by_colour), measured(task, always(2))
    assert (found["mean_iou"], found["group_deviation"]) == (1, 0)
    assert lost["mean_iou"] == pytest.approx((task.test.labels == 2).float().mean().item() / 3, rel=1e-5)
    one = measured(task_of(tmp_path, test_limit=2), by_colour)
    assert one["group_deviation"] is None, "no scene that shows an object, and JSON has no NaN"
    assert one["mean_iou"] == 1


def test_processes_take_every_nth_image(discs: Path):
    task, seen = task_of(discs, uniform_variants=0), list[Tensor]()

    def watching(images: Tensor) -> Tensor:
        seen.append(images)
        return always(0)(images)

    task.evaluate(watching, torch.device("cpu"), Shard(1, 5), progress=False)
    images, _ = task.test.take(torch.tensor([1, 6, 11]))
    assert [tuple(batch.shape) for batch in seen] == [(3, 3, SIZE, SIZE)] * 3
    assert torch.equal(seen[0], images)
