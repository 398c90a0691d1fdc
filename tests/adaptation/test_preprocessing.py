"""Preprocessing: it is the library's own, survives JSON, and travels with the model."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import transformers
from backbones import CUSTOM, HF_VIT, VIT, trained
from hub_imitation import Hub
from PIL import Image

from localscale import AdaptedModel, DECConfig, Preprocessing, SizeNetwork, adapt
from localscale.errors import CheckpointError, ConfigError
from localscale.tensor_files import read_tensors, write_tensors

HALF = (0.5, 0.5, 0.5)
SIZES = DECConfig(knots=6, network=SizeNetwork(width=8, blocks=0))


def photograph(width: int = 90, height: int = 70, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).resize((4 * width, 4 * height), Image.Resampling.BICUBIC).convert(mode)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "test_efficientnet", "tf_efficientnet_lite0"])
def test_it_is_timms(name: str):
    model = timm.create_model(name)
    own = Preprocessing.of(model)
    assert own is not None
    expected = timm.data.create_transform(**timm.data.resolve_model_data_config(model))(photograph())
    assert torch.allclose(own.transform()(photograph()), expected, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"height": 48, "width": 48}},
        {"size": {"shortest_edge": 64}, "crop_size": {"height": 48, "width": 48}, "do_center_crop": True},
    ],
)
def test_it_is_that_of_an_image_processor(settings: dict):
    kind = transformers.BitImageProcessorPil if "crop_size" in settings else transformers.ViTImageProcessorPil
    processor = kind(image_mean=HALF, image_std=HALF, resample=3, **settings)
    own = Preprocessing.of(processor)
    assert own is not None
    expected = processor(photograph(), return_tensors="pt")["pixel_values"][0]
    assert own.transform()(photograph()).shape == expected.shape
    assert torch.allclose(own.transform()(photograph()), expected, atol=0.02)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 32}, "crop_pct": 0.875}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
        ("ViTImageProcessor", {"size": {"height": 32, "width": 32}, "do_normalize": False}),
    ],
)
def test_processors_that_crop_or_normalise_in_their_own_way(kind: str, settings: dict):
    processor = getattr(transformers, kind)(**settings)
    found = Preprocessing.of(processor)
    assert found is not None
    expected = processor(photograph(), return_tensors="pt")["pixel_values"][0]
    mine = found.transform()(photograph())
    assert mine.shape == expected.shape
    assert float((mine - expected).abs().mean()) < 0.02


def test_a_processor_that_reverses_the_channels_has_no_preprocessing():
    assert Preprocessing.of(transformers.MobileViTImageProcessor()) is None


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "P"])
def test_any_kind_of_image_gives_three_channels(mode: str):
    preprocessing = Preprocessing(HALF, HALF, (3, 32, 48))
    image = photograph(mode=mode)
    image = image.convert("RGB") if mode in ("CMYK", "P") else image
    assert preprocessing.transform()(image).shape == (3, 32, 48)


def test_it_travels_with_the_model(tmp_path: Path):
    model = trained()
    assert model.preprocessing == Preprocessing(HALF, HALF, (3, 64, 64), "bicubic", 0.9)
    model.preprocessing = Preprocessing((0.1, 0.2, 0.3), HALF, (3, 64, 64), "bilinear", keep_ratio=False)
    model.save_pretrained(tmp_path)
    assert AdaptedModel.from_pretrained(tmp_path, VIT.build()).preprocessing == model.preprocessing
    assert "preprocessing.transform()" in (tmp_path / "README.md").read_text(encoding="utf-8")


def saved_base(folder: Path, **settings: object) -> Path:
    """A folder with a transformers model and its image processor."""
    transformers.ViTForImageClassification(transformers.ViTConfig(**HF_VIT)).save_pretrained(folder)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3], **settings)
    processor.save_pretrained(folder)
    return folder


def test_a_base_of_transformers_brings_it_from_its_folder(tmp_path: Path):
    folder = saved_base(tmp_path / "base", resample=2)
    model = adapt(transformers.ViTForImageClassification.from_pretrained(folder), SIZES, input_size=(3, 32, 32))
    expected = Preprocessing((0.1, 0.2, 0.3), HALF, (3, 32, 32), "bilinear", keep_ratio=False)
    assert model.preprocessing == expected
    model.save_pretrained(tmp_path / "saved")
    assert AdaptedModel.from_pretrained(tmp_path / "saved").preprocessing == expected
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "saved")
    assert Preprocessing.of(processor) == expected
    pixels = processor(photograph(), return_tensors="pt")["pixel_values"][0]
    assert torch.allclose(pixels, expected.transform()(photograph()), atol=0.05)


def test_a_base_of_transformers_brings_it_from_its_repository(hub: Hub, tmp_path: Path):
    files = {path.name: path.read_bytes() for path in saved_base(tmp_path).iterdir()}
    hub.repositories["org/vit"] = files
    base = transformers.ViTForImageClassification.from_pretrained("org/vit")
    found = Preprocessing.of(base)
    assert found is not None
    assert found.mean == (0.1, 0.2, 0.3)
    del files["preprocessor_config.json"]
    assert Preprocessing.of(base) is None
    files["preprocessor_config.json"] = b"[]"
    assert Preprocessing.of(base) is None


def test_a_hub_out_of_reach_leaves_it_unknown_at_once(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hub.repositories["org/vit"] = {path.name: path.read_bytes() for path in saved_base(tmp_path).iterdir()}
    base = transformers.ViTForImageClassification.from_pretrained("org/vit")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert Preprocessing.of(base) is None
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    started = time.perf_counter()
    assert Preprocessing.of(base) is None
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "given",
    [
        Preprocessing(HALF, HALF, (3, 48, 48), "bicubic", 0.75),
        Preprocessing(HALF, HALF, (3, 48, 48), "nearest"),
        Preprocessing(HALF, HALF, (3, 48, 64), "bilinear", keep_ratio=False),
    ],
)
def test_transformers_reads_it(given: Preprocessing, tmp_path: Path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given.to_processor()), encoding="utf-8")
    assert Preprocessing.in_folder(tmp_path) == given
    found = transformers.AutoImageProcessor.from_pretrained(tmp_path)(photograph(), return_tensors="pt")["pixel_values"]
    assert (found[0] - given.transform()(photograph())).abs().mean() < 0.02


def test_a_model_that_declares_none_has_none(tmp_path: Path):
    backbone = CUSTOM["custom NCHW"]
    model = trained(backbone)
    assert model.preprocessing is None
    model.save_pretrained(tmp_path)
    assert AdaptedModel.from_pretrained(tmp_path, backbone.build()).preprocessing is None


def test_a_folder_without_it_loads(tmp_path: Path):
    trained().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors, metadata = read_tensors(path)
    description = json.loads(metadata["localscale"])
    del description["preprocessing"], description["results"]
    write_tensors(path, tensors, {"localscale": json.dumps(description)})
    (tmp_path / "config.json").unlink()
    assert AdaptedModel.from_pretrained(tmp_path, VIT.build()).preprocessing == trained().preprocessing


def test_values_that_cannot_be_are_refused(tmp_path: Path):
    for wrong, message in (
        ({"mean": (0.5,)}, "expected one mean and one positive std per channel"),
        ({"std": (0.5, 0.5, 0)}, "expected one mean and one positive std per channel"),
        ({"crop": 0}, "a crop between 0 and 1"),
        ({"crop": "x"}, "crop is 'x'; expected a number"),
        ({"input_size": (3, 32)}, r"input_size is \(3, 32\); expected a tuple"),
        ({"input_size": (3, 32.5, 32)}, r"input_size is \(3, 32.5, 32\); expected a tuple"),
        ({"mean": (0.5, 0.5, float("nan"))}, "expected one mean"),
        ({"mean": 3}, "mean is 3; expected a tuple"),
        ({"interpolation": "lanczos"}, "expected one of nearest, bilinear, bicubic"),
    ):
        with pytest.raises(ConfigError, match=message):
            Preprocessing(**{"mean": HALF, "std": HALF, "input_size": (3, 32, 32), **wrong})
    with pytest.raises(ConfigError, match="has no field 'means': did you mean mean"):
        Preprocessing.from_dict({"means": HALF})
    with pytest.raises(ConfigError, match="incomplete"):
        Preprocessing.from_dict({"mean": HALF})
    trained().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    write_tensors(path, read_tensors(path)[0])  # as earlier versions wrote it: only config.json describes the model
    description = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    description["preprocessing"] = [1]
    (tmp_path / "config.json").write_text(json.dumps(description), encoding="utf-8")
    with pytest.raises(CheckpointError, match="the preprocessing is list; expected a dictionary"):
        AdaptedModel.from_pretrained(tmp_path, VIT.build())


def test_it_takes_the_size_that_the_model_was_adapted_with():
    model = adapt(timm.create_model("resnet18"), input_size=(3, 96, 64))
    assert model.preprocessing is not None
    assert model.preprocessing.transform()(photograph()).shape == (3, 96, 64)
