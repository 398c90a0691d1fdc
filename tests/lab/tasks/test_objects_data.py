"""The objects task reads every pixel of a dataset, and its errors name whatever does not fit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_objects import CLASSES, COLOURS, SIZE, Spoil, tiny, write_both, write_objects

from localscale.errors import ConfigError, DataError
from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.data.objects import LocallyScaledObjects
from localscale.lab.tasks.objects import IGNORED, ObjectsTask, Pixels
from localscale.lab.tasks.task import Indices

PLAIN = Normalise((0.0,) * 3, (1.0,) * 3)


@pytest.fixture(scope="module")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_both(tmp_path_factory.mktemp("discs"))


def task_of(folder: Path, **changes) -> ObjectsTask:
    recipe = tiny(folder, **changes)
    recipe.check()
    return recipe.data.task(PLAIN, 4)


def read(root: Path, limit: int | None = None, **changes) -> Pixels:
    return Pixels.read(LocallyScaledObjects(root), tiny(root, **changes).data, limit)


# Reading


def test_every_pixel_label_and_group_is_kept(discs: Path):
    pixels, dataset = read(discs / "test"), LocallyScaledObjects(discs / "test")
    assert (pixels.images.dtype, pixels.labels.dtype) == (torch.uint8, torch.int16)
    for n, item in enumerate(dataset):
        assert np.array_equal(pixels.images[n].movedim(0, -1).numpy(), np.asarray(item.image))
        assert torch.equal(pixels.labels[n].long(), item.classes)
    assert pixels.groups.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert pixels.labels.unique().tolist() == list(range(CLASSES))


def test_images_are_taken_in_the_unit_interval_with_their_own_labels(discs: Path):
    pixels = read(discs / "train")
    images, labels = pixels.take(torch.tensor([5, 0]))
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert torch.equal(images[1], pixels.images[0] / 255)
    for number, colour in enumerate(COLOURS.values(), start=1):
        there = labels == number
        assert there.any()
        torch.testing.assert_close(images.movedim(1, -1)[there], (torch.tensor(colour) / 255).expand(there.sum(), 3))


def test_shards_hold_what_folders_hold(tmp_path: Path):
    folder, shards = (read(write_objects(tmp_path / form, form=form)) for form in ("folder", "shards"))
    assert torch.equal(folder.images, shards.images)
    assert torch.equal(folder.labels, shards.labels)


def test_limits_take_the_first_images(discs: Path):
    task, whole = task_of(discs, train_limit=5, test_limit=4), task_of(discs, train_limit=10_000)
    assert (task.train_count, len(task.test.images), whole.train_count) == (5, 4, 24)
    assert torch.equal(task.train.images, whole.train.images[:5])
    assert torch.equal(task.test.groups, torch.tensor([0, 0, 0, 1]))


def test_the_task_says_what_it_is(discs: Path):
    task = task_of(discs)
    assert (task.classes, task.dense, task.train_count) == (CLASSES, True, 24)
    assert task.describe().startswith(
        "24 training images; 12 test images of 4 scenes; 4 classes, background among them; EquE with RandomScaling("
    )


def test_a_step_gets_the_images_it_asks_for(discs: Path):
    task, wanted = task_of(discs), Indices(0, torch.tensor([7, 7, 2]), torch.arange(3))
    ((indices, loaded),) = task.load([wanted], seed=0)
    images, labels = task.images(indices, loaded, torch.device("cpu"))
    assert torch.equal(images, task.train.images[[7, 7, 2]] / 255)
    assert torch.equal(labels, task.train.labels[[7, 7, 2]].long())


# Labels to leave out


def with_a_hole(value: int) -> Spoil:
    """Return a function that sets the labels of the first three rows to ``value``, which is not a class."""

    def spoil(pixels: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return pixels, np.where(np.arange(SIZE)[:, None] < 3, value, classes)

    return spoil


@pytest.mark.parametrize("value", [CLASSES, 255, 65535])
def test_a_label_outside_the_classes_is_refused_or_left_out(value: int, tmp_path: Path):
    root = write_objects(tmp_path / "made", spoil={1: with_a_hole(value)})
    with pytest.raises(DataError, match=rf"sample 000001_00 in .*: label {value} is outside .* --data.ignore-index"):
        read(root)
    assert read(root, limit=3).labels.max() < CLASSES, "images beyond the limit are not looked at"
    labels = read(root, ignore_index=value).labels
    assert (labels[3:6, :3] == IGNORED).all()
    labels[3:6, :3] = 0
    assert labels.unique().tolist() == list(range(CLASSES)), "and nothing else"


def test_another_label_is_still_refused_beside_the_one_left_out(tmp_path: Path):
    root = write_objects(tmp_path / "made", spoil={0: with_a_hole(255), 2: with_a_hole(7)})
    with pytest.raises(DataError, match=r"sample 000002_00 .* label 7 is outside"):
        read(root, ignore_index=255)


def test_a_class_can_be_left_out(tmp_path: Path):
    labels, plain = (read(write_objects(tmp_path / "made"), ignore_index=which).labels for which in (2, None))
    assert torch.equal(labels == IGNORED, plain == 2)


# Datasets that do not fit


def test_a_mask_of_another_size(tmp_path: Path):
    root = write_objects(tmp_path / "made", spoil={2: lambda pixels, classes: (pixels, classes[:, :-1])})
    with pytest.raises(DataError) as error:
        read(root)
    assert str(error.value) == (
        f"sample 000002_00 in {root}: the mask is 32×31 and the image 32×32; make the dataset again"
    )


def test_images_of_another_size(discs: Path, tmp_path: Path):
    with pytest.raises(DataError) as error:
        task_of(discs, image_size=64)
    assert str(error.value) == (
        f"sample 000000_00 in {discs / 'train'}: the image is 32×32, expected 64×64; "
        "add --data.image-size 32, or make the dataset with --image-size 64"
    )
    root = write_objects(tmp_path / "odd", spoil={1: lambda pixels, classes: (pixels[:16, :16], classes[:16, :16])})
    with pytest.raises(DataError, match=r"000001_00 in .* the image is 16×16, expected 32×32"):
        read(root)


@pytest.mark.parametrize("name", ["train_root", "test_root"])
def test_a_root_that_is_not_given(name: str, discs: Path):
    with pytest.raises(ConfigError) as error:
        task_of(discs, **{name: None})
    assert str(error.value) == (
        f"--data.{name.replace('_', '-')} is needed: make it with localscale data objects --out FOLDER"
    )


def test_a_dataset_without_images(discs: Path, tmp_path: Path):
    empty = write_objects(tmp_path / "empty", groups=1, spoil={0: lambda pixels, classes: "no scene found"})
    with pytest.raises(DataError) as error:
        task_of(discs, train_root=empty)
    assert str(error.value) == f"{empty} has no images; make some with localscale data objects"


@pytest.mark.parametrize(
    ("names", "message"),
    [(("blue", "green", "yellow"), "4 classes.* 4, which differ in red"), (("blue", "green"), "4 .* 3, .* in red")],
)
def test_roots_of_different_classes(names: tuple[str, ...], message: str, discs: Path, tmp_path: Path):
    other = write_objects(tmp_path / "other", names=names)
    with pytest.raises(DataError, match=f"has {message}; generate both from the same meshes$"):
        task_of(discs, test_root=other)


def test_roots_of_the_same_classes_in_another_order(discs: Path, tmp_path: Path):
    other = write_objects(tmp_path / "other", names=tuple(reversed(COLOURS)))
    with pytest.raises(DataError, match=r"which differ in their order; generate both from the same meshes$"):
        task_of(discs, test_root=other)


@pytest.mark.parametrize("change", [{"train_limit": 0}, {"test_limit": 0}, {"variants": 0}, {"image_size": -1}])
def test_numbers_below_one(change: dict, discs: Path):
    with pytest.raises(ConfigError, match="expected at least 1"):
        task_of(discs, **change)


@pytest.mark.parametrize("weight", [-0.1, float("inf"), float("nan")])
def test_a_background_weight_that_is_none(weight: float, discs: Path):
    with pytest.raises(ConfigError, match=f"--data.background-weight is {weight}"):
        task_of(discs, background_weight=weight)
