"""A user's own folder of images and masks: pairs, classes, faults, and metrics against a slow loop."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_masks import write_masks
from torch import Tensor

from localscale.errors import ConfigError, DataError
from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.data.images import encode_mask, read_labels
from localscale.lab.tasks.mask_folder import MaskFolderData, MaskFolderTask
from localscale.lab.tasks.mask_metrics import IGNORED
from localscale.lab.tasks.task import Batches, Shard

NORMALISE = Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path: Path) -> MaskFolderData:
    train, val = write_masks(tmp_path / "train"), write_masks(tmp_path / "val", images=3, seed=1)
    return MaskFolderData(train_root=train, val_root=val, image_size=32, workers=0)


def make(data: MaskFolderData, **changes: Any) -> MaskFolderTask:
    return dataclasses.replace(data, **changes).task(NORMALISE, 2)


def first_batch(task: MaskFolderTask, size: int = 8) -> tuple[Tensor, Tensor]:
    indices, loaded = next(iter(task.load(Batches(task.train_count, size, seed=0).steps(0, 1), 0)))
    return task.images(indices, loaded, CPU)


def test_masks_give_the_classes_and_move_with_their_images(data: MaskFolderData):
    task = make(data)
    assert (task.classes, task.train_count, len(task.val)) == (3, 8, 3)
    assert task.class_names == ("class 0", "class 1", "class 2")
    images, labels = first_batch(task)
    assert images.shape == (8, 3, 32, 32)
    assert labels.shape == (8, 32, 32)
    assert set(labels.unique().tolist()) == {0, 1, 2, IGNORED}
    blue, red = (images.movedim(1, -1)[labels == label].mean(dim=0) for label in (1, 2))
    assert blue[2] > blue[0] + 0.3
    assert red[0] > red[2] + 0.3


def test_a_part_is_held_out(data: MaskFolderData):
    tasks = [make(data, val_root=None, val_fraction=0.25, data_seed=seed) for seed in (0, 0, 1)]
    for task in tasks:
        assert (task.train_count, len(task.val)) == (6, 2)
        assert not set(task.val.pairs) & set(task.train.pairs)
    assert tasks[0].val == tasks[1].val != tasks[2].val
    with pytest.raises(DataError, match="8 images with masks, too few to hold out 1 % of them"):
        make(data, val_root=None, val_fraction=0.01)


def test_a_finished_run_is_measured_without_its_training_images(data: MaskFolderData):
    assert data.train_root is not None
    shutil.rmtree(data.train_root)
    assert data.with_classes(["background", "blue", "red", "green"]).task(NORMALISE, 2).classes == 4


def mask_of(root: Path, number: int = 0) -> Path:
    return root / "masks" / f"photo {number}.png"


def change(path: Path, labels: Any) -> None:
    path.write_bytes(encode_mask(labels(read_labels(path))))


def other_size(root: Path) -> None:
    Image.new("L", (7, 9)).save(mask_of(root))


def in_colour(root: Path) -> None:
    for number in range(8):
        Image.open(mask_of(root, number)).convert("RGB").save(mask_of(root, number))


def object_is_255(root: Path) -> None:
    for number in range(8):
        change(mask_of(root, number), lambda labels: np.where(labels > 0, 255, 0))


def no_masks(root: Path) -> None:
    shutil.rmtree(root / "masks")


def other_names(root: Path) -> None:
    for path in (root / "masks").iterdir():
        path.rename(path.with_name(f"mask of {path.name}"))


def jpeg_masks(root: Path) -> None:
    Image.open(mask_of(root)).convert("L").save(mask_of(root).with_suffix(".jpg"))
    mask_of(root).unlink()


FAULTS = {
    shutil.rmtree: "train is not a folder; expected train/images/NAME.jpg and masks/NAME.png",
    no_masks: "train/masks is not a folder",
    other_names: "has no image with a mask; .*photo 0.jpg has none",
    other_size: r"mask .*masks/photo 0.png is 7×9 pixels, and its image .*images/photo 0.jpg is \d+×\d+; save both",
    in_colour: r"the first fault is: .*photo 0.png is a mask in colour \(RGB\); save it as a palette or grey image",
    object_is_255: r"have only the classes \[0\] .*save an object as 1, not as 255",
    jpeg_masks: "photo 0.jpg is compressed with loss, which changes class numbers; save masks as PNG",
}


@pytest.mark.parametrize("damage", FAULTS, ids=lambda damage: damage.__name__)
def test_a_folder_that_cannot_be_used_is_told(damage: Any, data: MaskFolderData):
    damage(data.train_root)
    with pytest.raises(DataError, match=FAULTS[damage]):
        make(data)


def test_a_folder_is_needed(data: MaskFolderData):
    with pytest.raises(DataError, match=r"--data.train-root is needed: a folder with images/NAME.jpg and masks/NAME"):
        make(data, train_root=None)


def test_what_is_left_out_is_told(data: MaskFolderData, caplog: pytest.LogCaptureFixture):
    root = data.train_root
    assert root is not None
    mask_of(root, 0).write_bytes(b"")
    (root / "images" / "photo 1.jpg").write_text("no image")
    mask_of(root, 2).unlink()
    (root / "images" / "photo 3.jpg").unlink()
    change(mask_of(root, 4), lambda labels: np.where(labels == 1, 7, labels))
    task = make(data)
    assert (task.train_count, task.classes) == (4, 8)
    for said in (
        "2 of 6 images",
        "1 images have no mask of the same name",
        "1 masks have no image of the same name",
        "4 of the 8 classes, 0 to 7, have no pixel, such as 3",
    ):
        assert said in caplog.text


def test_validation_masks_have_no_other_classes(data: MaskFolderData):
    assert data.val_root is not None
    change(mask_of(data.val_root), lambda labels: np.where(labels == 1, 3, labels))
    with pytest.raises(DataError, match=r"photo 0.png has the class 3, and the known classes are 0 to 2"):
        make(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_fraction": 1.0}, "--data.val-fraction is 1.0"),
        ({"least_area": 0.0}, "--data.least-area is 0.0"),
        ({"background_weight": -1.0}, "--data.background-weight is -1.0"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str, data: MaskFolderData):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(data, **changes).check()


def predict(images: Tensor) -> Tensor:
    """Score background, blue and red by the colour of a pixel."""
    red, _, blue = images.unbind(1)
    return torch.stack((torch.ones_like(red), blue - red, red - blue), dim=1)


def test_metrics_are_those_of_a_slow_loop(data: MaskFolderData):
    task = make(data)
    found = task.evaluate(predict, CPU, Shard(), progress=False)
    hits, either = np.zeros(3), np.zeros(3)
    for number in range(3):
        image, labels = task.whole(number)
        answer = predict(NORMALISE(image[None].float() / 255)).argmax(1)[0]
        for label in range(3):
            here, there = answer[labels != IGNORED] == label, labels[labels != IGNORED] == label
            hits[label] += int((here & there).sum())
            either[label] += int((here | there).sum())
    assert found["mean_iou"] == pytest.approx(np.mean(hits / either), rel=1e-5)
    assert 0.5 < found["mean_iou"] < 1
    assert (found["images"], found["variants"]) == (3, 1)
    assert found["equivariance_error"]["squared"] > 0


def test_predicted_masks_keep_their_values_and_get_colours():
    labels = np.array([[0, 1], [2, 255]])
    data = encode_mask(labels, coloured=True)
    assert np.array_equal(read_labels(data), labels)
