"""Errors of damaged or mismatched folders."""

import contextlib
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import torch
from backbones import RESNET, VIT, save_trained, train_head, trained, vit
from safetensors.torch import load_file, save_file
from torch import nn

from localscale import AdaptedModel, DECConfig, adapt
from localscale.errors import CheckpointError, ConfigError, OutputError
from localscale.tensor_files import read_tensors, write_tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_trained(tmp_path)


# Folders that cannot be loaded


def refused(folder: Path, base: nn.Module | None = None, error: type[Exception] = CheckpointError) -> str:
    """Return the error message, and assert that the base is unchanged."""
    base = VIT.build() if base is None else base
    modules, state = dict(base.named_modules()), {name: t.clone() for name, t in base.state_dict().items()}
    with pytest.raises(error) as caught:
        AdaptedModel.from_pretrained(folder, base)
    assert dict(base.named_modules()) == modules
    assert all(torch.equal(tensor, state[name]) for name, tensor in base.state_dict().items())
    return str(caught.value)


def edit_config(folder: Path, edit: Callable[[dict], object]) -> None:
    """Edit ``config.json`` in a folder as earlier versions wrote it, where it is the only description."""
    edit_tensors(folder, lambda tensors: None)
    path = folder / "config.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    edit(description)
    path.write_text(json.dumps(description), encoding="utf-8")


def edit_tensors(folder: Path, edit: Callable[[dict], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def edit_description(folder: Path, edit: Callable[[dict], object]) -> None:
    tensors, metadata = read_tensors(folder / "model.safetensors")
    description = json.loads(metadata["localscale"])
    edit(description)
    write_tensors(folder / "model.safetensors", tensors, {"localscale": json.dumps(description)})
    (folder / "config.json").write_text(json.dumps(description), encoding="utf-8")


def test_missing_folder(tmp_path: Path):
    gone = tmp_path / "gone"
    expected = f"no config.json in {gone}; expected a folder written by save_pretrained, or by transformers' Trainer"
    assert refused(gone) == expected


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file(name: str, folder: Path):
    edit_config(folder, lambda description: None)
    (folder / name).unlink()
    assert refused(folder).startswith(f"no {name} in {folder}; expected a folder written by save_pretrained")


@pytest.mark.parametrize("text", [b'{"format": 1', b"\xff\xfe\x00", b"[" * 100_000])
def test_broken_json(text: bytes, folder: Path):
    edit_config(folder, lambda description: None)
    (folder / "config.json").write_bytes(text)
    assert refused(folder).startswith(f"{folder / 'config.json'} cannot be read: ")


def test_json_of_something_else(folder: Path):
    edit_config(folder, lambda description: None)
    (folder / "config.json").write_text("[1, 2]", encoding="utf-8")
    assert (
        refused(folder)
        == f"{folder / 'config.json'} does not hold a JSON object; expected a file written by save_pretrained"
    )
    (folder / "config.json").write_text('{"format": 1, "config": {}, "versions": {}}', encoding="utf-8")
    lacks = "lacks input_size, base_model, base_digest; expected a file written by save_pretrained"
    assert refused(folder) == f"{folder / 'config.json'} {lacks}"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "format",
            1,
            f"has format 1, written by localscale {metadata.version('localscale')}, ",
        ),
        ("format", "new", "has format 'new'"),
        ("input_size", [3, 64], "has input_size [3, 64]; expected [channels, height, width]"),
        ("input_size", [3, 64, -1], "has input_size [3, 64, -1]; expected [channels, height, width]"),
        ("base_model", "vit", "has base_model 'vit'; expected its class and name"),
    ],
)
def test_wrong_field(field: str, value: object, message: str, folder: Path):
    edit_config(folder, lambda description: description.update({field: value}))
    assert refused(folder).startswith(f"{folder / 'config.json'} {message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"knotz": 4}, "DECConfig has no field 'knotz': did you mean knots?"),
        ({"family": "grids"}, "family is 'grids': did you mean grid?"),
        ({"knots": [4]}, "knots has 1 entries for 2 sites; expected one per site, or a single integer for all"),
        ({"sites": [{"path": "input", "colour": 1}]}, "a site has no field 'colour': "),
        ({"temperature": None}, "temperature is None; expected a number"),
    ],
)
def test_wrong_configuration(change: dict, message: str, folder: Path):
    edit_config(folder, lambda description: description["config"].update(change))
    found = refused(folder)
    assert found.startswith(f"{folder} holds a configuration this version cannot use: {message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "has format 1, written by localscale "),
        ({"input_size": [3.0, 64, 64]}, "has input_size [3.0, 64, 64]; expected [channels, height, width]"),
        ({"source_size": "large"}, "has source_size 'large'; expected [height, width] or null"),
        ({"base_digest": 7}, "has base_digest 7; expected a text or null"),
        ({"base_model": {"class": 1, "name": "vit"}}, "has base_model {'class': 1, 'name': 'vit'}; expected"),
        ({"preprocessing": {"mean": "grey"}}, "has preprocessing that cannot be read"),
    ],
)
def test_wrong_description(change: dict, message: str, folder: Path):
    edit_description(folder, lambda description: description.update(change))
    assert refused(folder).startswith(f"{folder / 'model.safetensors'} {message}")


@pytest.mark.parametrize("text", [None, b'{"format": 2', b"{}"])
def test_another_config_json_changes_nothing(text: bytes | None, folder: Path):
    """It is a copy: a save that is interrupted may leave the one of the earlier model."""
    path = folder / "config.json"
    path.unlink() if text is None else path.write_bytes(text)
    with contextlib.nullcontext() if text is None else pytest.warns(UserWarning, match=r"config.json differs from"):
        loaded = AdaptedModel.from_pretrained(folder, VIT.build())
    assert torch.equal(loaded(VIT.images()), trained()(VIT.images()))


def test_a_folder_of_an_earlier_version_loads(folder: Path):
    edit_config(folder, lambda description: None)
    loaded = AdaptedModel.from_pretrained(folder, VIT.build())
    assert torch.equal(loaded(VIT.images()), trained()(VIT.images()))


def test_a_flipped_bit_is_refused(folder: Path):
    path = folder / "model.safetensors"
    whole = bytearray(path.read_bytes())
    for place in (12, 200, 1000, len(whole) // 2, len(whole) - 1):
        whole[place] ^= 4
        path.write_bytes(whole)
        assert refused(folder).startswith(f"{path} cannot be read (")
        whole[place] ^= 4


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000, "file/below"])
def test_names_that_no_folder_can_have(name: str, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        trained().save_pretrained(tmp_path / name)
    with pytest.raises(CheckpointError):
        AdaptedModel.from_pretrained(tmp_path / name, VIT.build())


def test_a_folder_that_is_a_file_or_number(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written: File exists"):
        trained().save_pretrained(tmp_path / "file")
    for folder in (3, None, b"name"):
        with pytest.raises(ConfigError, match=r"folder is .*; expected a path"):
            trained().save_pretrained(folder)
        with pytest.raises(ConfigError, match=r"source is .*; expected"):
            AdaptedModel.from_pretrained(folder, VIT.build())


@pytest.mark.parametrize("keep", [0, 0.5])
def test_truncated_weights(keep: float, folder: Path):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if 0 < keep < 1 else int(keep)])
    found = refused(folder)
    assert found == f"{path} cannot be read (its header is incomplete); was it copied whole? Copy or save it again" or (
        found.startswith(f"{path} cannot be read (the checksum of its tensors is ") and keep
    )


def test_missing_tensors(folder: Path):
    edit_tensors(folder, lambda tensors: tensors.pop("canonicalizers.blocks.0.network.to_x.weight"))
    missing = "lacks 1 tensors, such as canonicalizers.blocks.0.network.to_x.weight"
    assert refused(folder).startswith(f"{folder / 'model.safetensors'} {missing}")


def test_extra_tensors(folder: Path):
    edit_tensors(folder, lambda tensors: tensors.update({"base.heat.weight": torch.zeros(5)}))
    found = refused(folder)
    assert "holds 1 tensors that this VisionTransformer does not have, base.heat.weight among them" in found
    assert "did you mean base.head.weight" in found
    assert found.endswith("it was saved from a timm.models.vision_transformer.VisionTransformer")


def test_another_class(folder: Path):
    found = refused(folder, RESNET.build())
    assert found.startswith(
        f"{folder} was saved from a timm.models.vision_transformer.VisionTransformer and does not fit this ResNet: "
    )
    assert 'no module "blocks.0" in ResNet' in found or "did not run on a blank" in found


def test_another_width(folder: Path):
    found = refused(folder, vit(embed_dim=24))
    assert found.startswith("canonicalizers.blocks.0.network.trunk.layers.0.weight has shape (8, 48, 3, 3) in ")
    assert "and (8, 24, 3, 3) in this VisionTransformer" in found


def test_another_image_size(folder: Path):
    found = refused(folder, vit(img_size=96))
    assert "does not fit this VisionTransformer: VisionTransformer did not run on a blank 3×64×64 image" in found


def test_another_head(tmp_path: Path):
    train_head(trained()).save_pretrained(tmp_path)
    found = refused(tmp_path, vit(num_classes=7))
    assert found.startswith(f"base.head.bias has shape (5,) in {tmp_path / 'model.safetensors'} and (7,)")


def test_another_architecture_warns_even_if_every_tensor_fits(tmp_path: Path):
    """A canonicalizer of the input fits every network that takes colour images."""
    trained(sites=("input",)).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="the base model's weights are not the ones") as caught:
        AdaptedModel.from_pretrained(tmp_path, RESNET.build())
    assert "vit_tiny_patch16_224" in str(caught[0].message)


def test_an_adapted_base_is_refused(folder: Path):
    model = adapt(VIT.build(), DECConfig(sites=("blocks.1",)))
    assert "this VisionTransformer is already adapted; call unwrap() first" in refused(folder, model.base)


def test_a_warning_made_an_error_leaves_the_base_as_it_was(folder: Path):
    assert "weights are not the ones" in refused(folder, VIT.build(seed=5), UserWarning)
