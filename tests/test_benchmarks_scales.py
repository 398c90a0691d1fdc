"""The benchmark of frozen classifiers on locally scaled photographs."""

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from tiny_imagenet import write_scaled_discs
from torch import nn

from benchmarks import __main__ as command
from benchmarks import classifiers, photograph_scales
from benchmarks.classifiers import Classifier
from localscale.errors import CheckpointError
from localscale.lab.backbones.catalogue import Normalise


class Certain(nn.Module):
    """An adapted model that is certain of the first class, so a third of its answers are right and none change."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[-1] == 448
        return 100 * nn.functional.one_hot(torch.zeros(len(images), dtype=torch.int64), 1000).float()


def test_every_method_is_measured_at_every_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    halves = Normalise((0.5,) * 3, (0.5,) * 3)
    monkeypatch.setattr(classifiers, "CLASSIFIERS", {"one": Classifier("One", "test_resnet", halves, 0.9)})
    monkeypatch.setattr(photograph_scales, "adapted_to", lambda base, config: Certain())
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "one.safetensors")
    target = tmp_path / "scales.json"
    options = ["--scaled", write_scaled_discs(tmp_path), "--weights", tmp_path / "one.safetensors"]
    options += ["--adapt", "certain", "--batch-size", 6, "--limit", 5, "--json", target]
    monkeypatch.setattr("sys.argv", ["benchmarks", "--suite", "photograph-scales", *map(str, options)])
    command.main()
    written = json.loads(target.read_text())
    assert "--scaled DIR --weights one.safetensors --adapt certain --limit 5" in written["command"]
    scales, differences = (table["rows"] for table in written["tables"])
    assert [row["method"] for row in scales] == [
        *("base", "base, with its mirror image", "certain, one pass", "certain, two passes")
    ]
    assert [name for name in scales[0] if "×" in name] == ["×0.8", "×1", "×1.2"]
    certain = scales[2]
    assert certain["mean"] == certain["×0.8"] == "40.00", "of five discs of three classes, two are of the first"
    assert (certain["deviation"], certain["InvE 10⁻²"]) == ("0.00", "0.00")
    assert [row["method"] for row in differences] == [row["method"] for row in scales[1:]]
    gained = 40 - float(scales[0]["mean"])
    assert differences[1]["mean accuracy"].startswith(f"{gained:+.2f} [")
    assert differences[1]["InvE"] == "0.00 ×"


def test_a_run_is_read_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    halves = Normalise((0.5,) * 3, (0.5,) * 3)
    monkeypatch.setattr(classifiers, "CLASSIFIERS", {"one": Classifier("One", "test_resnet", halves, 0.9)})
    model, folder = timm.create_model("test_resnet").eval(), tmp_path / "one-base_plus" / "seed0"
    folder.mkdir(parents=True)
    save_file({f"base.{name}": tensor for name, tensor in model.state_dict().items()}, folder / "weights.safetensors")
    images = torch.rand(1, 3, 96, 96)
    with torch.no_grad():
        assert torch.allclose(classifiers.load_classifier(folder)(images), model(images), atol=1e-6)
    assert classifiers.title_of(folder) == "one-base_plus/seed0"
    with pytest.raises(CheckpointError, match=r"no weights at .*seed1; name safetensors files or runs' folders"):
        classifiers.load_classifier(folder.with_name("one-seed1"))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["benchmarks", "--suite", "photograph-scales"])
    with pytest.raises(SystemExit, match="--scaled DIR and --weights FILE"):
        command.main()
