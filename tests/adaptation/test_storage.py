"""Saving and loading adapted models."""

import json
from pathlib import Path

import pytest
import torch
from backbones import (
    BACKBONES,
    CUSTOM,
    RESNET,
    VIT,
    logits,
    randomise_heads,
    save_trained,
    train_head,
    trained,
)
from safetensors.torch import load_file
from torch import Tensor, nn

import localscale
from localscale import AdaptedModel, DECConfig, Site, adapt
from localscale.adaptation import storage
from localscale.errors import ConfigError

FILES = ["README.md", "config.json", "model.safetensors"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_trained(tmp_path)


def answer(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return logits(model.eval()(images))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def own_tensors(model: AdaptedModel) -> set[str]:
    return {f"canonicalizers.{path}.{name}" for path, c in model.canonicalizers.items() for name in c.state_dict()}


def unpublished(name: str, model: AdaptedModel) -> set[str]:
    """The base's tensors that cannot be downloaded: a head for 5 classes, or all if the model has no published name."""
    names = set(model.base_state())
    return {"timm ResNet": {"fc.weight", "fc.bias"}, "transformers ViT": names}.get(name, set())


# Round trips


@pytest.mark.parametrize(
    ("name", "source"),
    [("timm ViT", "image"), ("timm Swin", "latent"), ("timm ResNet", "latent"), ("transformers ViT", "image")],
)
def test_round_trip_on_a_fresh_base(name: str, source: str, tmp_path: Path):
    backbone = BACKBONES[name]
    model, images = trained(backbone, source=source), backbone.images()
    model.save_pretrained(tmp_path)
    base = backbone.build()
    assert not torch.equal(answer(base, images), answer(model, images))
    loaded = AdaptedModel.from_pretrained(tmp_path, base)
    assert loaded.base is base
    assert loaded.dec_config == model.dec_config
    assert loaded.sites == model.sites
    assert loaded.input_size == model.input_size
    assert torch.equal(answer(loaded, images), answer(model, images))
    saved = set(load_file(tmp_path / "model.safetensors")) - own_tensors(model)
    assert saved == {f"base.{tensor}" for tensor in unpublished(name, loaded)}, "no other tensor of the base is saved"


@pytest.mark.parametrize(("update", "family"), [("compose", "grid"), ("descent", "separable")])
def test_every_setting_comes_back(update: str, family: str, tmp_path: Path):
    settings = {"update": update, "family": family, "knots": ((5, 3), 4), "fixed_steps": True, "guard": None}
    model = randomise_heads(VIT.adapted(max_steps=3, temperature=2.0, gradient="phantom(2)", **settings))
    model.save_pretrained(str(tmp_path / "new" / "folder"))
    loaded = AdaptedModel.from_pretrained(str(tmp_path / "new" / "folder"), VIT.build())
    assert loaded.dec_config == model.dec_config
    assert torch.equal(answer(loaded, VIT.images()), answer(model, VIT.images()))


def test_a_described_site_comes_back(tmp_path: Path):
    backbone = CUSTOM["custom tokens"]
    model = trained(backbone)
    model.save_pretrained(tmp_path)
    loaded = AdaptedModel.from_pretrained(tmp_path, backbone.build())
    assert loaded.sites[1] == backbone.site
    assert isinstance(loaded.dec_config.sites[1], Site)
    assert torch.equal(answer(loaded, backbone.images()), answer(model, backbone.images()))


def test_sites_within_sites_come_back(tmp_path: Path):
    model = trained(RESNET, sites=("layer1", "layer1.0"))
    with torch.no_grad():
        model.base.layer1.wrapped[0].wrapped.conv1.weight.mul_(1.1)
    model.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == own_tensors(model) | {
        *("base.layer1.0.conv1.weight", "base.fc.weight", "base.fc.bias")
    }
    loaded = AdaptedModel.from_pretrained(tmp_path, RESNET.build())
    assert torch.equal(answer(loaded, RESNET.images()), answer(model, RESNET.images()))


def test_half_precision_comes_back(tmp_path: Path):
    model, images = trained().half(), VIT.images().half()
    model.save_pretrained(tmp_path)
    loaded = AdaptedModel.from_pretrained(tmp_path, VIT.build().half())
    assert torch.equal(answer(loaded, images), answer(model, images))


# The saved tensors


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
    """unwrap returns the base with its trained head, which the next user's base may not have."""
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
    assert saved == {name for name, _ in RESNET.build().named_buffers()} | {"fc.weight", "fc.bias"}
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
        "library": None,  # a ViT of two blocks, which timm cannot build from its name
        "name": "vit_tiny_patch16_224",
        "arguments": {},
        "weights": None,
    }
    assert description["input_size"] == [3, 64, 64]
    assert DECConfig.from_dict(description["config"]).sites == ("input", "blocks.0")
    assert description["versions"]["torch"] == torch.__version__.split("+")[0]
    assert {"python", "localscale", "timm", "safetensors"} <= set(description["versions"])


def test_a_readme_of_something_else_stays(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model, other = AdaptedModel.from_pretrained(folder, BACKBONES["timm ViT"].build()), tmp_path / "project"
    model.save_pretrained(folder, results={"accuracy": 0.93})
    assert "0.93" in (folder / "README.md").read_text(encoding="utf-8"), "our own card is written again"
    assert not caplog.text
    other.mkdir()
    (other / "README.md").write_bytes(b"# My project \xff")
    model.save_pretrained(other)
    assert (other / "README.md").read_bytes() == b"# My project \xff"
    assert (other / "model.safetensors").exists()
    assert "README.md is no model card of localscale, so it stays as it is" in caplog.text


def test_the_card_names_the_base_and_the_sites(folder: Path):
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "# vit_tiny_patch16_224 with deep equilibrium canonicalizers" in card
    assert "| sites | `input`, `blocks.0` |" in card
    assert "| family, update | grid, direct |" in card
    assert "| base tensors saved here | 0 |" in card
    assert f"torch {torch.__version__.split('+')[0]}" in card
    assert "base_model)  # base_model: vit_tiny_patch16_224 with the weights it had" in card
    assert str(folder) not in card


def card_of(model: AdaptedModel, folder: Path, **settings) -> str:
    model.save_pretrained(folder, **settings)
    return (folder / "README.md").read_text(encoding="utf-8")


def test_the_card_claims_nothing_for_an_untrained_model(tmp_path: Path):
    model = VIT.adapted()
    card = card_of(model, tmp_path)
    assert "**Not trained:** the canonicalizers leave everything as it is" in card
    assert "No results were given" in card
    assert card_of(adapt(RESNET.build(), input_size=(3, 64, 64)), tmp_path).count("**Not trained:**") == 1
    with torch.no_grad():
        model.canonicalizers["input"].network.to_x.weight.add_(0.1)
    assert "**Not trained:** the canonicalizers at `blocks.0` leave" in card_of(model, tmp_path)
    assert "The canonicalizers were trained." in card_of(trained(), tmp_path)


def test_the_card_tells_when_sizes_were_learned(tmp_path: Path):
    model = adapt(RESNET.build(), input_size=(3, 64, 64))
    model.size_canonicalizer().network.trust.fill_(0.5)
    assert "The canonicalizers were trained." in card_of(model, tmp_path)


def test_the_card_states_what_was_measured(tmp_path: Path):
    results = {"accuracy": 0.91234567, "invariance error": {"squared": 1e-3}, "data": "my | photographs"}
    card = card_of(trained(), tmp_path, results=results)
    for row in ("| accuracy | 0.9123 |", "| invariance error.squared | 0.001 |", "| data | my \\| photographs |"):
        assert row in card
    assert "No results" not in card
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["results"] == results


@pytest.mark.parametrize("value", [float("nan"), torch.zeros(2), {1, 2}])
def test_results_that_are_not_json_are_refused(value: object, tmp_path: Path):
    with pytest.raises(ConfigError, match="results cannot be written as JSON"):
        trained().save_pretrained(tmp_path / "new", results={"accuracy": value})
    assert not (tmp_path / "new").exists()


def test_the_library_does_not_use_pickle():
    sources = list(Path(localscale.__file__).parent.rglob("*.py"))
    assert len(sources) > 20
    for path in sources:
        text = path.read_text(encoding="utf-8")
        words = ["torch.load(", "torch.save("]
        if "lab" not in path.parts:  # there, items are pickled between processes, never in files
            words += ["import pickle", "pickle."]
        for word in words:
            assert word not in text, f"{path} uses {word}"


# Other base weights


def test_other_base_weights_warn(folder: Path):
    base = VIT.build(seed=5)
    with pytest.warns(UserWarning, match="weights are not the ones") as caught:
        AdaptedModel.from_pretrained(folder, base)
    assert [str(warning.message) for warning in caught] == [
        f"the base model's weights are not the ones {folder} was trained with (vit_tiny_patch16_224); "
        "load those before calling from_pretrained"
    ]
    assert caught[0].filename == __file__, "the warning points at the caller"


def test_other_weights_beside_a_trained_head_warn(tmp_path: Path):
    train_head(trained()).save_pretrained(tmp_path)
    base = VIT.build()
    with torch.no_grad():
        base.head.weight.zero_()  # replaced on loading, so no warning
    AdaptedModel.from_pretrained(tmp_path, base).unwrap()
    with torch.no_grad():
        base.norm.weight.add_(1)
    with pytest.warns(UserWarning, match="weights are not the ones"):
        AdaptedModel.from_pretrained(tmp_path, base)


# A disk that fills up


def full_disk(*args, **kwargs):
    raise OSError(28, "No space left on device")


def half_a_file(path, tensors, metadata):
    Path(path).write_bytes(b"half a file")
    full_disk()


def test_a_failing_write_leaves_the_old_files(folder: Path, monkeypatch: pytest.MonkeyPatch):
    before = contents(folder)
    monkeypatch.setattr(storage, "write_tensors", half_a_file)
    with pytest.raises(OSError, match="No space left"):
        train_head(trained()).save_pretrained(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("broken", ["README.md", "config.json"])
def test_a_write_that_fails_late_leaves_all_old_files(broken: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """New weights with an old config.json would be a different model."""
    before, write_text = contents(folder), Path.write_text

    def until_full(path: Path, *args, **kwargs):
        return full_disk() if broken in path.name else write_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", until_full)
    with pytest.raises(OSError, match="No space left"):
        train_head(trained()).save_pretrained(folder)
    assert contents(folder) == before


def test_a_failing_first_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storage, "write_tensors", half_a_file)
    with pytest.raises(OSError, match="No space left"):
        trained().save_pretrained(tmp_path)
    assert contents(tmp_path) == {}
