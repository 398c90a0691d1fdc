"""HRViT and ResFormer work with timm, torch and ``adapt``."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from dec_configs import dec_config
from safetensors.torch import load_file, save_file
from tiny_hierarchical import HRVIT, RESFORMER, SMALLEST_HRVIT, TINY, images, shaken, tiny
from torch.utils.flop_counter import FlopCounterMode

import localscale as ls
from localscale.errors import ConfigError, DataError, ShapeError
from localscale.lab.backbones import HRViT, hrvit, registration
from localscale.lab.backbones.catalogue import create_backbone, normalisation

EACH = pytest.mark.parametrize("name", [HRVIT, RESFORMER])

# Millions of parameters and billions of multiply-adds at 224 px. HRViT-b1's are from its authors' README, "Main Results
# on ImageNet". ResFormer's paper gives none for size T, which is DeiT-T with other positions: these are DeiT-T's.
PUBLISHED = {HRVIT: (19.7, 2.7), RESFORMER: (5.7, 1.26)}

SMALL: dict[str, Any] = {"knots": 4, "channels": (8, 8), "resolution": 16}


# Size


@EACH
def test_size_and_cost_match_the_published_ones(name: str):
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 224, 224))
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    multiply_adds = counter.get_total_flops() / 2e9  # the counter counts a multiply-add as two
    assert parameters == pytest.approx(PUBLISHED[name][0], abs=0.05)
    assert multiply_adds == pytest.approx(PUBLISHED[name][1], rel=0.05)


# timm


@EACH
def test_timm_creates_it(name: str):
    model = timm.create_model(name, num_classes=7, in_chans=1, drop_path_rate=0.1, drop_rate=0.1)
    assert model(torch.rand(2, 1, 32, 32)).shape == (2, 7)
    config = model.pretrained_cfg
    assert config["input_size"] == (3, 224, 224)
    assert config["architecture"] == name
    assert not {"url", "file", "hf_hub_id"} & set(config)
    assert normalisation(model).mean == (0.485, 0.456, 0.406)
    assert model.get_submodule(config["classifier"]) is model.get_classifier()
    assert model.get_submodule(config["first_conv"]).in_channels == 1


@EACH
def test_create_backbone_creates_it(name: str):
    model = create_backbone(name, classes=4, pretrained="none", image_size=64, drop_path=0.1)
    assert model(torch.rand(2, 3, 64, 64)).shape == (2, 4)
    if name == RESFORMER:
        assert model.patch_embed.img_size == (64, 64)


@EACH
def test_features_only(name: str):
    model = timm.create_model(name, features_only=True)
    found = model(images(64, 96, count=1))
    assert [x.shape[1] for x in found] == model.feature_info.channels()
    assert [64 // x.shape[2] for x in found] == model.feature_info.reduction() == [96 // x.shape[3] for x in found]
    sum(x.sum() for x in found).backward()
    assert all(p.grad is not None for p in model.parameters()), "layers that are not needed are removed"


@EACH
def test_classifier_can_be_replaced(name: str):
    model = tiny(name).double().eval()
    features = model.forward_head(model.forward_features(images().double()), pre_logits=True)
    model.reset_classifier(9)
    assert model.num_classes == model.get_classifier().out_features == 9
    assert model(images().double()).shape == (2, 9)
    model.reset_classifier(0)
    assert torch.equal(model(images().double()), features)


@EACH
def test_dropout_before_the_classifier_is_for_training_only(name: str):
    model = tiny(name, drop_rate=0.5)
    features = model.eval().forward_features(images())
    expected = tiny(name).forward_head(features, pre_logits=True)
    assert torch.equal(model.forward_head(features, pre_logits=True), expected)
    dropped = model.train().forward_head(features, pre_logits=True)
    assert {0.0, 2.0} == set((dropped / expected)[expected != 0].detach().round(decimals=3).tolist())


@EACH
def test_layer_wise_learning_rates_grow_with_depth(name: str):
    model = tiny(name)
    groups = timm.optim.param_groups_layer_decay(model, layer_decay=0.5)
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    rates = {path: scales[id(p)] for path, p in model.named_parameters()}
    first, last = ("stem.0.0.weight", "fc.weight") if name == HRVIT else ("patch_embed.proj.weight", "head.weight")
    assert rates[first] < min(rates[p] for p in rates if "blocks.0.norm1.weight" in p) < rates[last] == 1


# Registration


def test_reloading_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(hrvit)
    assert timm.model_entrypoint(HRVIT) is hrvit.hrvit_b1


def test_another_model_of_the_same_name_warns(monkeypatch: pytest.MonkeyPatch):
    registry = importlib.import_module("timm.models._registry")
    monkeypatch.setattr(registry, "_model_entrypoints", dict(registry._model_entrypoints))

    def hrvit_b1() -> None: ...

    with pytest.warns(UserWarning, match="Overwriting hrvit_b1 in registry"):
        registration.register(hrvit_b1)


# torch


@EACH
def test_gradients_reach_every_parameter(name: str):
    model = tiny(name, drop_path_rate=0.1).train()
    model(images(count=4)).square().sum().backward()
    unread = [f"blocks.1.attn.local.{part}" for part in ("weight", "bias")]  # the classifier reads no patches
    for path, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), path
        assert (parameter.grad.abs().max() > 1e-7) == (path not in unread), path


@EACH
def test_compiled_equals_eager(name: str):
    model = shaken(HRViT(SMALLEST_HRVIT)).eval() if name == HRVIT else tiny(name).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images(48, 80)), model(images(48, 80)))


@EACH
def test_no_host_synchronisation(name: str):
    with torch.device("meta"):  # reading a value from this device raises
        model = TINY[name](drop_path_rate=0.1).train()
        model(torch.empty(2, 3, 48, 64)).sum().backward()
    assert all(p.grad.device.type == "meta" for p in model.parameters())


@EACH
def test_half_precision_is_close(name: str):
    model = tiny(name).eval()
    with torch.no_grad():
        expected = model(images())
        with torch.autocast("cpu", torch.bfloat16):
            found = model(images())
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()


# adapt


@pytest.mark.parametrize(
    ("name", "site", "mode"),
    [
        (HRVIT, "stages.0.0.branches.0.blocks.0", "invariant"),
        (HRVIT, "stages.1", "equivariant"),
        (HRVIT, "stages.2.0.branches.2", "invariant"),
        (RESFORMER, "blocks.0", "equivariant"),
        (RESFORMER, "blocks.1", "invariant"),
    ],
)
def test_an_adapted_model_starts_as_its_base(name: str, site: str, mode: str):
    sites = ("input", site) if mode == "invariant" else (site,)
    config = dec_config(sites=sites, mode=mode, **SMALL)
    model = ls.testing.assert_identity_at_init(tiny(name).eval(), config, images(), input_size=(3, 48, 64))
    assert list(model.canonicalizers) == list(sites)


@EACH
def test_sites_are_found(name: str):
    found = {str(site): site for site in ls.sites(tiny(name), (3, 48, 64))}
    if name == HRVIT:
        site = found["stages.0.0.branches.0.blocks.0"]
        assert (site.layout, site.shape) == ("NCHW", (2, 8, 12, 16))
    else:
        site = found["blocks.0"]
        assert (site.layout, site.prefix, site.stride, site.shape) == ("tokens", 1, (16, 16), (2, 13, 24))


# Refusals


@EACH
def test_images_of_other_shapes_are_refused(name: str):
    for wrong in (torch.rand(3, 32, 32), torch.rand(1, 4, 32, 32)):
        with pytest.raises(ShapeError, match=r"images have shape \(.*\); expected \(batch, 3, height, width\)"):
            tiny(name)(wrong)
    with pytest.raises(ShapeError, match="images are 0×32"):
        tiny(name)(torch.rand(1, 3, 0, 32))


@EACH
def test_weights_that_do_not_exist_are_refused(name: str):
    with pytest.raises(DataError, match=f"no pretrained weights of {name}; create it with pretrained=False"):
        timm.create_model(name, pretrained=True)
    with pytest.raises(DataError, match=f"the pretrained weights of {name} cannot be loaded"):
        create_backbone(name, classes=10, pretrained="timm")


def test_a_checkpoint_file_is_loaded(tmp_path: Path):
    torch.manual_seed(1)
    save_file(timm.create_model(RESFORMER).state_dict(), tmp_path / "own.safetensors")
    overlay = {"file": str(tmp_path / "own.safetensors")}
    model = timm.create_model(RESFORMER, pretrained=True, pretrained_cfg_overlay=overlay)
    assert torch.equal(model.cls_token, load_file(overlay["file"])["cls_token"])


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        (HRVIT, {"drop_path_rate": 1.0}, "drop_path_rate is 1.0; expected 0 or more, and less than 1"),
        (RESFORMER, {"drop_path_rate": -0.1}, "drop_path_rate is -0.1"),
        (RESFORMER, {"num_classes": -1}, "num_classes is -1; expected at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, settings: dict[str, float], text: str):
    with torch.device("meta"), pytest.raises(ConfigError, match=text):
        timm.create_model(name, **settings)


@EACH
def test_other_pooling_is_refused(name: str):
    pool = {HRVIT: "avg", RESFORMER: "token"}
    tiny(name).reset_classifier(3, pool[name])
    with pytest.raises(ConfigError, match=f"global_pool is 'max'; this model supports only '{pool[name]}'"):
        tiny(name).reset_classifier(3, "max")


@pytest.mark.parametrize("indices", [(7,), (-4,), 4, 0, ()])
def test_features_that_do_not_exist_are_refused(indices: Any):
    with pytest.raises(ConfigError, match=r"indices is .*; expected indices among . features"):
        tiny(HRVIT).forward_intermediates(images(), indices)
