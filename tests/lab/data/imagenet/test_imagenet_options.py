"""Options, devices and loading: errors before a model runs."""

from pathlib import Path

import pytest
import torch

from localscale.errors import ConfigError, DataError
from localscale.lab.data.imagenet import ImageNetOptions
from localscale.lab.data.imagenet.weights import check_device, loading


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scales": ()}, "scales are"),
        ({"scales": (1.0, 0.7)}, "expected increasing order, at least 0.001 apart"),
        ({"scales": (0.0, 1.0)}, "expected numbers from 0.1 to 4"),
        ({"limit": 0}, "limit is 0; expected at least 1"),
        ({"size": 3}, "size is 3; expected at least 16"),
        ({"margin": float("nan")}, "margin is nan; expected 0 to 0.25"),
        ({"min_area": -0.1}, "min_area is -0.1; expected 0 to 1"),
        ({"max_area": 0.001}, "min_area is 0.005; expected less than max_area, 0.001"),
        ({"frame": "cut"}, 'frame is "cut"; expected "clip" or "inside"'),
        ({"dino_threshold": 2.0}, "dino_threshold is 2.0; expected 0 to 1"),
        ({"image_format": "gif"}, 'image_format is "gif"; expected "png" or "jpg"'),
    ],
)
def test_bad_options_are_named(change: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        ImageNetOptions(images=Path(), **change).check()


def test_paths_become_absolute_and_hub_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sam").mkdir()
    paths = ("images", "class_index", "classifier_weights", "boxes", "sam_encoder", "sam_decoder", "masks", "lama")
    options = ImageNetOptions(**{name: Path(name) for name in paths}, sam_model="sam").with_absolute_paths()
    assert all(getattr(options, name) == tmp_path / name for name in paths)
    assert options.sam_model == str(tmp_path / "sam")
    assert options.dino_model == "IDEA-Research/grounding-dino-tiny"
    assert ImageNetOptions(Path("images")).with_absolute_paths().lama is None


def test_devices_must_exist(monkeypatch: pytest.MonkeyPatch):
    assert check_device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert check_device("cuda:0") == "cuda:0"
    with pytest.raises(ConfigError, match="cuda:1: PyTorch sees 1 CUDA devices here; use --device cpu"):
        check_device("cuda:1")


def test_our_own_errors_pass_and_others_get_a_remedy():
    with pytest.raises(ConfigError, match="mine"), loading("it", "do"):
        raise ConfigError("mine")
    with pytest.raises(DataError, match=r"it cannot be loaded \(RuntimeError: no message\); do"), loading("it", "do"):
        raise RuntimeError
