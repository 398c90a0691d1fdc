"""The list of images: selection, order, labels and class names."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from photographs import write_folder
from shared import SHARED

from localscale.errors import DataError
from localscale.lab.data.imagenet.image_list import find_class_index, list_images, read_class_index


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_folder(tmp_path, classes=5, images=3).images


def write_index(path: Path, folders: list[str]) -> Path:
    path.write_text(json.dumps({f"{n:03d}": [folder, f"name_of {folder}"] for n, folder in enumerate(folders)}))
    return path


def test_a_limit_is_spread_over_the_classes(images: Path):
    everything = list_images(images)
    assert len(everything.names) == 15
    for limit in (1, 4, 5, 7, 15):
        part = list_images(images, limit=limit)
        assert part.names == everything.names[:limit], "a larger limit only adds images"
        counts = Counter(name.split("/")[0] for name in part.names)
        assert max(counts.values()) - min(counts.get(f"class{c}", 0) for c in range(5)) <= 1
    assert list_images(images, limit=99).names == everything.names


def test_the_seed_selects_other_images(images: Path):
    orders = {list_images(images, limit=5, seed=seed).names for seed in range(6)}
    assert len(orders) == 6
    assert list_images(images, seed=3) == list_images(images, seed=3)
    assert set(list_images(images, seed=3).names) == set(list_images(images, seed=4).names)


def test_the_digest_depends_on_names_and_sizes(images: Path):
    before = list_images(images).digest
    shutil.copy(images / "class0" / "0.png", images / "class0" / "3.png")
    added = list_images(images).digest
    (images / "class0" / "3.png").write_bytes(b"other")
    assert len({before, added, list_images(images).digest}) == 3


def test_only_images_in_class_folders_are_listed(images: Path):
    before = list_images(images).names
    (images / "notes.txt").write_text("no image")
    (images / "class0" / "notes.txt").write_text("no image")
    (images / "class0" / ".hidden.png").write_bytes(b"")
    shutil.copy(images / "class0" / "0.png", images / "class0" / "0_trimap.png")
    shutil.copy(images / "class0" / "0.png", images / "loose.png")
    assert list_images(images).names == before
    deeper = images / "class0" / "more"
    deeper.mkdir()
    shutil.copy(images / "class0" / "0.png", deeper / "9.JPEG")
    assert set(list_images(images).names) - set(before) == {"class0/more/9.JPEG"}


def test_labels_number_the_sorted_folders(images: Path):
    listing = list_images(images)
    assert listing.labels == {f"class{n}": n for n in range(5)}
    assert listing.classes == tuple(f"class{n}" for n in range(5))
    assert not listing.known


@pytest.mark.parametrize("place", ["images", ".", ".."])
def test_a_class_index_is_found_and_gives_labels(images: Path, place: str):
    folder = {"images": images, ".": images.parent, "..": images.parent.parent}[place]
    if folder == images.parent.parent:
        shutil.copytree(images, images.parent / "deeper" / "val")
        images, folder = images.parent / "deeper" / "val", images.parent
    path = write_index(folder / "class_index.json", ["other", *(f"class{n}" for n in range(4, -1, -1))])
    assert find_class_index(images) == path
    listing = list_images(images)
    assert listing.labels == {f"class{n}": 5 - n for n in range(5)}
    assert listing.classes[1] == "name of class4", "underscores are spaces"
    assert listing.known


def test_a_class_index_for_other_folders_is_ignored_unless_given(images: Path):
    path = write_index(images.parent / "class_index.json", ["cat", "dog"])
    assert not list_images(images).known
    with pytest.raises(DataError, match=r"does not list the class folder class0 \(5 of 5 are missing\)"):
        list_images(images, class_index=path)
    write_index(path, ["class1", "class2"])
    with pytest.raises(DataError, match=r"does not list the class folder class0 \(3 of 5 are missing\)"):
        list_images(images)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "is not a class index"),
        ("[]", "is not a class index"),
        ('{"0": "b"}', "is not a class index"),
        ('{"0": ["b", "c"], "2": ["d", "e"]}', "numbers 2 classes with gaps"),
        ("{}", "numbers 0 classes with gaps"),
        ('{"0": ["b", 3]}', "has names that are not text"),
    ],
)
def test_bad_class_indices_are_reported(tmp_path: Path, text: str, cause: str):
    path = tmp_path / "class_index.json"
    path.write_text(text)
    with pytest.raises(DataError, match=cause):
        read_class_index(path)


def test_bad_folders_are_reported(tmp_path: Path, images: Path):
    with pytest.raises(DataError, match=r"nowhere is not a folder; expected one with a subfolder per class"):
        list_images(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"class0 holds images but no class folders; expected class0/CLASS/IMAGE.jpg"):
        list_images(images / "class0")
    (tmp_path / "empty" / "class0").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no images in class folders"):
        list_images(tmp_path / "empty")


@pytest.mark.skipif(not (SHARED / "imagenet").is_dir(), reason="no ImageNet sample in ../shared/data")
def test_imagenet_finds_its_class_index():
    listing = list_images(SHARED / "imagenet" / "val", limit=1000)
    assert len({name.split("/")[0] for name in listing.names}) == 1000
    assert listing.known
    assert listing.labels["n01440764"] == 0
    assert listing.classes[2] == "great white shark"


def test_broken_links_are_listed(images: Path):
    """The job skips them with a reason, so that no image is lost without notice."""
    (images / "class0" / "gone.jpg").symlink_to("nowhere.jpg")
    assert "class0/gone.jpg" in list_images(images).names


def test_names_that_are_not_utf8(images: Path):
    name = os.fsdecode(b"caf\xe9.png")
    shutil.copy(images / "class0" / "0.png", images / "class0" / name)
    assert f"class0/{name}" in list_images(images).names


def test_files_with_other_endings_are_reported(images: Path, caplog: pytest.LogCaptureFixture):
    (images / "class0" / "cat.heic").write_bytes(b"")
    list_images(images)
    assert "1 files in" in caplog.text
    assert "class0/cat.heic" in caplog.text
