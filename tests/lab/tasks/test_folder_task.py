"""A user's own folder: which images, what is held out, which faults are told, and metrics against a slow loop."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_folders import COLOURS, write_folder
from torch import Tensor

from localscale.errors import ConfigError, DataError
from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.data.images import read_image
from localscale.lab.methods import RandomScaling
from localscale.lab.randomness import Draws
from localscale.lab.tasks.folder import FolderData, FolderTask
from localscale.lab.tasks.task import Batches, Shard
from localscale.warp import unscale

NORMALISE = Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
CPU = torch.device("cpu")
NAMES = tuple(COLOURS)


@pytest.fixture
def data(tmp_path: Path) -> FolderData:
    train, val = write_folder(tmp_path / "train"), write_folder(tmp_path / "val", images=2, seed=1)
    return FolderData(train_root=train, val_root=val, image_size=32, workers=0, variants=2)


def make(data: FolderData, **changes: Any) -> FolderTask:
    return dataclasses.replace(data, **changes).task(NORMALISE, 4)


def root_of(data: FolderData) -> Path:
    assert data.train_root is not None
    return data.train_root


# Which images


def test_folders_name_the_classes_and_images_of_any_size_are_read(data: FolderData):
    task = make(data)
    assert (task.class_names, task.classes, task.train_count, len(task.val)) == (NAMES, 3, 12, 6)
    assert {NAMES[label] == path.parent.name for path, label in (*task.train.items, *task.val.items)} == {True}
    indices, loaded = next(iter(task.load(Batches(12, 5, seed=0).steps(0, 1), 0)))
    images, labels = task.images(indices, loaded, CPU)
    assert images.shape == (5, 3, 32, 32)
    assert labels.tolist() == [task.train.items[int(k)][1] for k in indices.images]


def test_without_a_validation_folder_a_part_of_each_class_is_held_out(data: FolderData):
    tasks = [make(data, val_root=None, val_fraction=0.25, data_seed=seed) for seed in (0, 0, 1)]
    for task in tasks:
        assert (task.train_count, len(task.val)) == (9, 3)
        assert sorted(label for _, label in task.val.items) == [0, 1, 2]
        assert not {path for path, _ in task.val.items} & {path for path, _ in task.train.items}
    assert tasks[0].val == tasks[1].val != tasks[2].val


def test_every_class_keeps_an_image_to_train_on(data: FolderData):
    for number in (1, 2, 3):
        (root_of(data) / "red" / f"{number}.png").unlink()
    task = make(data, val_root=None, val_fraction=0.9)
    assert {label for _, label in task.train.items} == {0, 1, 2}


def test_a_finished_run_is_measured_without_its_training_images(data: FolderData):
    shutil.rmtree(root_of(data))
    task = data.with_classes(NAMES).task(NORMALISE, 4)
    assert task.class_names == NAMES
    with pytest.raises(DataError, match=r"--data.train-root .* is not a folder"):
        _ = task.train_count


# Faults


def broken(root: Path) -> None:
    image = np.asarray(Image.open(root / "red" / "0.png"))
    Image.fromarray(image).save(root / "red" / "cut.jpg")
    whole = (root / "red" / "cut.jpg").read_bytes()
    (root / "red" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "blue" / "text.jpg").write_text("no image")
    (root / "blue" / "nothing.png").write_bytes(b"")


def test_broken_images_are_left_out_with_a_warning(data: FolderData, caplog: pytest.LogCaptureFixture):
    broken(root_of(data))
    assert make(data).train_count == 12
    assert "3 of 15 images" in caplog.text
    assert "nothing.png is empty" in caplog.text
    assert "text.jpg is not a readable image" in caplog.text


def test_broken_images_that_are_not_named_are_counted(data: FolderData, caplog: pytest.LogCaptureFixture):
    for number in range(5):
        (root_of(data) / "red" / f"broken{number}.png").write_bytes(b"x")
    make(data)
    assert "5 of 17 images" in caplog.text
    assert "broken2.png is not a readable image" in caplog.text
    assert "; and 2 more" in caplog.text


def test_groups_of_classes_are_told(data: FolderData, caplog: pytest.LogCaptureFixture):
    root = root_of(data)
    make(data)
    assert not caplog.text
    for group, name in (("warm", "red"), ("cold", "blue"), ("cold", "green")):
        (root / group).mkdir(exist_ok=True)
        (root / name).rename(root / group / name)
    assert make(data, val_root=None).class_names == ("cold", "warm")
    assert "the classes, 2 in all; the 3 folders inside them, such as cold/blue, are not classes" in caplog.text


def test_images_beside_class_folders_are_told(data: FolderData, caplog: pytest.LogCaptureFixture):
    for name in ("b.png", "a.png"):
        Image.new("L", (9, 9)).save(root_of(data) / name)
    assert make(data).train_count == 12
    assert "2 images beside the class folders are not used, such as a.png" in caplog.text


def test_huge_images_are_left_out(data: FolderData, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("localscale.lab.data.images.MAX_PIXELS", 10_000)
    Image.new("L", (101, 100)).save(root_of(data) / "red" / "huge.png")
    assert make(data).train_count == 12
    assert "has 101×100 pixels; at most 10,000 are read" in caplog.text


def test_unusual_images_are_read(data: FolderData):
    root = root_of(data)
    Image.new("CMYK", (30, 30), (0, 255, 255, 0)).save(root / "red" / "cmyk.jpg")
    Image.fromarray(np.full((30, 30), 40_000, np.uint16)).save(root / "red" / "deep.png")
    frames = [Image.new("RGB", (30, 30), colour) for colour in ("red", "blue")]
    frames[0].save(root / "red" / "moving.gif", save_all=True, append_images=frames[1:])
    Image.new("LA", (1, 60)).save(root / "red" / "thin.png")
    task = make(data)
    assert task.train_count == 16
    pixels = {path.name: np.asarray(task.central(read_image(path)))[:, 16, 16] for path, _ in task.train.items[8:]}
    assert pixels["cmyk.jpg"][0] > 200 > 60 > pixels["cmyk.jpg"][2]
    assert pixels["moving.gif"][0] > 200 > 60 > pixels["moving.gif"][2]
    assert set(pixels["deep.png"]) == {156}


def nothing(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def loose(root: Path) -> None:
    nothing(root)
    Image.new("L", (9, 9)).save(root / "photo.png")


def nested(root: Path) -> None:
    root.rename(root.with_name("inner"))
    root.mkdir()
    root.with_name("inner").rename(root / "train")


def one_class(root: Path) -> None:
    shutil.rmtree(root / "blue")
    shutil.rmtree(root / "green")


def class_without_images(root: Path) -> None:
    (root / "purple").mkdir()


def class_of_broken_images(root: Path) -> None:
    class_without_images(root)
    (root / "purple" / "a.png").write_bytes(b"x")


def one_image(root: Path) -> None:
    one_class(root)
    for number in (1, 2, 3):
        (root / "red" / f"{number}.png").unlink()


FAULTS = {
    shutil.rmtree: "train is not a folder; expected one with a subfolder of images per class",
    nothing: "train holds no images; expected train/CLASS/IMAGE.jpg, one folder per class",
    loose: "train holds images, such as photo.png, but no class folders; expected train/CLASS/IMAGE.jpg",
    nested: "train holds folders, such as blue, instead of images; .* try --data.train-root .*train/train",
    one_class: "train has one class, red; a classifier needs at least two",
    class_without_images: "the class folder purple holds no images .1 of 4 are empty.; add images to it, or remove it",
    class_of_broken_images: "no image of the class purple can be read; .*a.png is not a readable image",
    one_image: "train has one class, red",
}


@pytest.mark.parametrize("damage", FAULTS, ids=lambda damage: damage.__name__)
def test_a_training_folder_that_cannot_be_used_is_told(damage: Any, data: FolderData):
    damage(root_of(data))
    with pytest.raises(DataError, match=FAULTS[damage]):
        make(data)


def test_validation_folders_that_cannot_be_used(data: FolderData, caplog: pytest.LogCaptureFixture, tmp_path: Path):
    with pytest.raises(DataError, match=r"--data.train-root is needed"):
        make(data, train_root=None)
    val = tmp_path / "val"
    shutil.rmtree(val / "green")
    assert len(make(data).val) == 4
    assert "has no images of 1 of the 3 classes, such as green" in caplog.text
    (val / "red").rename(val / "reds")
    with pytest.raises(DataError, match=r"val has the class reds, which the training images do not have .*mean red"):
        make(data)


def test_too_few_images_to_hold_out(data: FolderData):
    with pytest.raises(DataError, match="12 images of 3 classes, too few to hold out 5 % of each class"):
        make(data, val_root=None, val_fraction=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_fraction": 1.0}, "--data.val-fraction is 1.0"),
        ({"crop": 0.0}, "--data.crop is 0.0"),
        ({"least_area": 1.5}, "--data.least-area is 1.5"),
        ({"variants": 0}, "--data.variants is 0"),
        ({"scaling": RandomScaling(strength=-1)}, "strength is -1"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(FolderData(), **changes).check()


# Crops and metrics


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine with one core
def test_crops_depend_on_the_sample_alone(data: FolderData):
    def batches(task: FolderTask, first: int) -> list[Tensor]:
        steps = Batches(task.train_count, 4, seed=0).steps(first, 5)
        return [task.images(indices, loaded, CPU)[0] for indices, loaded in task.load(steps, 0)]

    alone = batches(make(data), 0)
    for a, b in zip([*alone, *alone[3:]], [*batches(make(data, workers=1), 0), *batches(make(data), 3)], strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(alone[0], alone[3])


def predict(images: Tensor) -> Tensor:
    """Classify images as blue, green or red by their mean colour."""
    return 4 * images.mean(dim=(2, 3)).flip(1)


def test_metrics_are_those_of_a_slow_loop(data: FolderData):
    task = make(data)
    shares = [task.evaluate(predict, CPU, Shard(), progress=False)]
    right, scaled_right, norms = [], [], []
    for number, (path, label) in enumerate(task.val.items):
        image = task.central(read_image(path))[None].float() / 255
        answer = predict(NORMALISE(image))
        right.append(int(answer.argmax()) == label)
        for variant in range(2):
            u = data.scaling.maps(Draws(0, torch.tensor([number])), f"evaluation/{variant}")
            other = predict(NORMALISE(unscale(image, u)))
            scaled_right.append(int(other.argmax()) == label)
            norms.append(float((answer.softmax(1) - other.softmax(1)).square().sum()))
    found = shares[0]
    assert (found["images"], found["variants"]) == (6, 2)
    assert found["accuracy"] == pytest.approx(np.mean(right))
    assert found["scaled_accuracy"] == pytest.approx(np.mean(scaled_right))
    assert np.mean(norms) > 1e-4
    assert found["invariance_error"]["squared"] == pytest.approx(np.mean(norms), rel=1e-4)
    assert found["outcomes"].right[:, 0].tolist() == right
    each = np.reshape(norms, (6, 2)).mean(1)
    assert found["outcomes"].invariance_error.numpy() == pytest.approx(each, rel=1e-3, abs=1e-6)
