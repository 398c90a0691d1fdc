"""Locally scaled ImageNet as a torch dataset."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from photographs import write_folder
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import functional as F

from localscale.errors import DataError
from localscale.lab.data.generation import generate
from localscale.lab.data.imagenet import ImageNetOptions, LocallyScaledImageNet, imagenet_job


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ImageNetOptions:
    made = write_folder(tmp_path_factory.mktemp("source"))
    (made.images / "class1" / "broken.jpg").write_bytes(b"no image")
    return made


@pytest.fixture(scope="module", params=["folder", "shards"])
def root(options: ImageNetOptions, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / request.param
    summary = generate(imagenet_job(options), out, form=request.param)
    assert (summary.images, summary.skipped) == (28, {"the image cannot be read": 1})
    return out


def test_items_are_images_and_labels(root: Path):
    dataset = LocallyScaledImageNet(root)
    assert len(dataset) == 28
    assert dataset.classes == ("class0", "class1")
    assert dataset.scales == (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
    for position in range(len(dataset)):
        image, label = dataset[position]
        assert isinstance(image, Image.Image)
        assert (image.mode, image.size) == ("RGB", (96, 80))
        assert dataset.classes[label] == dataset.written.records[position]["class_folder"]


def test_a_group_is_one_image_at_all_scales(root: Path, options: ImageNetOptions):
    dataset = LocallyScaledImageNet(root)
    assert len(dataset.groups) == 4
    assert sorted(position for positions in dataset.groups.values() for position in positions) == list(range(28))
    for group, positions in dataset.groups.items():
        found = dataset.read_group(group)
        assert found.images.shape == (7, 3, 80, 96)
        assert found.images.dtype == torch.uint8
        assert found.scales == dataset.scales == tuple(map(dataset.scale_of, positions))
        source = np.array(Image.open(options.images / found.source))
        np.testing.assert_array_equal(found.images[3].permute(1, 2, 0), source)
        areas = [dataset.read_mask(position).sum() for position in positions]
        assert areas == sorted(areas)


def test_transforms_and_loaders_work(root: Path):
    dataset = LocallyScaledImageNet(root, F.to_tensor, lambda label: label + 100)
    images, labels = next(iter(DataLoader(dataset, batch_size=5, num_workers=0)))
    assert images.shape == (5, 3, 80, 96)
    assert set(labels.tolist()) <= {100, 101}
    group = dataset.read_group(next(iter(dataset.groups)))
    assert group.images.dtype == torch.float32
    assert group.label in (100, 101)


def test_jpg_datasets_can_be_read(options: ImageNetOptions, tmp_path: Path):
    generate(imagenet_job(dataclasses.replace(options, image_format="jpg", limit=1)), tmp_path / "out")
    dataset = LocallyScaledImageNet(tmp_path / "out")
    assert [dataset.written.records[p]["suffixes"][-1] for p in dataset.groups[0]] == ["mask.png"] * 3 + ["png"] + [
        "mask.png"
    ] * 3
    assert dataset.read_group(0).images.shape == (7, 3, 80, 96)


def test_errors_name_the_problem(root: Path, tmp_path: Path):
    with pytest.raises(DataError, match="no group 99"):
        LocallyScaledImageNet(root).read_group(99)
    with pytest.raises(DataError, match=r"no dataset.json in"):
        LocallyScaledImageNet(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    description = json.loads((root / "dataset.json").read_text())
    (other / "dataset.json").write_text(json.dumps({**description, "kind": "objects"}))
    with pytest.raises(DataError, match='holds a dataset of kind "objects"; expected "imagenet"'):
        LocallyScaledImageNet(other)
