"""Segmenters on every backbone family: shapes, sizes, gradients, compiling and exporting."""

import copy
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from tiny_segmenters import FAMILIES, PLAIN, VIT, Family, without_gradient
from torch import nn

from localscale.errors import ConfigError, ConvergenceError, ShapeError
from localscale.heads import Segmenter, segmenter
from localscale.heads.segmentation import _usual_layers

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
ANY_SIZE = [name for name, family in FAMILIES.items() if family.any_size is not None]
ODD_SIZES = [(65, 50), (33, 97)]


def entering(model: Segmenter, images: torch.Tensor) -> torch.Tensor:
    """Return the input of the backbone for ``images``."""
    seen: list[torch.Tensor] = []
    first = next(m for m in model.backbone.modules() if isinstance(m, nn.Conv2d))
    with first.register_forward_pre_hook(lambda _, args: seen.append(args[0])), torch.no_grad():
        model(images)
    return seen[0]


# Scores


@EACH_FAMILY
def test_every_pixel_gets_scores_that_depend_on_the_image(family: Family):
    model = family.segmenter().eval()
    with torch.no_grad():
        scores = model(family.images())
    assert scores.shape == (2, 5, *family.size)
    assert (scores[0] - scores[1]).abs().max() > 1e-4


@pytest.mark.parametrize("name", ANY_SIZE)
def test_images_of_any_size(name: str):
    family = FAMILIES[name]
    model = family.segmenter(any_size=True).eval()
    for size in ODD_SIZES:
        with torch.no_grad():
            assert model(family.images(1, size)).shape == (1, 5, *size)


@EACH_FAMILY
def test_every_trainable_parameter_gets_a_gradient(family: Family):
    model = family.segmenter()
    assert model.training
    model(family.images()).square().sum().backward()
    assert without_gradient(model) == []
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert all(name.startswith("backbone.head.") for name in frozen), frozen


def test_training_lowers_the_loss():
    torch.manual_seed(0)
    model = segmenter(timm.create_model("test_vit", img_size=32), 2, width=8)
    images = torch.nn.functional.interpolate(torch.randn(8, 3, 2, 2), size=(32, 32), mode="nearest")
    labels = (images.mean(dim=1) > 0).long()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(15):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0], losses


# Sizes


def test_images_are_stretched_to_whole_patches_corners_on_corners():
    family = FAMILIES["ViT"]
    model = family.segmenter(any_size=True)
    images = family.images(2, (50, 65))
    seen = entering(model, images)
    assert seen.shape == (2, 3, 64, 80)
    for row, column in [(0, 0), (0, -1), (-1, 0), (-1, -1)]:
        torch.testing.assert_close(seen[..., row, column], images[..., row, column])
    assert torch.equal(entering(model, family.images()), family.images()), "whole patches are not stretched"


@pytest.mark.parametrize(("name", "patch"), [("ViT", 16), ("DINOv2", 14), ("Swin", 4), ("ResNet", 1), ("ConvNeXt", 1)])
def test_the_patch_is_that_of_the_backbone(name: str, patch: int):
    assert FAMILIES[name].segmenter().patch == (patch, patch)


def test_patches_need_not_be_square():
    model = segmenter(timm.create_model("vit_tiny_patch16_224", patch_size=(16, 8), **VIT), 3, width=8).eval()
    assert model.patch == (16, 8)
    assert entering(model, torch.rand(1, 3, 49, 57)).shape == (1, 3, 64, 64)


REMEDY = {
    "ViT": r"3×96×128 images \(Input height .*\); it was built for 3×64×64; create it with dynamic_img_size=True",
    "DeiT distilled": "create it with dynamic_img_size=True for any size",
    "Swin": r"3×92×120 images \(.*\); .*create it with (strict_img_size=False|dynamic_img_size=True) for any size",
    "BEiT": r"create it with img_size=\(96, 128\)$",
}


@pytest.mark.parametrize(("name", "message"), REMEDY.items(), ids=REMEDY)
def test_an_unsupported_size_names_the_argument_to_set(name: str, message: str):
    with pytest.raises(ShapeError, match=message):
        FAMILIES[name].segmenter()(FAMILIES[name].images(1, (90, 120)))


@pytest.mark.parametrize("name", ["ViT", "Swin", "ResNet"])
def test_other_errors_are_not_blamed_on_the_size(name: str):
    with pytest.raises(ShapeError, match=r"did not take 1×64×96 images \(.*channels.*\); it was built for 3×\d+×\d+$"):
        FAMILIES[name].segmenter(any_size=True)(torch.rand(1, 1, 64, 96))


def test_images_smaller_than_a_patch_are_refused():
    model = FAMILIES["ViT"].segmenter(any_size=True)
    for size in [(15, 64), (64, 15)]:
        with pytest.raises(
            ShapeError, match=rf"{size[0]}×{size[1]}; expected at least 16×16, one patch of VisionTrans"
        ):
            model(torch.rand(1, 3, *size))


def test_images_too_small_for_a_pyramid_are_refused():
    with pytest.raises(ShapeError, match=r"ConvNeXt did not take 3×8×8 images \(.*[Kk]ernel size.*built for 3×2"):
        FAMILIES["ConvNeXt"].segmenter().eval()(torch.rand(1, 3, 8, 8))


@pytest.mark.parametrize("images", [torch.rand(3, 64, 64), torch.zeros(1, 3, 64, 64, dtype=torch.uint8)])
def test_tensors_other_than_images_are_refused(images: torch.Tensor):
    with pytest.raises(ShapeError, match=r"images are torch\.\w+ of shape .*; expected floating \(batch, channels"):
        FAMILIES["ViT"].segmenter()(images)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), ConvergenceError("lost")], ids=repr)
def test_unrelated_errors_pass_through(error: Exception, monkeypatch: pytest.MonkeyPatch):
    model = FAMILIES["ResNet"].segmenter()

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(model.backbone, "forward_intermediates", fail)
    with pytest.raises(type(error)):
        model(torch.rand(1, 3, 64, 64))


# Layers


def test_layers_are_spread_like_dpts():
    assert _usual_layers([16] * 12) == (2, 5, 8, 11)
    assert _usual_layers([14] * 24) == (5, 11, 17, 23)
    assert _usual_layers([16] * 6) == (0, 2, 3, 5)
    assert _usual_layers([16] * 2) == (0, 1)
    assert _usual_layers([2, 4, 8, 16, 32]) == (1, 2, 3, 4)
    assert _usual_layers([4, 8, 16]) == (0, 1, 2)
    assert _usual_layers([8, 16, 16, 16]) == (0, 1, 2, 3)
    assert _usual_layers([2, 4, *[16] * 8]) == (3, 5, 7, 9), "a convolutional stem before a plain transformer"


@pytest.mark.parametrize("name", PLAIN)
def test_default_layers_of_every_plain_family(name: str):
    assert FAMILIES[name].segmenter(depth=5).layers == (0, 1, 2, 4)


def test_layers_can_be_chosen():
    family = FAMILIES["ViT"]
    model = segmenter(family.backbone(), 3, width=8, layers=(0, 2)).eval()
    assert len(model.backbone.blocks) == 3, "blocks after the last layer are removed"
    bare = family.backbone().eval()
    first = bare.patch_embed(family.images())
    with torch.no_grad():
        taken = model._features(family.images())
        by_hand = bare.blocks[0](bare._pos_embed(first))[:, 1:].transpose(1, 2).unflatten(2, (4, 4))
    torch.testing.assert_close(taken[0], by_hand)
    assert len(taken) == 2


@pytest.mark.parametrize("layers", [(), (3,), (0, 4), (-1, 2), (2, 1), (1, 1)])
def test_wrong_layers_are_refused(layers: tuple[int, ...]):
    backbone = FAMILIES["ViT"].backbone()
    with pytest.raises(ConfigError, match=r"layers is .*; expected at least 2 increasing indices from 0 to 3"):
        segmenter(backbone, 3, layers=layers)


# Changes to the backbone


def test_layers_after_the_features_are_removed():
    backbone = FAMILIES["ViT"].backbone()
    model = segmenter(backbone, 3, width=8)
    assert model.backbone is backbone
    assert not any(name.startswith(("norm.", "head.", "fc_norm.")) for name in backbone.state_dict())


def test_the_backbone_is_unchanged_if_an_argument_is_wrong():
    backbone = FAMILIES["ViT"].backbone()
    state = copy.deepcopy(backbone.state_dict())
    with pytest.raises(ConfigError, match="classes is 0; expected at least 1 score per pixel"):
        segmenter(backbone, 0)
    assert list(backbone.state_dict()) == list(state)


def test_a_head_that_cannot_be_removed_is_frozen():
    backbone = timm.create_model("test_vit")
    prune = backbone.prune_intermediate_layers

    def keep_the_head(indices, prune_norm=False, prune_head=True):
        assert not prune_head, "this head cannot be removed"
        return prune(indices, prune_norm=prune_norm, prune_head=False)

    backbone.prune_intermediate_layers = keep_the_head
    model = segmenter(backbone, 2, width=8)
    left = dict(model.backbone.head.named_parameters())
    assert left
    assert not any(parameter.requires_grad for parameter in left.values())


def test_a_frozen_backbone_stays_frozen():
    backbone = FAMILIES["Swin"].backbone().requires_grad_(False)
    model = segmenter(backbone, 3, width=8)
    assert not any(p.requires_grad for p in model.backbone.parameters())
    assert all(p.requires_grad for p in model.head.parameters())


def test_a_partly_frozen_backbone(caplog: pytest.LogCaptureFixture):
    backbone = FAMILIES["ConvNeXt"].backbone()
    for early in (backbone.stem, backbone.stages[0]):
        early.requires_grad_(False)
    model = segmenter(backbone, 3, width=8)
    assert not caplog.records
    model(FAMILIES["ConvNeXt"].images()).square().sum().backward()
    assert without_gradient(model) == []
    assert not any(p.requires_grad for p in model.backbone.stem.parameters())


def test_a_backbone_that_cannot_run_on_meta_warns(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    backbone = FAMILIES["ResNet"].backbone()
    forward_intermediates = type(backbone).forward_intermediates

    def looks_at_values(self: Any, x: torch.Tensor, **settings: Any) -> Any:
        return forward_intermediates(self, x * x.sum().item(), **settings)

    monkeypatch.setattr(type(backbone), "forward_intermediates", looks_at_values)
    with caplog.at_level(logging.WARNING):
        model = segmenter(backbone, 2, width=8).eval()
    assert "ResNet cannot run on the meta device" in caplog.text
    assert "find_unused_parameters=True" in caplog.text
    assert model(torch.rand(1, 3, 64, 64)).shape == (1, 2, 64, 64)


def test_mode_and_dtype_are_those_of_the_backbone():
    backbone = FAMILIES["ViT"].backbone().eval().double()
    model = segmenter(backbone, 3, width=8)
    assert not any(module.training for module in model.modules())
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model(FAMILIES["ViT"].images().double()).dtype == torch.float64


def test_pretrained_cfg_and_no_weight_decay():
    model = FAMILIES["DINOv2"].segmenter(classes=7, any_size=True)
    config = model.pretrained_cfg
    assert config["input_size"] == (3, 56, 56)
    assert config["mean"] == model.backbone.pretrained_cfg["mean"]
    assert model.backbone.pretrained_cfg["input_size"] == (3, 518, 518), "the backbone's own is unchanged"
    assert config["num_classes"] == 7
    assert model.get_submodule(config["classifier"]).out_channels == 7
    assert {"backbone.pos_embed", "backbone.cls_token"} <= model.no_weight_decay()
    assert set(model.no_weight_decay()) & set(dict(model.named_parameters()))
    assert FAMILIES["ResNet"].segmenter().no_weight_decay() == set()


@pytest.mark.parametrize(
    "backbone",
    [timm.create_model("test_resnet", features_only=True), nn.Linear(2, 2)],
    ids=lambda model: type(model).__name__,
)
def test_a_backbone_without_forward_intermediates_is_refused(backbone: nn.Module):
    name = type(backbone).__name__
    with pytest.raises(ConfigError, match=f"{name} has no forward_intermediates; expected a timm model.*features_only"):
        segmenter(backbone, 3)


@pytest.mark.parametrize("infos", [None, [], [{"num_chs": 8, "reduction": 4}]])
def test_a_backbone_with_fewer_than_two_features_is_refused(infos: list[dict[str, int]] | None):
    backbone: Any = SimpleNamespace(forward_intermediates=print, feature_info=infos)
    with pytest.raises(ConfigError, match=r"describes [01] features in its feature_info; expected at least 2"):
        segmenter(backbone, 3)


# Compilers


def test_compiled_equals_eager():
    family = FAMILIES["ViT"]
    model, images = family.segmenter(any_size=True, depth=2).eval(), family.images(2, (49, 70))
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))


def test_exported_equals_eager_for_any_batch():
    family = FAMILIES["ViT"]
    model, images = family.segmenter(any_size=True, depth=2).eval(), family.images(3, (49, 70))
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    with torch.no_grad():
        for batch in (2, 4):
            some = family.images(batch, (49, 70))
            torch.testing.assert_close(program.module()(some), model(some))
