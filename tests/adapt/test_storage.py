"""Saving and loading adapted models, and every way a folder can be wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from backbones import BACKBONES, CUSTOM, RESNET, TRANSFORMERS, VIT, Backbone, logits, randomise_heads, vit
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import localscale
from localscale import AdaptedModel, DECConfig, Site, adapt
from localscale.adapt import storage
from localscale.errors import CheckpointError

LOOSE = {"tolerance": 1e-3, "max_steps": 40}
FILES = ["README.md", "config.json", "model.safetensors"]


def trained(backbone: Backbone = VIT, base: nn.Module | None = None, **settings) -> AdaptedModel:
    return randomise_heads(backbone.adapted(base, **LOOSE | settings))


def answer(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return logits(model.eval()(images))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def own_tensors(model: AdaptedModel) -> set[str]:
    return {f"canonicalizers.{path}.{name}" for path, c in model.canonicalizers.items() for name in c.state_dict()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trained model on VIT's weights, its base unchanged."""
    trained().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


# Round trips


@pytest.mark.parametrize("name", ["timm ViT", "timm Swin", "timm ResNet", "transformers ViT", "torchvision ViT"])
@pytest.mark.parametrize("source", ["latent", "image"])
def test_round_trip_on_a_fresh_base(name: str, source: str, tmp_path: Path):
    backbone = BACKBONES[name]
    model, images = trained(backbone, source=source), backbone.images()
    model.save_pretrained(tmp_path)
    base = backbone.build()
    assert not torch.equal(answer(base, images), answer(model, images))
    loaded = AdaptedModel.from_pretrained(tmp_path, base)
    assert loaded.base is base
    assert loaded.config == model.config
    assert loaded.sites == model.sites
    assert loaded.input_size == model.input_size
    assert torch.equal(answer(loaded, images), answer(model, images))
    assert set(load_file(tmp_path / "model.safetensors")) == own_tensors(model), "an unchanged base is not saved"


@pytest.mark.parametrize("update", ["direct", "compose", "gradient"])
@pytest.mark.parametrize("family", ["grid", "separable"])
def test_every_setting_comes_back(update: str, family: str, tmp_path: Path):
    settings = {"update": update, "family": family, "knots": ((5, 3), 4), "fixed_steps": True, "guard": None}
    model = randomise_heads(VIT.adapted(max_steps=3, temperature=2.0, gradient="phantom(2)", **settings))
    model.save_pretrained(str(tmp_path / "new" / "folder"))
    loaded = AdaptedModel.from_pretrained(str(tmp_path / "new" / "folder"), VIT.build())
    assert loaded.config == model.config
    assert torch.equal(answer(loaded, VIT.images()), answer(model, VIT.images()))


def test_a_described_site_comes_back(tmp_path: Path):
    backbone = CUSTOM["custom tokens"]
    model = trained(backbone)
    model.save_pretrained(tmp_path)
    loaded = AdaptedModel.from_pretrained(tmp_path, backbone.build())
    assert loaded.sites[1] == backbone.site
    assert isinstance(loaded.config.sites[1], Site)
    assert torch.equal(answer(loaded, backbone.images()), answer(model, backbone.images()))


def test_sites_within_sites_come_back(tmp_path: Path):
    model = trained(RESNET, sites=("layer1", "layer1.0"))
    with torch.no_grad():
        model.base.layer1.wrapped[0].wrapped.conv1.weight.mul_(1.1)
    model.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == own_tensors(model) | {"base.layer1.0.conv1.weight"}
    loaded = AdaptedModel.from_pretrained(tmp_path, RESNET.build())
    assert torch.equal(answer(loaded, RESNET.images()), answer(model, RESNET.images()))


def test_half_precision_comes_back(tmp_path: Path):
    model, images = trained().half(), VIT.images().half()
    model.save_pretrained(tmp_path)
    loaded = AdaptedModel.from_pretrained(tmp_path, VIT.build().half())
    assert torch.equal(answer(loaded, images), answer(model, images))


# What is saved


def train_head(model: AdaptedModel) -> AdaptedModel:
    with torch.no_grad():
        model.base.head.weight.add_(0.1)
        model.base.head.bias.sub_(0.1)
    return model


def test_a_trained_head_is_saved_and_kept_when_saved_again(tmp_path: Path):
    model, images = train_head(trained()), VIT.images()
    expected = answer(model, images)
    for folder in (tmp_path / "first", tmp_path / "second"):
        model.save_pretrained(folder)
        saved = load_file(folder / "model.safetensors")
        assert set(saved) == own_tensors(model) | {"base.head.weight", "base.head.bias"}
        assert torch.equal(saved["base.head.bias"], model.base.head.bias)
        model = AdaptedModel.from_pretrained(folder, VIT.build())
        assert torch.equal(answer(model, images), expected)
    first, second = (contents(tmp_path / name) for name in ("first", "second"))
    assert first == second


def test_a_head_trained_on_after_loading_is_saved(tmp_path: Path):
    train_head(trained()).save_pretrained(tmp_path / "first")
    model = train_head(AdaptedModel.from_pretrained(tmp_path / "first", VIT.build()))
    model.save_pretrained(tmp_path / "second")
    loaded = AdaptedModel.from_pretrained(tmp_path / "second", VIT.build())
    assert torch.equal(answer(loaded, VIT.images()), answer(model, VIT.images()))


def test_a_head_the_base_had_already_is_saved_again(tmp_path: Path):
    """The base that comes out of a trained model has the trained head; whoever loads next may not."""
    model = train_head(trained())
    expected = answer(model, VIT.images())
    model.save_pretrained(tmp_path / "first")
    AdaptedModel.from_pretrained(tmp_path / "first", model.unwrap()).save_pretrained(tmp_path / "second")
    loaded = AdaptedModel.from_pretrained(tmp_path / "second", VIT.build())
    assert torch.equal(answer(loaded, VIT.images()), expected)


def test_full_fine_tuning_saves_everything(tmp_path: Path):
    model, images = trained(), VIT.images()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    model.save_pretrained(tmp_path)
    names = {f"base.{name}" for name in VIT.build().state_dict()}
    assert set(load_file(tmp_path / "model.safetensors")) == own_tensors(model) | names
    loaded = AdaptedModel.from_pretrained(tmp_path, VIT.build(seed=5))  # other weights: all are replaced, no warning
    assert torch.equal(answer(loaded, images), answer(model, images))


def test_running_statistics_that_training_changed_are_saved(tmp_path: Path):
    model, images = trained(RESNET), RESNET.images(4)
    with torch.no_grad():
        model.train()(images)
    model.save_pretrained(tmp_path)
    saved = {name.removeprefix("base.") for name in load_file(tmp_path / "model.safetensors") if name[:5] == "base."}
    assert saved == {name for name, _ in RESNET.build().named_buffers()}
    loaded = AdaptedModel.from_pretrained(tmp_path, RESNET.build())
    assert torch.equal(answer(loaded, images), answer(model, images))


def test_three_files_and_nothing_else(folder: Path):
    assert sorted(path.name for path in folder.iterdir()) == FILES
    trained().save_pretrained(folder)
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_the_description_names_the_base_and_the_versions(folder: Path):
    description = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert description["base_model"] == {
        "class": "timm.models.vision_transformer.VisionTransformer",
        "name": "vit_tiny_patch16_224",
    }
    assert description["input_size"] == [3, 64, 64]
    assert DECConfig.from_dict(description["config"]).sites == ("input", "blocks.0")
    assert description["versions"]["torch"] == torch.__version__.split("+")[0]
    assert {"python", "localscale", "timm", "safetensors"} <= set(description["versions"])


def test_the_card_names_the_base_and_the_sites(folder: Path):
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "base_model: vit_tiny_patch16_224" in card
    assert "# vit_tiny_patch16_224 with deep equilibrium canonicalizers" in card
    assert "| sites | `input`, `blocks.0` |" in card
    assert "| family, update | grid, direct |" in card
    assert "| base tensors that differ from the base model | 0 |" in card
    assert f"torch {torch.__version__.split('+')[0]}" in card


def test_the_card_of_a_transformers_model(tmp_path: Path):
    trained(TRANSFORMERS["transformers ViT"]).save_pretrained(tmp_path)
    assert "base_model: ViTForImageClassification" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_no_pickle_anywhere():
    sources = list(Path(localscale.__file__).parent.rglob("*.py"))
    assert len(sources) > 20
    for path in sources:
        text = path.read_text(encoding="utf-8")
        for word in ("torch.load(", "torch.save(", "import pickle", "pickle."):
            assert word not in text, f"{path} uses {word}"


# Other base weights


def test_other_base_weights_are_told(folder: Path):
    base = VIT.build(seed=5)
    with pytest.warns(UserWarning, match="weights are not the ones") as caught:
        AdaptedModel.from_pretrained(folder, base)
    assert [str(warning.message) for warning in caught] == [
        f"the base model's weights are not the ones {folder} was trained with (vit_tiny_patch16_224); "
        "load those before calling from_pretrained"
    ]
    assert caught[0].filename == __file__, "the warning points at the caller"


def test_other_weights_beside_a_trained_head_are_told(tmp_path: Path):
    train_head(trained()).save_pretrained(tmp_path)
    base = VIT.build()
    with torch.no_grad():
        base.head.weight.zero_()  # replaced on loading: of no account
    AdaptedModel.from_pretrained(tmp_path, base).unwrap()
    with torch.no_grad():
        base.norm.weight.add_(1)
    with pytest.warns(UserWarning, match="weights are not the ones"):
        AdaptedModel.from_pretrained(tmp_path, base)


# A disk that fills up


def full_disk(*args, **kwargs):
    raise OSError(28, "No space left on device")


def broken_save_file(tensors, path, metadata):
    Path(path).write_bytes(b"half a file")
    full_disk()


def test_a_failing_write_leaves_the_old_files(folder: Path, monkeypatch: pytest.MonkeyPatch):
    before = contents(folder)
    monkeypatch.setattr(storage, "save_file", broken_save_file)
    with pytest.raises(OSError, match="No space left"):
        train_head(trained()).save_pretrained(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("broken", ["README.md", "config.json"])
def test_a_write_that_fails_late_leaves_all_old_files(broken: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """New weights beside an old config.json would be another model than either."""
    before, write_text = contents(folder), Path.write_text

    def until_full(path: Path, *args, **kwargs):
        return full_disk() if broken in path.name else write_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", until_full)
    with pytest.raises(OSError, match="No space left"):
        train_head(trained()).save_pretrained(folder)
    assert contents(folder) == before


def test_a_failing_first_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storage, "save_file", broken_save_file)
    with pytest.raises(OSError, match="No space left"):
        trained().save_pretrained(tmp_path)
    assert contents(tmp_path) == {}


# Folders that cannot be loaded


def refused(folder: Path, base: nn.Module | None = None, error: type[Exception] = CheckpointError) -> str:
    """The message of the refusal; the base comes out as it went in."""
    base = VIT.build() if base is None else base
    modules, state = dict(base.named_modules()), {name: t.clone() for name, t in base.state_dict().items()}
    with pytest.raises(error) as caught:
        AdaptedModel.from_pretrained(folder, base)
    assert dict(base.named_modules()) == modules
    assert all(torch.equal(tensor, state[name]) for name, tensor in base.state_dict().items())
    return str(caught.value)


def edit_config(folder: Path, edit: Callable[[dict], object]) -> None:
    path = folder / "config.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    edit(description)
    path.write_text(json.dumps(description), encoding="utf-8")


def edit_tensors(folder: Path, edit: Callable[[dict], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def test_missing_folder(tmp_path: Path):
    gone = tmp_path / "gone"
    assert refused(gone) == f"no config.json in {gone}; expected a folder written by save_pretrained"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file(name: str, folder: Path):
    (folder / name).unlink()
    assert refused(folder) == f"no {name} in {folder}; expected a folder written by save_pretrained"


@pytest.mark.parametrize("text", [b"", b'{"format": 1', b"\xff\xfe\x00"])
def test_broken_json(text: bytes, folder: Path):
    (folder / "config.json").write_bytes(text)
    assert refused(folder).startswith(f"{folder / 'config.json'} cannot be read: ")


def test_json_of_something_else(folder: Path):
    (folder / "config.json").write_text("[1, 2]", encoding="utf-8")
    assert refused(folder) == f"{folder / 'config.json'} holds no object; expected a file written by save_pretrained"
    (folder / "config.json").write_text('{"format": 1, "config": {}, "versions": {}}', encoding="utf-8")
    lacks = "lacks input_size, base_model, base_digest; expected a file written by save_pretrained"
    assert refused(folder) == f"{folder / 'config.json'} {lacks}"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", 2, "has format 2; this version reads format 1"),
        ("format", "new", "has format 'new'; this version reads format 1"),
        ("input_size", [3, 64], "has input_size [3, 64]; expected [channels, height, width]"),
        ("input_size", [3, 64, -1], "has input_size [3, 64, -1]; expected [channels, height, width]"),
        ("base_model", "vit", "has base_model 'vit'; expected its class and name"),
    ],
)
def test_wrong_field(field: str, value: object, message: str, folder: Path):
    edit_config(folder, lambda description: description.update({field: value}))
    assert refused(folder) == f"{folder / 'config.json'} {message}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"knotz": 4}, "DECConfig has no field 'knotz': did you mean knots?"),
        ({"family": "grids"}, "family is 'grids': did you mean grid?"),
        ({"knots": [4]}, "knots has 1 entries for 2 sites; expected one per site, or a single integer for all"),
        ({"sites": [{"path": "input", "colour": 1}]}, "a site has no field 'colour': "),
        ({"temperature": None}, "a configuration value has the wrong type: "),
    ],
)
def test_wrong_configuration(change: dict, message: str, folder: Path):
    edit_config(folder, lambda description: description["config"].update(change))
    found = refused(folder)
    assert found.startswith(f"{folder / 'config.json'} holds a configuration this version cannot use: {message}")


@pytest.mark.parametrize("keep", [0, 4, 0.5, -1])
def test_truncated_weights(keep: float, folder: Path):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if 0 < keep < 1 else int(keep)])
    found = refused(folder)
    assert found.startswith(f"{path} is not a whole safetensors file (")
    assert found.endswith("; copy or save it again")


def test_missing_tensors(folder: Path):
    edit_tensors(folder, lambda tensors: tensors.pop("canonicalizers.blocks.0.network.to_x.weight"))
    missing = "lacks 1 tensors, canonicalizers.blocks.0.network.to_x.weight among them"
    assert refused(folder) == f"{folder / 'model.safetensors'} {missing}"


def test_extra_tensors(folder: Path):
    edit_tensors(folder, lambda tensors: tensors.update({"base.heat.weight": torch.zeros(5)}))
    found = refused(folder)
    assert "holds 1 tensors this VisionTransformer has no place for, base.heat.weight among them" in found
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


def test_another_architecture_is_told_where_every_tensor_fits(tmp_path: Path):
    """A canonicalizer of the input fits every network that takes colour images."""
    trained(sites=("input",)).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="the base model's weights are not the ones") as caught:
        AdaptedModel.from_pretrained(tmp_path, RESNET.build())
    assert "vit_tiny_patch16_224" in str(caught[0].message)


def test_an_adapted_base_is_refused(folder: Path):
    model = adapt(VIT.build(), DECConfig(sites=("blocks.1",)))
    assert "this VisionTransformer is adapted already; take the base out with unwrap() first" in refused(
        folder, model.base
    )


def test_a_warning_made_an_error_leaves_the_base_as_it_was(folder: Path):
    assert "weights are not the ones" in refused(folder, VIT.build(seed=5), UserWarning)
