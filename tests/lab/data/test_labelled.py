"""Written images are read with their labels and groups."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.transforms.functional import pil_to_tensor

from localscale.errors import DataError
from localscale.lab.data import LabelledImages, LocallyScaledMNIST, embedded_digits, generate
from localscale.lab.data.mnist import MNISTOptions, mnist_job


@pytest.fixture(scope="module", params=["folder", "shards"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mnist") / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        generate(mnist_job(MNISTOptions(count=4, variants=1, download=False)), out, form=request.param, chunk_size=3)
    return out


def test_the_images_are_those_of_the_dataset(written: Path) -> None:
    drawn = LocallyScaledMNIST(count=4, digits=embedded_digits(train=True))
    dataset = LabelledImages(written)
    assert len(dataset) == 8
    assert dataset.groups == {0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]}
    for group, positions in dataset.groups.items():
        for variant, position in enumerate(positions):
            image, label = drawn.variant(group, variant)
            assert np.array_equal(np.asarray(dataset[position][0])[..., 0], np.asarray(image))
            assert dataset[position][1] == label


def test_dataloader_workers_read_it(written: Path) -> None:
    dataset = LabelledImages(written, transform=pil_to_tensor, target_transform=last_digit)
    pickled = pickle.loads(pickle.dumps(dataset))  # as for a spawned worker
    loader = DataLoader(pickled, batch_size=3, num_workers=1, multiprocessing_context="fork")
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert torch.equal(images, torch.stack([dataset[n][0] for n in range(8)]))
    assert labels.tolist() == [dataset[n][1] for n in range(8)]


def last_digit(label: int) -> int:
    return label % 10


def test_another_kind_and_missing_labels(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match='of kind "mnist"; expected "imagenet"'):
        LabelledImages(written, kind="imagenet")
    dataset = LabelledImages(written)
    monkeypatch.delitem(dataset.written.records[0], "label")
    with pytest.raises(DataError, match="contains no labels"):
        dataset[0]
