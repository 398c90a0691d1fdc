"""Locally scaled ImageNet as a task: which images, which crops, and metrics against a slow loop."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_imagenet import CLASSES, SCALES, write_discs, write_scaled_discs
from torch import Tensor

from localscale.errors import ConfigError, DataError
from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.data.generation import generate
from localscale.lab.data.imagenet import LocallyScaledImageNet
from localscale.lab.data.images import read_image
from localscale.lab.data.mnist.job import MNISTOptions, mnist_job
from localscale.lab.tasks.imagenet import ImageNetData, ImageNetTask, TrainingImages
from localscale.lab.tasks.task import Batches, Shard

pytest.importorskip("cv2", reason="needs the extra 'imagenet'")

NORMALISE = Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
CPU = torch.device("cpu")
NAMES = tuple(CLASSES)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageNetData:
    folder = tmp_path_factory.mktemp("imagenet")
    train, test = write_discs(folder / "train"), write_scaled_discs(folder / "test")
    return ImageNetData(train_root=train, test_root=test, image_size=32, workers=0)


def make(data: ImageNetData, **changes: Any) -> ImageNetTask:
    return dataclasses.replace(data, **changes).task(NORMALISE, 4)


def listed(data: ImageNetData, **changes: Any) -> list[str]:
    items = TrainingImages(dataclasses.replace(data, **changes), NAMES).items
    return [f"{NAMES[label]} {path.parent.name}/{path.name}" for path, label in items]


# Which images


def test_all_images_are_listed_with_their_classes(data: ImageNetData):
    assert sorted(listed(data)) == [f"{name} {name}/{number}.png" for name in NAMES for number in range(3)]


@pytest.mark.parametrize("limit", [1, 3, 5, 6, 8])
def test_a_limit_spreads_over_the_classes(limit: int, data: ImageNetData):
    found = listed(data, train_limit=limit)
    assert len(set(found)) == limit
    counts = [sum(line.startswith(name) for line in found) for name in NAMES]
    assert max(counts) - min(counts) <= 1


def test_data_seed_changes_which_images_a_limit_picks(data: ImageNetData):
    picks = {tuple(sorted(listed(data, train_limit=3, data_seed=seed))) for seed in range(10)}
    assert len(picks) > 1


def test_classes_of_any_size_and_suffix(data: ImageNetData, tmp_path: Path):
    for name, count in (("blue", 1), ("green", 0), ("red", 3)):
        (tmp_path / name).mkdir()
        for number in range(count):
            Image.new("L", (9, 9)).save(tmp_path / name / f"{number}.JPEG")
    (tmp_path / "red" / "notes.txt").write_text("no image")
    (tmp_path / "notes.txt").write_text("no folder")
    found = listed(data, train_root=tmp_path)
    assert sorted(found) == ["blue blue/0.JPEG", "red red/0.JPEG", "red red/1.JPEG", "red red/2.JPEG"]


def test_a_class_index_numbers_the_classes(data: ImageNetData, tmp_path: Path):
    index = tmp_path / "index.json"
    index.write_text(json.dumps({str(2 - place): [name, name] for place, name in enumerate(NAMES)}))
    changed = dataclasses.replace(data, class_index=index)
    items = TrainingImages(changed, NAMES[::-1]).items
    assert {NAMES[::-1][label] == path.parent.name for path, label in items} == {True}
    with pytest.raises(
        DataError, match=r"has 3 classes, number 0 being 'red'; the test set has 3 classes, number 0 being 'blue'"
    ):
        changed.task(NORMALISE, 4)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (None, "is not a folder; expected one with a subfolder per class"),
        ((), "holds no images in class folders; expected train/CLASS/IMAGE.jpg"),
        (
            ("red",),
            r"has 1 classes, number 0 being 'red'; the test set has 3 classes, number 0 being 'blue'; both must",
        ),
        (
            ("blue", "green", "purple"),
            r"has 3 classes, number 2 being 'purple'; the test set has 3 classes, number 2 being",
        ),
    ],
)
def test_training_folders_that_cannot_be_used(
    folders: tuple[str, ...] | None, message: str, data: ImageNetData, tmp_path: Path
):
    root = tmp_path / "train"
    if folders is not None:
        root.mkdir()
    for name in folders or ():
        (root / name).mkdir()
        Image.new("L", (9, 9)).save(root / name / "0.png")
    with pytest.raises(DataError, match=f"train {message}"):
        make(data, train_root=root)


def test_test_folders_that_cannot_be_used(data: ImageNetData, digits: Path, tmp_path: Path):
    with pytest.raises(DataError, match=r"no dataset.json in .*; expected a folder written by `localscale data`"):
        make(data, test_root=tmp_path)
    generate(mnist_job(MNISTOptions(count=2, root=digits, image_size=32)), tmp_path / "mnist")
    with pytest.raises(DataError, match='holds a dataset of kind "mnist"; expected "imagenet"'):
        make(data, test_root=tmp_path / "mnist")


def test_both_folders_are_needed(data: ImageNetData):
    with pytest.raises(ConfigError, match=r"--data.train-root is needed: expected a folder with one subfolder"):
        make(data, train_root=None)
    with pytest.raises(ConfigError, match=r"--data.test-root is needed: make one with localscale data imagenet"):
        make(data, test_root=None)


def test_a_test_set_without_the_images_themselves_is_refused(data: ImageNetData, tmp_path: Path):
    with pytest.raises(DataError, match=r"no images at scale 1.0"):
        make(data, test_root=write_scaled_discs(tmp_path, images=1, scales=(0.8, 1.2)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_limit": 0}, "--data.train-limit is 0; expected at least 1"),
        ({"workers": -1}, "--data.workers is -1"),
        ({"crop": 0.0}, "--data.crop is 0.0; expected more than 0"),
        ({"least_area": 1.5}, "--data.least-area is 1.5"),
        ({"rand_augment": 31}, "--data.rand-augment is 31; expected 0 to 30"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str, data: ImageNetData):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(data, **changes).check()


# Which crops


def batches(task: ImageNetTask, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
    steps = Batches(task.train_count, 4, seed=0).steps(first, last)
    return [task.images(indices, loaded, CPU) for indices, loaded in task.load(steps, 0)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine with one core
def test_crops_are_the_same_in_any_number_of_workers(data: ImageNetData):
    alone, shared = batches(make(data), 0, 5), batches(make(data, workers=2), 0, 5)
    torch.manual_seed(99)
    later = batches(make(data), 3, 5)
    for (a, a_labels), (b, b_labels) in zip([*alone, *alone[3:]], [*shared, *later], strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a_labels, b_labels)
        assert a.shape == (4, 3, 32, 32)
        assert 0 <= a.min() <= a.max() <= 1


def test_every_sample_has_a_crop_of_its_own(data: ImageNetData):
    images = make(data).train
    crops = [images[0, sample][0] for sample in range(4)]
    assert all(not torch.equal(a, b) for n, a in enumerate(crops) for b in crops[:n])
    assert torch.equal(images[0, 2][0], crops[2])
    before = torch.get_rng_state()
    images[0, 3]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_crop_of_everything_is_the_image(data: ImageNetData):
    images = make(data, least_area=1.0, image_size=48).train
    crop, label = images[5, 0]
    path, expected = images.items[5]
    assert label == expected
    # The crop covers the whole area, but its aspect ratio is random, so only the mean colours are compared.
    assert np.abs(crop.float().mean((1, 2)).numpy() - np.array(read_image(path)).mean((0, 1))).max() < 12


def test_locally_scaled_training_images_show_one_scale_an_epoch(data: ImageNetData):
    task = make(data, train_root=data.test_root, least_area=1.0, image_size=48)
    assert task.train_count == 6
    assert task.describe().startswith("6 training photographs at 3 scales each; 6 test images")
    dataset = LocallyScaledImageNet(data.test_root)
    seen = []
    for sample in range(12):
        crop, label = task.train[4, sample]
        positions = dataset.groups[4]
        assert label == dataset[positions[0]][1]
        means = [np.array(dataset[position][0]).mean((0, 1)) for position in positions]
        seen.append(int(np.abs(np.array(means) - crop.float().mean((1, 2)).numpy()).sum(1).argmin()))
    assert len(set(seen)) > 1
    assert torch.equal(task.train[4, 7][0], task.train[4, 7][0])
    assert make(data, train_root=data.test_root, train_limit=2).train_count == 2


def test_rand_augment_depends_on_the_sample_alone(data: ImageNetData):
    plain, augmented = make(data).train, make(data, rand_augment=9).train
    crops = [augmented[0, sample][0] for sample in range(8)]
    assert any(not torch.equal(crop, plain[0, sample][0]) for sample, crop in enumerate(crops))
    assert all(torch.equal(crop, augmented[0, sample][0]) for sample, crop in enumerate(crops))


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_broken_training_image_is_named(data: ImageNetData, tmp_path: Path):
    write_discs(tmp_path, images=2)
    (tmp_path / "red" / "0.png").write_bytes(b"no image")
    task = make(data, train_root=tmp_path, workers=1)
    with pytest.raises(DataError, match=r"red/0.png is not a readable image"):
        [task.images(*pair, CPU) for pair in task.load(Batches(6, 6, seed=0).steps(0, 1), 0)]


# Metrics


def predict(images: Tensor) -> Tensor:
    """Classify images as blue, green or red by their mean colour."""
    return 4 * images.mean(dim=(2, 3)).flip(1)


def slow_metrics(data: ImageNetData) -> tuple[dict[float, float], dict[str, float]]:
    """Compute the metrics one image at a time, with Pillow alone for resizing and cropping."""
    dataset = LocallyScaledImageNet(data.test_root)
    right: dict[float, list[bool]] = {scale: [] for scale in SCALES}
    answers: dict[tuple[int, float], np.ndarray] = {}
    for position in range(len(dataset)):
        image, label = dataset[position]
        scale, side = dataset.scale_of(position), int(32 / 0.875)
        image = image.resize((int(side * image.width / image.height), side), Image.Resampling.BICUBIC)
        left, top = round((image.width - 32) / 2), round((image.height - 32) / 2)
        pixels = np.array(image.crop((left, top, left + 32, top + 32)), np.float64) / 255
        logits = 4 * ((pixels - NORMALISE.mean) / NORMALISE.std).mean((0, 1))[::-1]
        right[scale].append(bool(logits.argmax() == label))
        answers[dataset.written.records[position]["group"], scale] = np.exp(logits) / np.exp(logits).sum()
    pairs = [(answers[group, 1.0], answers[group, scale]) for group in dataset.groups for scale in (0.8, 1.2)]
    norms = [np.linalg.norm(p - q) for p, q in pairs]
    errors = {
        "squared": np.mean(np.square(norms)),
        "l2": np.mean(norms),
        "relative": np.mean([norm / np.linalg.norm(p) for norm, (p, _) in zip(norms, pairs, strict=True)]),
    }
    return {scale: np.mean(values) for scale, values in right.items()}, errors  # type: ignore[misc,return-value]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_metrics_are_those_of_a_slow_loop(data: ImageNetData):
    found = make(data, workers=2).evaluate(predict, CPU, Shard(), progress=False)
    accuracy, errors = slow_metrics(data)
    assert (found["images"], found["variants"]) == (6, 2)
    assert 0 < found["accuracy"] < 1
    assert len(set(accuracy.values())) > 1
    assert found["per_scale"]["accuracy"] == pytest.approx({str(scale): value for scale, value in accuracy.items()})
    assert found["accuracy"] == found["per_scale"]["mean"] == pytest.approx(np.mean(list(accuracy.values())))
    assert found["per_scale"]["std"] == pytest.approx(np.std(list(accuracy.values())))
    assert errors["squared"] > 1e-3
    assert found["invariance_error"] == pytest.approx(errors, rel=1e-4)
    outcomes = found["outcomes"]
    assert outcomes.right.shape == (6, len(SCALES))
    assert outcomes.right.double().mean(0).tolist() == pytest.approx([accuracy[scale] for scale in SCALES])
    assert float(outcomes.invariance_error.mean()) == pytest.approx(errors["squared"], rel=1e-4)
