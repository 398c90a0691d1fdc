"""The benchmark of frozen classifiers: crops and shares of photographs, weights of eight bits, and its tables."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from benchmarks import __main__ as command
from benchmarks import classifiers, photographs
from benchmarks.classifiers import Classifier, load_classifier, restore_weights, round_weights
from benchmarks.photograph_evidence import evidence_weight, magnified
from benchmarks.photographs_data import read_photographs
from localscale.conventions import resize_cubic
from localscale.errors import CheckpointError, DataError
from localscale.lab.backbones.catalogue import Normalise

CLASSES = ("cat", "stone wall")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six photographs of two classes, grey with a white square; every box is the square."""
    folder, rows = tmp_path / "data", ["image,left,top,right,bottom"]
    for number, side in enumerate((16, 32, 40, 48, 56, 60)):
        pixels = np.full((64, 96, 3), 90, np.uint8)
        pixels[:side, 16 : 16 + side] = 255
        path = folder / "val" / CLASSES[number % 2] / f"photo_{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        rows += [f"photo_{number},{16 / 96},0,{(16 + side) / 96},{side / 64}", f"photo_{number},0,0,0.1,0.1"]
    (folder / "boxes.csv").write_text("\n".join(rows) + "\n")
    (folder / "class_index.json").write_text(json.dumps({n: [name, name] for n, name in enumerate(CLASSES)}))
    return folder


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, ...]:
    """Files of weights of two tiny classifiers, one of them with eight bits per weight."""
    halves = Normalise((0.5,) * 3, (0.5,) * 3)
    known = {
        name: Classifier(name.title(), "test_resnet", halves, 0.9 if name == "one" else 1.0) for name in ["one", "two"]
    }
    monkeypatch.setattr(classifiers, "CLASSIFIERS", known)
    torch.manual_seed(0)
    for name, change in (("one", dict), ("two", round_weights)):
        save_file(change(timm.create_model("test_resnet").state_dict()), tmp_path / f"{name}.safetensors")
    return tmp_path / "one.safetensors", tmp_path / "two.safetensors"


def test_crops_show_the_same_at_both_sides_and_shares_are_those_of_the_crop(data: Path):
    found = read_photographs(data, [1.0, 0.875])
    assert sorted(found.crops) == [(0.875, 224), (0.875, 448), (1.0, 224), (1.0, 448)]
    for crop in (1.0, 0.875):
        small, large = found.crops[crop, 224].float(), found.crops[crop, 448].float()
        assert (small - nn.functional.avg_pool2d(large, 2)).abs().mean() < 1
    order = found.shares.argsort()
    visible = [max(side - 4, 0) ** 2 / 56**2 for side in (16, 32, 40, 48, 56, 60)]  # crop of 0.875: 4 px are cut off
    assert found.shares[order].tolist() == pytest.approx(visible, abs=1e-4)
    assert found.labels.tolist().count(0) == 3
    assert len(read_photographs(data, [1.0], limit=4)) == 4


def test_kinds_are_those_of_the_boxes_and_the_classes(data: Path):
    with (data / "boxes.csv").open("a") as file:
        file.write("photo_3,0,0,0.2,0.2\n")
    found = read_photographs(data, [1.0])
    counts = {kind: int(inside.sum()) for kind, inside in found.kinds.items()}
    assert counts == {"one thing": 0, "two things": 5, "three or more things": 1, "scenes": 0, "textures": 3}
    assert torch.equal(found.kinds["textures"], found.labels == 1)


def test_eight_bits_per_weight_stay_close():
    state = timm.create_model("test_resnet").state_dict()
    restored = restore_weights(round_weights(state))
    assert restored.keys() == state.keys()
    for name, tensor in state.items():
        step = tensor.abs().flatten(1).amax(1) / 127 if tensor.dim() > 1 else torch.zeros(1)
        assert (restored[name] - tensor).abs().max() <= 0.51 * step.max()


def test_every_method_is_measured_against_the_base(
    data: Path, weights: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[int] = []

    class Certain(nn.Module):
        """An adapted model that is certain of the first class, so half of its answers are right."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            asked.append(images.shape[-1])
            return 100 * nn.functional.one_hot(torch.zeros(len(images), dtype=torch.int64), 1000).float()

    monkeypatch.setattr(photographs, "adapted_to", lambda base, config: Certain())
    target = tmp_path / "photographs.json"
    options = ["--data", data, "--weights", *weights, "--adapt", "certain", "--evidence", 1.2]
    options += ["--batch-size", 4, "--json", target]
    monkeypatch.setattr("sys.argv", ["benchmarks", "--suite", "photographs", *map(str, options)])
    command.main()
    assert set(asked) == {448}
    written = json.loads(target.read_text())
    assert "--adapt certain --adapted-side 448 --evidence 1.2" in written["command"]
    assert str(tmp_path) not in written["command"]
    accuracy, difference, kinds = (table["rows"] for table in written["tables"])
    assert [row["classifier"] for row in accuracy] == 7 * ["One"] + 7 * ["Two"] + 7 * ["mean"]
    assert list(accuracy[0])[2:] == [
        *("all (6)", "below 0.1 (1)", "0.1 to 0.3 (1)", "0.3 to 0.6 (1)", "above 0.6 (3)", "small, below 0.3 (2)")
    ]
    right = {(row["classifier"], row["method"]): row["all (6)"] for row in accuracy}
    assert right["One", "certain, one pass"] == right["One", "certain, two passes"] == "50.00"
    gained = {(row["classifier"], row["method"]): row["all (6)"] for row in difference}
    assert gained["One", "certain, one pass"].startswith(f"{50 - float(right['One', 'base']):+.2f} [")
    assert ("One", "base") not in gained
    assert [list(row)[2:] for row in kinds] == 6 * [["two things (6)", "textures (3)"]]
    assert {row["classifier"] for row in kinds} == {"mean"}
    assert kinds[2]["two things (6)"] == gained["mean", "certain, one pass"]


def test_evidence_is_magnified():
    torch.manual_seed(0)
    classifier = timm.create_model("test_resnet").eval()
    images, source = torch.rand(2, 3, 64, 64), torch.rand(2, 3, 128, 128)
    with torch.no_grad():
        weight = evidence_weight(classifier, images)
        forms = magnified(classifier, images, source, (1.0, 1.3))
    assert weight.amax(dim=(1, 2)).tolist() == [1, 1]
    assert weight.min() == 0
    assert [form.shape for form in forms.values()] == 2 * [images.shape]
    torch.testing.assert_close(forms[1.0], resize_cubic(source, 64, 64), atol=1e-4, rtol=0)
    assert (forms[1.3] - forms[1.0]).abs().mean() > 0.01
    assert magnified(classifier, images, source, ()) == {}


def test_what_is_missing_is_named(data: Path, tmp_path: Path):
    with pytest.raises(DataError, match="efficientnet_lite0 or resnet50"):
        load_classifier(tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"no weights at .*resnet50\.safetensors; name"):
        load_classifier(tmp_path / "resnet50.safetensors")
    (data / "boxes.csv").write_text("image,left,top,right,bottom\nphoto_0,0,0,1,1\n")
    with pytest.raises(DataError, match=r"no row for photo_\d"):
        read_photographs(data, [1.0])
