"""What can go wrong before a model runs."""

from pathlib import Path

import pytest
import torch

from localscale.errors import ConfigError, DataError
from localscale.lab.data.imagenet import ImageNetOptions
from localscale.lab.data.imagenet.weights import check_device, loading, with_absolute_paths


def test_every_path_becomes_absolute_and_hub_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sam").mkdir()
    paths = ("images", "class_index", "classifier_weights", "boxes", "sam_encoder", "sam_decoder", "masks", "lama")
    options = with_absolute_paths(ImageNetOptions(**{name: Path(name) for name in paths}, sam_model="sam"))
    assert all(getattr(options, name) == tmp_path / name for name in paths)
    assert options.sam_model == str(tmp_path / "sam")
    assert options.dino_model == "IDEA-Research/grounding-dino-tiny"
    assert with_absolute_paths(ImageNetOptions(Path("images"))).lama is None


def test_devices(monkeypatch: pytest.MonkeyPatch):
    assert check_device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert check_device("cuda:0") == "cuda:0"
    with pytest.raises(ConfigError, match="device cuda:1: this PyTorch sees 1 CUDA devices; use --device cpu"):
        check_device("cuda:1")


def test_our_own_errors_pass_and_others_become_a_sentence():
    with pytest.raises(ConfigError, match="mine"), loading("it", "do"):
        raise ConfigError("mine")
    with pytest.raises(DataError, match=r"it cannot be loaded \(RuntimeError: no message\); do"), loading("it", "do"):
        raise RuntimeError
