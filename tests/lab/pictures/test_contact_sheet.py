"""Contact sheets of each kind of dataset."""

from pathlib import Path

import numpy as np
import pytest

from localscale.errors import ConfigError, DataError
from localscale.lab.data import generate
from localscale.lab.data.generation import Job, Sample, Skip, Stage
from localscale.lab.data.images import encode_image, encode_mask
from localscale.lab.pictures.contact_sheet import CELL, GAP, contact_sheet

RECORDS = {
    "mnist": {"label": 7, "scales": [0.4, 1.0, 2.0]},
    "objects": {"objects": [{"class": "Mug", "scale": 1.0}, {"class": "A_very_long_name_of_a_thing", "scale": 0.5}]},
    "imagenet": {"label": 3, "class_name": "tiger shark", "scale": 0.7},
}


def samples(kind: str, members: int, index: int) -> list[Sample]:
    grey = encode_image(np.full((64, 96, 3), 40 * index, np.uint8))
    files = {"png": grey}
    if kind != "mnist":
        files["class.png" if kind == "objects" else "mask.png"] = encode_mask(np.eye(64, 96, dtype=int) * 255)
    return [Sample(f"{index}-{k}", files, {"group": index, **RECORDS[kind]}) for k in range(members)]


def write(kind: str, members: int, out: Path, size: int = 5) -> Path:
    generate(Job(kind, size, {}, [Stage("make", lambda: lambda index: samples(kind, members, index))]), out)
    return out


@pytest.mark.parametrize(("kind", "pictures"), [("mnist", 1), ("objects", 2), ("imagenet", 2)])
def test_a_group_per_row(kind: str, pictures: int, tmp_path: Path) -> None:
    sheet = contact_sheet(write(kind, 3, tmp_path / "out"), groups=4)
    assert sheet.width == max(480, 3 * (CELL + GAP) + GAP)
    rows = (sheet.height - 30) // 4
    assert rows > pictures * (64 + GAP)
    pixels = np.asarray(sheet)
    middle = 30 + rows + 64 // 2  # of the second group's picture, which is grey 40
    assert pixels[middle, GAP + CELL // 2].tolist() == [40, 40, 40]


def test_single_images_side_by_side(tmp_path: Path) -> None:
    sheet = contact_sheet(write("mnist", 1, tmp_path / "out"), groups=2, columns=4)
    assert sheet.width == 4 * (CELL + GAP) + GAP
    assert (sheet.height - 30) % 2 == 0


def test_a_dataset_without_labels_and_scales(tmp_path: Path) -> None:
    made = [Sample("key", {"png": encode_image(np.zeros((8, 8, 3), np.uint8))}, {"group": 0})]
    generate(Job("mine", 1, {}, [Stage("make", lambda: lambda index: made)]), tmp_path / "out")
    assert contact_sheet(tmp_path / "out").height > 30


def test_a_dataset_without_images(tmp_path: Path) -> None:
    generate(Job("toy", 3, {}, [Stage("skip", lambda: lambda index: Skip("no"))]), tmp_path)
    with pytest.raises(DataError, match="contains no image: all 3 items were skipped"):
        contact_sheet(tmp_path)


def test_wrong_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="groups and columns are 0 and 8"):
        contact_sheet(tmp_path, groups=0)
