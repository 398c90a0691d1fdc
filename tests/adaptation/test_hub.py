"""Models on the Hugging Face Hub, of which ``hub_imitation`` is a small imitation."""

import json
from pathlib import Path

import pytest
import timm
import torch
import torchvision
import transformers
from backbones import HF_VIT, VIT, logits, randomise_heads, trained
from dec_configs import dec_config
from hub_imitation import Hub
from safetensors.torch import load_file, save, save_file
from torch import nn

from localscale import AdaptedModel, adapt
from localscale.adaptation.origin import find_origin
from localscale.errors import CheckpointError, HubError

TOKEN = "write-token"
SETTINGS = {"sites": ("input",), "knots": 4, "channels": (8, 8), "resolution": 16, "max_steps": 3, "fixed_steps": True}
IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def adapted(base: nn.Module, size: int = 64) -> AdaptedModel:
    return randomise_heads(adapt(base, dec_config(**SETTINGS), input_size=(3, size, size))).eval()


def assert_same_answers(one: AdaptedModel, other: AdaptedModel, size: int = 64) -> None:
    images = IMAGES[..., :size, :size]
    with torch.no_grad():
        assert torch.equal(logits(one.eval()(images)), logits(other.eval()(images)))


def publish(hub: Hub, name: str, model: nn.Module) -> None:
    """Put the weights of a timm model where timm downloads them."""
    hub.repositories[name] = {"model.safetensors": save(model.state_dict())}


def downloads(hub: Hub) -> list[str]:
    return [line.removeprefix("GET /") for line in hub.asked if line.startswith("GET /") and "/resolve/" in line]


@pytest.fixture
def resnet(hub: Hub) -> nn.Module:
    """A published timm model with a new head."""
    torch.manual_seed(0)
    publish(hub, "timm/test_resnet.r160_in1k", timm.create_model("test_resnet"))
    return timm.create_model("test_resnet", pretrained=True, num_classes=5)


# Round trips


def test_a_model_comes_back_from_its_id(hub: Hub, resnet: nn.Module):
    model = adapted(resnet)
    assert model.push_to_hub("me/pets", token=TOKEN, results={"accuracy": 0.5}) == f"{hub.address}/me/pets"
    files = hub.repositories["me/pets"]
    assert sorted(files) == ["README.md", "config.json", "model.safetensors"]
    assert len(files["model.safetensors"]) < 100_000, "published weights are not uploaded again"
    card = files["README.md"].decode()
    assert "base_model: timm/test_resnet.r160_in1k" in card
    assert 'ls.AdaptedModel.from_pretrained("me/pets")\n' in card
    assert "| accuracy | 0.5 |" in card
    again = AdaptedModel.from_pretrained("me/pets")
    assert_same_answers(model, again)
    assert again.preprocessing == model.preprocessing
    assert again.num_classes == 5


def test_published_weights_are_downloaded_only_if_they_are_needed(hub: Hub, resnet: nn.Module, tmp_path: Path):
    model = adapted(resnet)
    model.save_pretrained(tmp_path / "few")
    model.save_pretrained(tmp_path / "all", include_base=True)
    hub.asked.clear()
    assert_same_answers(model, AdaptedModel.from_pretrained(tmp_path / "all"))
    assert hub.asked == []
    assert_same_answers(model, AdaptedModel.from_pretrained(tmp_path / "few"))
    assert {path.split("/resolve/")[0] for path in hub.asked} == {"HEAD /timm/test_resnet.r160_in1k"}  # it is cached


def test_random_weights_are_not_called_published(tmp_path: Path):
    torch.manual_seed(0)
    model = adapted(timm.create_model("test_resnet", num_classes=5))
    model.save_pretrained(tmp_path, include_base=True)
    assert "base_model:" not in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_published_weights_that_cannot_be_had(
    hub: Hub, resnet: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    adapted(resnet).save_pretrained(tmp_path / "few")
    hub.repositories.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "another_cache"))
    with pytest.raises(CheckpointError, match=r"the weights test_resnet\.r160_in1k cannot be loaded \(.*base_model\)"):
        AdaptedModel.from_pretrained(tmp_path / "few")


def test_weights_that_were_not_the_published_ones_are_refused(hub: Hub, resnet: nn.Module, tmp_path: Path):
    model = adapted(timm.create_model("test_resnet", num_classes=5))
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"the weights test_resnet\.r160_in1k are not the ones .* base_model"):
        AdaptedModel.from_pretrained(tmp_path)


def test_a_transformers_model_comes_back(hub: Hub, tmp_path: Path):
    torch.manual_seed(0)
    transformers.ViTForImageClassification(transformers.ViTConfig(**HF_VIT)).save_pretrained(tmp_path / "vit")
    hub.repositories["org/tiny-vit"] = {path.name: path.read_bytes() for path in (tmp_path / "vit").iterdir()}
    base = transformers.ViTForImageClassification.from_pretrained(
        "org/tiny-vit", num_labels=7, ignore_mismatched_sizes=True
    )
    origin = find_origin(base)
    assert (origin.weights, origin.hub_id) == ("org/tiny-vit", "org/tiny-vit")
    model = adapted(base, 32)
    model.push_to_hub("me/vit", token=TOKEN)
    again = AdaptedModel.from_pretrained("me/vit")
    assert_same_answers(model, again, 32)
    assert again.config.num_labels == 7


@pytest.mark.parametrize(
    "base",
    [
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**{**HF_VIT, "image_size": 64})),
        lambda: torchvision.models.resnet18(num_classes=5),
        lambda: torchvision.models.squeezenet1_1(num_classes=5),
        lambda: timm.create_model("test_vit", img_size=64, num_classes=5, drop_path_rate=0.1),
    ],
    ids=["transformers", "torchvision", "torchvision SqueezeNet", "timm"],
)
def test_a_model_without_published_weights_comes_back(base, tmp_path: Path):
    model = adapted(base())
    model.save_pretrained(tmp_path, include_base=model.base.__module__.startswith("timm"))
    assert_same_answers(model, AdaptedModel.from_pretrained(tmp_path))


@pytest.mark.parametrize("name", ["lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large"])
def test_finding_a_builder_downloads_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", None)
    with torch.device("meta"):
        base = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=4)
    origin = find_origin(base)
    assert (origin.library, origin.name, origin.arguments["num_classes"]) == ("torchvision", name, 4)


def test_a_latent_site_is_no_part_of_the_base(tmp_path: Path):
    torch.manual_seed(0)
    base = timm.create_model("test_vit", img_size=64, num_classes=5)
    model = randomise_heads(
        adapt(base, dec_config(**{**SETTINGS, "sites": ("blocks.0",)}), input_size=(3, 64, 64))
    ).eval()
    model.save_pretrained(tmp_path, include_base=True)
    assert_same_answers(model, AdaptedModel.from_pretrained(tmp_path))


def test_another_architecture_under_the_same_name_is_not_built(tmp_path: Path):
    base = timm.create_model("vit_tiny_patch16_224", num_heads=6)  # the same tensors as with 3 heads
    assert find_origin(base).library is None
    trained().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="does not say how to build its base model, vit_tiny_patch16_224; build"):
        AdaptedModel.from_pretrained(tmp_path)
    assert_same_answers(trained(), AdaptedModel.from_pretrained(tmp_path, VIT.build()))


# A service that refuses


def test_a_missing_private_or_gated_model_is_one_sentence(hub: Hub):
    hub.repositories |= {"me/secret": {}, "me/gated": {}}
    hub.private.add("me/secret")
    hub.gated.add("me/gated")
    for name, token, sentence in (
        ("me/none", TOKEN, "there is no model me/none on the Hugging Face Hub; check the spelling"),
        ("me/none", None, "me/none does not exist or is private; check the spelling, or log in with "),
        ("me/secret", None, "me/secret does not exist or is private; check the spelling, or log in with "),
        ("me/gated", None, "me/gated needs its owner's permission; ask for it on its page, then log in with "),
    ):
        with pytest.raises(HubError) as caught:
            AdaptedModel.from_pretrained(name, token=token)
        assert str(caught.value).startswith(sentence)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is None, "no traceback of the HTTP library"
        assert caught.value.__suppress_context__


def test_uploading_without_a_token_is_one_sentence(hub: Hub):
    for token in (None, "wrong"):
        with pytest.raises(HubError, match=r"^you may not write to me/pets; log in with `hf auth login`, or"):
            trained().push_to_hub("me/pets", token=token)
    assert hub.repositories == {}


def test_a_repository_of_something_else_is_refused(hub: Hub):
    hub.repositories["me/text"] = {
        "README.md": b"a language model",
        "model.safetensors": save({"weight": torch.zeros(1)}),
    }
    with pytest.raises(CheckpointError, match=r"^no config\.json in "):
        AdaptedModel.from_pretrained("me/text")


def test_a_hub_that_does_not_answer(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"me/pets cannot be loaded: the Hugging Face Hub does not answer, and no copy"):
        AdaptedModel.from_pretrained("me/pets")
    with pytest.raises(HubError, match=r"me/pets cannot be saved"):
        trained().push_to_hub("me/pets", token=TOKEN)


def test_an_id_that_is_none(hub: Hub):
    with pytest.raises(HubError, match=r"'a/b/c' is not the id of a model; expected user/name"):
        trained().push_to_hub("a/b/c", token=TOKEN)
    with pytest.raises(CheckpointError, match=r"no config\.json in a/b/c"):
        AdaptedModel.from_pretrained("a/b/c")


def test_only_the_two_files_are_downloaded(hub: Hub):
    trained().push_to_hub("me/pets", token=TOKEN)
    hub.repositories["me/pets"] |= {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"}
    AdaptedModel.from_pretrained("me/pets", VIT.build())
    assert sorted(path.rpartition("/")[2] for path in downloads(hub)) == ["config.json", "model.safetensors"]


# A file that cannot be trusted


def spoil(folder: Path, **base_model: object) -> None:
    path = folder / "config.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    description["base_model"].update(base_model)
    path.write_text(json.dumps(description), encoding="utf-8")


def test_names_in_the_file_reach_no_path_and_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    local = tmp_path / "org" / "local"
    config = transformers.ViTConfig(**{**HF_VIT, "image_size": 64})
    transformers.ViTForImageClassification(config).save_pretrained(local)
    folder = tmp_path / "saved"
    adapted(transformers.ViTForImageClassification(config)).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if not name.startswith("base.")}, folder / "model.safetensors")
    for change, message in (
        ({"weights": "org/local"}, "'org/local' is not the id of a model"),
        ({"weights": str(local)}, "is not the id of a model"),
        ({"weights": "../org/local"}, "is not the id of a model"),
        ({"name": "AutoModel"}, "transformers has no model 'AutoModel'"),
        ({"name": "logging"}, "transformers has no model 'logging'"),
        ({"library": "os", "name": "system"}, "describes a base model that this version does not know"),
        ({"library": ["timm"]}, "describes a base model that this version does not know"),
        ({"library": "timm", "name": "local-dir:org/local", "arguments": {}}, "timm has no model"),
        ({"library": "timm", "name": "hf-hub:org/local", "arguments": {}}, "timm has no model"),
        ({"library": "timm", "name": "resnet18", "arguments": {"checkpoint_path": "x"}}, "does not know"),
        (
            {"library": "timm", "name": "test_vit", "arguments": {}, "weights": "resnet18.a1_in1k"},
            "timm has no weights",
        ),
        ({"library": "torchvision", "name": "__class__", "arguments": {}}, "torchvision has no model"),
    ):
        spoil(folder, **{"library": "transformers", "name": "ViTForImageClassification", **change})
        with pytest.raises(CheckpointError, match=message) as caught:
            AdaptedModel.from_pretrained(folder)
        assert "base_model" in str(caught.value)


def test_a_configuration_cannot_ask_for_code(tmp_path: Path):
    config = transformers.ViTConfig(**{**HF_VIT, "image_size": 64})
    model = adapted(transformers.ViTForImageClassification(config))
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["base_model"]["arguments"]["config"]
    unsafe = {"auto_map": {"AutoModel": "evil--code.Model"}, "attn_implementation": "evil/kernel"}
    unsafe |= {"_attn_implementation": "evil/kernel", "_name_or_path": "/etc"}
    spoil(tmp_path, arguments={"config": {**settings, **unsafe}})
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors")  # so config.json counts
    again = AdaptedModel.from_pretrained(tmp_path)
    assert_same_answers(model, again)
    assert "evil" not in again.config.to_json_string() + again.config._attn_implementation
