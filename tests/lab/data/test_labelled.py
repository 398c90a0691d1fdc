"""Written images come back with their labels and groups."""

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


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_loader_workers_read_it(written: Path, start: str) -> None:
    dataset = LabelledImages(written, transform=pil_to_tensor, target_transform=lambda_free_modulo)
    loader = DataLoader(dataset, batch_size=3, num_workers=1, multiprocessing_context=start)
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert torch.equal(images, torch.stack([dataset[n][0] for n in range(8)]))
    assert labels.tolist() == [dataset[n][1] for n in range(8)]


def lambda_free_modulo(label: int) -> int:
    return label % 10


def test_another_kind_and_missing_labels(written: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match='of kind "mnist"; expected "imagenet"'):
        LabelledImages(written, kind="imagenet")
    manifest = written / "manifest.jsonl"
    text = manifest.read_text()
    try:
        manifest.write_text(text.replace('"label"', '"name"'))
        with pytest.raises(DataError, match="holds no labels"):
            LabelledImages(written)[0]
    finally:
        manifest.write_text(text)
