"""Backbones by name, with the weights and the head they should have."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from shared import SHARED
from torch import Tensor, nn

from localscale.errors import CheckpointError, ConfigError, DataError
from localscale.lab.backbones.catalogue import (
    BACKBONES,
    create_backbone,
    load_weights,
    normalisation,
    repeated_blocks,
    standardise_head,
)

DEIT = SHARED / "weights" / "deit_tiny_patch16_224.safetensors"


def vit(classes: int = 10, *, seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    return create_backbone("test_vit", classes=classes, pretrained="none", image_size=32, **settings)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(vit(seed=5).state_dict(), tmp_path / "vit.safetensors")
    return tmp_path / "vit.safetensors"


def differing(model: nn.Module, tensors: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, tensors[name])}


# The table


@pytest.mark.parametrize("name", BACKBONES)
def test_timm_has_it_and_its_sites(name: str):
    backbone = BACKBONES[name]
    assert timm.is_model(backbone.timm_name)
    with torch.device("meta"):
        modules = dict(timm.create_model(backbone.timm_name, num_classes=10).named_modules())
    assert len(set(backbone.sites)) == 3
    assert set(backbone.sites) <= set(modules)


NORMAL = {"deit_tiny_patch16_224": (0.485, 0.456, 0.406), "vit_tiny_patch16_224": (0.5, 0.5, 0.5)}


@pytest.mark.parametrize(("name", "mean"), NORMAL.items())
def test_normalisation_is_what_it_was_pretrained_with(name: str, mean: tuple[float, ...]):
    with torch.device("meta"):
        assert normalisation(timm.create_model(name)).mean == mean


# Making one


def test_classes_size_and_stochastic_depth_are_as_asked():
    model = vit(7, drop_path=0.25)
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert model.pos_embed.shape == (1, 5, 64)
    assert model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.25)
    assert create_backbone("test_vit", classes=0, pretrained="none", image_size=160).pos_embed.shape == (1, 101, 64)


def test_unknown_names_name_the_near_misses():
    with pytest.raises(ConfigError, match=r"timm has no model 'deit_tny_patch16_224': did you mean deit_tiny_patch16_"):
        create_backbone("deit_tny_patch16_224", classes=10, pretrained="none")


def test_unknown_tags_are_reported():
    with pytest.raises(ConfigError, match="fb_in1k"):
        create_backbone("deit_tiny_patch16_224.fb_in2k", classes=10, pretrained="none")


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
def test_convolutional_networks_take_any_size(name: str):
    model = create_backbone(name, classes=3, pretrained="none", image_size=64)
    assert model(torch.rand(2, 3, 64, 64)).shape == (2, 3)


def test_weights_that_cannot_be_downloaded_are_reported(monkeypatch: pytest.MonkeyPatch):
    create = timm.create_model

    def offline(name: str, *, pretrained: bool = False, **settings: Any) -> Any:
        if pretrained:
            raise OSError("Name or service not known. Please check the connection\nand try again")
        return create(name, **settings)

    monkeypatch.setattr(timm, "create_model", offline)
    message = r"weights of test_vit cannot be loaded \(OSError: Name or service not known\); check .* --pretrained FILE"
    with pytest.raises(DataError, match=message):
        create_backbone("test_vit", classes=3, pretrained="timm", image_size=160)
    create_backbone("test_vit", classes=3, pretrained="none", image_size=160)


# Weights from a file


def test_a_file_replaces_everything(file: Path):
    model = create_backbone("test_vit", classes=10, pretrained=str(file), image_size=32)
    assert differing(model, load_file(file)) == set()


def test_a_head_of_another_size_stays_fresh(file: Path):
    model = vit(4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    load_weights(model, file)
    assert differing(model, before) >= {"cls_token", "blocks.5.mlp.fc2.weight"}
    kept = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("head.")}
    assert differing(model, {**before, **kept}) == set()


def test_a_fresh_head_is_put_on_when_asked_for(file: Path):
    model = create_backbone("test_vit", classes=10, pretrained=str(file), image_size=32, fresh_head=True)
    assert differing(model, load_file(file)) == {"head.weight", "head.bias"}


def test_a_file_without_a_head_leaves_it_fresh(file: Path):
    """DINOv2's file has no head, because it was trained without one."""
    kept = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("head.")}
    save_file(kept, file)
    model = create_backbone("test_vit", classes=10, pretrained=str(file), image_size=32)
    assert differing(model, {**model.state_dict(), **kept}) == set()


@pytest.mark.parametrize("change", ["strange", "missing", "shape"])
def test_a_file_that_does_not_fit_is_refused(change: str, file: Path):
    tensors = load_file(file)
    if change == "strange":
        tensors["blocks.6.norm1.weight"] = torch.zeros(64)
    elif change == "missing":
        del tensors["blocks.2.norm1.weight"]
    else:
        tensors["blocks.2.norm1.weight"] = torch.zeros(63)
    save_file(tensors, file)
    count = {"strange": "1 tensors are unknown and 0 are missing", "missing": "0 .* and 1 are", "shape": "1 .* 0"}
    model = vit()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        CheckpointError, match=rf"does not fit VisionTransformer: {count[change]}.*, such as blocks\.[26]"
    ):
        load_weights(model, file)
    assert differing(model, before) == set(), "nothing is half loaded"


def test_another_backbones_file_is_refused(file: Path):
    with pytest.raises(
        CheckpointError, match=r"does not fit ResNet: .*; give --pretrained the weights of the same backbone"
    ):
        create_backbone("test_resnet", classes=10, pretrained=str(file), image_size=160)


def test_positions_of_another_image_size_are_resampled_as_timm_does(file: Path):
    model = create_backbone("test_vit", classes=10, pretrained=str(file), image_size=64)
    tensors = load_file(file)
    assert tensors["pos_embed"].shape[1] < model.pos_embed.shape[1]
    assert torch.equal(model.pos_embed[:, 0], tensors["pos_embed"][:, 0]), "the class token has no place"
    assert torch.equal(model.blocks[0].attn.qkv.weight, tensors["blocks.0.attn.qkv.weight"])


def test_a_model_without_a_head_leaves_the_files_head_aside(file: Path, caplog: pytest.LogCaptureFixture):
    model = create_backbone("test_vit", classes=0, pretrained=str(file), image_size=32)
    assert torch.equal(model.blocks[0].attn.qkv.weight, load_file(file)["blocks.0.attn.qkv.weight"])
    assert not caplog.records, "there is no head to train"


def test_a_file_that_cannot_be_read_is_reported(file: Path):
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"vit.safetensors cannot be read"):
        load_weights(vit(), file)
    with pytest.raises(CheckpointError, match=r"no weights at .*gone.*; --pretrained takes a safetensors file"):
        create_backbone("test_vit", classes=10, pretrained=str(file.with_name("gone")), image_size=32)


@pytest.mark.skipif(not DEIT.exists(), reason=f"needs {DEIT}")
@pytest.mark.parametrize("classes", [1000, 10])
def test_real_weights_load(classes: int):
    tensors = load_file(DEIT)
    model = create_backbone("deit_tiny_patch16_224", classes=classes, pretrained=str(DEIT), fresh_head=classes == 1000)
    head = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("head.")}
    assert differing(model, {**tensors, **head}) == set()
    assert head["head.weight"].shape == (classes, 192)
    assert not torch.equal(head["head.weight"][:10], tensors["head.weight"][:10])


# A norm before the classifier


def test_what_classifies_sees_features_of_mean_zero_and_variance_one():
    torch.manual_seed(0)
    model = create_backbone("resformer_tiny_patch16_224", classes=7, pretrained="none", image_size=64)
    specks = 2.0 * (torch.rand(16, 3, 64, 64) > 0.99)
    before = model.forward_head(model.forward_features(specks), pre_logits=True).detach()
    assert (before - before.mean(0)).norm() < 0.1 * before.norm(), "images that are mostly background look the same"
    standardise_head(model)
    seen = []
    model.get_classifier()[1].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].detach()))
    assert model(specks).shape == (16, 7)
    torch.testing.assert_close(seen[0].mean(0), torch.zeros(192), atol=1e-4, rtol=0)
    assert seen[0].var(0, correction=0).median() == pytest.approx(1, abs=0.05)


def test_the_norm_has_no_weights_and_becomes_part_of_the_matrix():
    torch.manual_seed(0)
    model = create_backbone("test_vit", classes=7, pretrained="none", image_size=64).double()
    count = sum(p.numel() for p in model.parameters())
    standardise_head(model)
    model.double()(torch.rand(8, 3, 64, 64).double())
    assert sum(p.numel() for p in model.parameters()) == count
    (norm, linear), images = model.eval().get_classifier(), torch.rand(2, 3, 64, 64).double()
    expected = model(images)
    with torch.no_grad():
        linear.weight.div_((norm.running_var + norm.eps).sqrt())
        linear.bias.sub_(linear.weight @ norm.running_mean)
    model.head = linear
    torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize(
    ("name", "classes", "found"),
    [
        ("test_vit", 0, "VisionTransformer has Identity"),
        ("volo_d1_224", 7, r"VOLO has several layers \(head, aux_head\)"),
    ],
)
def test_classifiers_that_are_not_linear_are_refused(name: str, classes: int, found: str):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=classes)
    with pytest.raises(ConfigError, match=f"--head-norm needs a linear classifier, and {found}; leave it out"):
        standardise_head(model)


# Blocks that are compiled separately


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("vit_tiny_patch16_224", {"Block": 12}),
        ("swin_tiny_patch4_window7_224", {"SwinTransformerBlock": 12}),
        ("resnet50", {"Bottleneck": 16}),
        ("tf_efficientnet_lite0", {"InvertedResidual": 15}),  # and one block that is not repeated
        ("starnet_s100", {"Block": 8, "ConvBN": 5}),
        ("hrvit_b1", {"HRViTBlock": 35, "Bottleneck": 4}),
    ],
)
def test_the_innermost_blocks_are_the_ones_that_are_repeated(name: str, blocks: dict[str, int]):
    with torch.device("meta"):
        found = repeated_blocks(timm.create_model(name))
    assert Counter(type(block).__name__ for block in found) == blocks
    assert not any(inner in found for block in found for inner in block.modules() if inner is not block)
