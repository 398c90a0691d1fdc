"""``python -m benchmarks.photograph_canonicalizer``, on a handful of small pictures."""

import csv
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import localscale as ls
from benchmarks import photograph_canonicalizer as command
from benchmarks.photograph_data import Cutouts, Photographs, read_boxes, read_cutouts, read_pets, read_photographs
from benchmarks.photograph_scenes import compose, crop
from benchmarks.photograph_training import _unfolded, build, targets
from benchmarks.photograph_trunk import load_trunk, read_weights
from localscale.canonicalizer import shipped
from localscale.canonicalizer.things import things_in_boxes

NAN = float("nan")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs with a light square, cut-out discs, a background, a pet, and weights of the trunk."""
    root = tmp_path_factory.mktemp("photographs")
    with (root / "boxes.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("image", "left", "top", "right", "bottom"))
        for number in range(10):
            picture = np.full((80, 100, 3), 60, np.uint8)
            picture[20:40, 10 + number : 50] = 230
            path = root / "train" / f"class{number % 2}" / f"photo{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(path)
            rows.writerow((path.stem, (10 + number) / 100, 0.25, 0.5, 0.5))
    (root / "cut").mkdir()
    for number in range(3):
        disc = np.zeros((40, 30, 4), np.uint8)
        disc[5:-5, 5:-5] = (200, 30 * number, 10, 255)
        Image.fromarray(disc).save(root / "cut" / f"c_thing{number}.png")
        Image.fromarray(np.full((60, 60, 3), 90, np.uint8)).save(root / "cut" / f"b_class0__photo{number}.png")
    (root / "pets" / "cat").mkdir(parents=True)
    Image.fromarray(np.full((50, 50, 3), 90, np.uint8)).save(root / "pets" / "cat" / "cat_1.png")
    trimap = np.zeros((50, 50), np.uint8)
    trimap[10:30, 5:25] = 255
    Image.fromarray(trimap).save(root / "pets" / "cat" / "cat_1_trimap.png")
    torch.manual_seed(0)
    save_file(timm.create_model("tf_efficientnet_lite0").state_dict(), root / "trunk.safetensors")
    return root


def test_boxes_follow_the_square_in_the_middle(folder: Path):
    photographs = read_photographs(folder / "train", read_boxes(folder / "boxes.csv"))
    assert photographs.images.shape == (10, 3, 256, 256)
    box = photographs.boxes[0, 0]  # 10 to 50 of 100 pixels, seen through the middle 80
    torch.testing.assert_close(box, torch.tensor([0.0, 0.25, 0.5, 0.5]), atol=0.01, rtol=0)
    assert photographs.boxes[:, 1:].isnan().all()
    middle = photographs.images[0, 0, 96, :].float()
    assert middle[4:120].min() > 200
    assert middle[140:].max() < 100
    pet = read_pets(folder / "pets").boxes[0, 0]
    torch.testing.assert_close(pet, torch.tensor([0.1, 0.2, 0.5, 0.6]))


def test_targets_are_those_of_things_in_boxes():
    boxes = torch.tensor([[[0.1, 0.2, 0.9, 0.95], [0.3, 0.3, 0.6, 0.7]], [[NAN] * 4, [NAN] * 4]])
    size, covered = targets(boxes, 14, 14)
    known = things_in_boxes([boxes[0], torch.empty(0, 4)])
    expected, share, _ = known.on_grid(14, 14)
    torch.testing.assert_close(covered, share, atol=0.12, rtol=0)  # the ends of a side differ
    sure = share > 0.99
    torch.testing.assert_close(size[0, 7, 6].exp().square(), torch.tensor(0.12))
    torch.testing.assert_close(size[sure].median(), expected[sure].median(), atol=0.01, rtol=0)


def test_crops_and_pasted_things_lie_in_their_boxes():
    torch.manual_seed(0)
    images = torch.full((8, 3, 256, 256), 20, dtype=torch.uint8)
    images[:, :, 64:128, 32:96] = 240
    boxes = torch.full((8, 12, 4), NAN)
    boxes[:, 0] = torch.tensor([0.125, 0.25, 0.375, 0.5])
    things = torch.full((1, 4, 256, 256), 255, dtype=torch.uint8)
    backgrounds = Photographs(images // 8, torch.full_like(boxes, NAN))
    cutouts = Cutouts(things, torch.tensor([[256.0, 256.0]]))
    for found, known in (crop(Photographs(images, boxes), 64), compose(backgrounds, cutouts, 8, 64)):
        _, covered = targets(known, 64, 64)
        for image, share in zip(found.mean(dim=1), covered, strict=True):
            if (share > 0.9).any() and (share < 0.1).any():
                assert image[share > 0.9].mean() > image[share < 0.1].mean() + 0.1


@torch.no_grad()
def test_gains_of_their_own_do_not_change_the_trunk(folder: Path):
    state = read_weights(folder / "trunk.safetensors")
    trunk = build("cpu").trunk
    load_trunk(trunk, state)
    looks = torch.rand(1, 3, 48, 48)
    expected = trunk.features(looks)[1]
    with _unfolded(trunk, state):
        torch.testing.assert_close(trunk.features(looks)[1], expected)
    torch.testing.assert_close(trunk.features(looks)[1], expected)


def test_eight_bits_are_scaled(tmp_path):
    weight = torch.randint(-127, 127, (4, 3, 1, 1), dtype=torch.int8)
    save_file({"a.weight": weight, "a.weight.scale": torch.arange(4).half()}, tmp_path / "small.safetensors")
    found = read_weights(tmp_path / "small.safetensors")
    assert set(found) == {"a.weight"}
    torch.testing.assert_close(found["a.weight"][2], 2.0 * weight[2])


def test_backgrounds_with_several_things_are_left_out(folder: Path):
    boxes = read_boxes(folder / "boxes.csv")
    backgrounds, cutouts = read_cutouts(folder / "cut", boxes | {"photo1": 2 * boxes["photo1"]})
    assert len(backgrounds) == 2
    assert len(cutouts) == 3


def test_what_it_writes_is_what_the_package_reads(folder: Path, capsys, monkeypatch):
    paths = {"data": "train", "boxes": "boxes.csv", "pets": "pets", "cutouts": "cut", "trunk": "trunk.safetensors"}
    given = [word for name, path in paths.items() for word in (f"--{name}", str(folder / path))]
    counts = ["--steps", "2", "--real", "2", "--pasted", "2", "--empty", "1"]
    command.main(["train", *given, "--out", str(folder / "out"), *counts])
    printed = capsys.readouterr().out
    assert "all: IoU" in printed
    command.main(["score", *given[:4], "--weights", str(folder / "out")])
    assert "(10 photographs)" in capsys.readouterr().out
    monkeypatch.setattr(shipped, "HERE", folder / "out")
    model = ls.adapt(timm.create_model("resnet10t", num_classes=5), "photographs").eval()
    assert model(torch.rand(1, 3, 224, 224)).isfinite().all()
