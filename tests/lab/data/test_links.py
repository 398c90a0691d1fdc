"""Symbolic links inside a dataset are not followed out of it."""

import logging
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent / "generation"))

from toy_job import toy_job

from localscale.errors import DataError
from localscale.lab.data import WrittenDataset, generate
from localscale.lab.data.class_folders import list_class_folders
from localscale.lab.data.imagenet.annotations import find_box_file, find_mask_file
from localscale.lab.data.imagenet.image_list import list_images
from localscale.lab.data.mask_folders import list_mask_folder
from localscale.lab.data.objects.catalog import read_panoramas
from localscale.lab.folders import stays_inside


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder outside every dataset, with an image and a mask."""
    folder = tmp_path / "secret"
    folder.mkdir()
    for name in ("private.png", "private.jpg"):
        Image.new("RGB", (32, 32), "red").save(folder / name)
    (folder / "private.json").write_text("[0, 0, 9, 9]")
    return folder


def class_folders(root: Path) -> Path:
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (32, 32), "blue").save(root / name / f"{number}.png")
    return root


def test_a_link_stays_inside_or_not(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "in").symlink_to("b")
    (tmp_path / "a" / "out").symlink_to(tmp_path)
    (tmp_path / "a" / "loop").symlink_to("loop")
    (tmp_path / "whole").symlink_to("a")
    found = {name: stays_inside(tmp_path / "whole" / name, tmp_path / "whole") for name in ("in", "out", "b", "gone")}
    assert found == {"in": True, "out": False, "b": True, "gone": True}
    assert not stays_inside(tmp_path / "a" / "loop" / "x\0", tmp_path / "a")


def test_links_out_of_class_folders_are_left_out_with_a_warning(tmp_path: Path, secret: Path, caplog):
    root = class_folders(tmp_path / "photos")
    (root / "cat" / "linked.png").symlink_to(secret / "private.png")
    (root / "dog" / "inside.png").symlink_to(root / "dog" / "0.png")
    (root / "spy").symlink_to(secret)
    (tmp_path / "link").symlink_to(root)
    for folder in (root, tmp_path / "link"):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = list_images(folder)
        assert sorted(found.names) == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png", "dog/inside.png"]
        assert caplog.text.count("lead out of") == 2
        assert "cat/linked.png" in caplog.text
        assert "spy" in caplog.text
    listed = list_class_folders(root, flag="--data.root")
    assert [path.name for path, label in listed.items if label == 0] == ["0.png", "1.png"]


def test_links_out_of_a_mask_folder(tmp_path: Path, secret: Path, caplog):
    root = tmp_path / "photos"
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
        Image.new("L", (32, 32)).save(root / part / "a.png")
    Image.new("L", (32, 32)).save(root / "images" / "private.png")
    (root / "masks" / "private.png").symlink_to(secret / "private.png")
    assert [pair[0].name for pair in list_mask_folder(root, flag="--data.root").pairs] == ["a.png"]
    assert "lead out of" in caplog.text
    shutil.rmtree(root / "masks")
    (root / "masks").symlink_to(secret)
    with pytest.raises(DataError, match=r"masks is a symbolic link out of .*photos; copy the folder"):
        list_mask_folder(root, flag="--data.root")


def test_links_out_of_given_boxes_and_masks(tmp_path: Path, secret: Path):
    (tmp_path / "given").symlink_to(secret)
    assert find_mask_file(tmp_path / "given", "private.jpg") is not None
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / "class").symlink_to(secret)
    for find in (find_mask_file, find_box_file):
        with pytest.raises(DataError, match="is a symbolic link out of"):
            find(tmp_path / "boxes", "class/private.jpg")


@pytest.mark.parametrize("form", ["folder", "shards"])
def test_links_out_of_a_written_dataset(form: str, tmp_path: Path, secret: Path):
    root = tmp_path / "toy"
    generate(toy_job(size=3), root, form=form)
    assert WrittenDataset(root).read(0, "mask.txt")
    part = root / ("samples/00000" if form == "folder" else "shards/00000.tar")
    part.rename(secret / part.name)
    part.symlink_to(secret / part.name)
    with pytest.raises(DataError, match=r"leads out of .*toy by a symbolic link, which is not followed"):
        WrittenDataset(root).read(0, "mask.txt")
    (root / "dataset.json").rename(secret / "dataset.json")
    (root / "dataset.json").symlink_to(secret / "dataset.json")
    with pytest.raises(DataError, match=r"^[^ ]*dataset\.json leads out of"):
        WrittenDataset(root)


def test_a_link_to_a_single_file_of_a_written_dataset(tmp_path: Path, secret: Path):
    generate(toy_job(size=3), tmp_path / "toy", form="folder")
    dataset = WrittenDataset(tmp_path / "toy")
    file = tmp_path / "toy" / "samples" / "00000" / f"{dataset.records[0]['key']}.mask.txt"
    file.unlink()
    file.symlink_to(secret / "private.json")
    with pytest.raises(DataError, match="by a symbolic link"):
        dataset.read(0, "mask.txt")


def test_links_out_of_a_folder_of_panoramas(tmp_path: Path, secret: Path):
    cv2 = pytest.importorskip("cv2")
    (tmp_path / "sky").mkdir()
    for folder, names in ((tmp_path / "sky", ("a", "b")), (secret, ("c",))):
        for name in names:
            light = np.full((16, 32, 3), 0.5, np.float32)
            (folder / f"{name}.hdr").write_bytes(cv2.imencode(".hdr", light)[1].tobytes())
    (tmp_path / "sky" / "c.hdr").symlink_to(secret / "c.hdr")
    entries, rejected = read_panoramas(tmp_path / "sky")
    assert [entry.name for entry in entries] == ["a", "b"]
    assert "it is a symbolic link out of" in rejected[0].reason
