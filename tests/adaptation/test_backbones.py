"""Every family of backbones: unchanged before training, trainable, and restored by unwrap."""

import itertools

import pytest
import timm
import torch
import transformers
from backbones import BACKBONES, CUSTOM, HF_SWIN, LOOSE, TRANSFORMERS, Backbone, logits, randomise_heads
from safetensors.torch import load_file
from shared import SHARED
from torch import nn

from localscale import DECConfig, adapt

DEIT_TINY = SHARED / "weights" / "deit_tiny_patch16_224.safetensors"
EACH_BACKBONE = pytest.mark.parametrize("name", BACKBONES)
ALTERNATING_SOURCE = pytest.mark.parametrize(
    ("name", "source"), list(zip(BACKBONES, itertools.cycle(["latent", "image"]), strict=False))
)


def answers(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return logits(model(images))


@ALTERNATING_SOURCE
@pytest.mark.parametrize("mode", ["invariant", "equivariant"])
def test_adapting_does_not_change_the_output(name: str, source: str, mode: str):
    backbone = BACKBONES[name]
    base, images = backbone.build(), backbone.images()
    expected = answers(base, images)
    assert expected.std(dim=0).min() > 1e-6, "outputs that do not depend on the image would prove nothing"
    sites = ("input", backbone.site) if mode == "invariant" else (backbone.site,)
    model = backbone.adapted(base, sites=sites, source=source, mode=mode)
    torch.testing.assert_close(answers(model, images), expected, atol=1e-5, rtol=0)


@ALTERNATING_SOURCE
def test_trained_canonicalizers_change_the_answer_and_get_gradients(name: str, source: str):
    backbone = BACKBONES[name]
    images = backbone.images()
    model = backbone.adapted(source=source, **LOOSE)
    before = logits(model(images))
    before.square().sum().backward()
    assert all(p.grad is not None for c in model.canonicalizers.values() for p in c.parameters())
    randomise_heads(model).zero_grad()
    after, report = model(images, return_report=True)
    assert min(site.map.mean_displacement().min() for site in report.values()) > 1e-4
    assert (logits(after) - before).abs().max() > 1e-4
    logits(after).square().sum().backward()
    for path, canonicalizer in model.canonicalizers.items():
        for parameter, tensor in canonicalizer.named_parameters():
            assert tensor.grad.isfinite().all(), f"{path} {parameter}"
            assert tensor.grad.any(), f"no gradient at {path} {parameter}"


@ALTERNATING_SOURCE
def test_trained_equivariant_sites_scale_back(name: str, source: str):
    backbone = BACKBONES[name]
    images = backbone.images()
    expected = answers(backbone.build(), images)
    moved = {}
    for mode in ("invariant", "equivariant"):
        model = backbone.adapted(sites=(backbone.site,), source=source, mode=mode, **LOOSE)
        randomise_heads(model)
        answer = logits(model(images))
        answer.square().sum().backward()
        assert all(p.grad.any() for c in model.canonicalizers.values() for p in c.parameters())
        moved[mode] = answer.detach()
    assert (moved["equivariant"] - expected).abs().max() > 1e-6, "interpolation is not undone"
    assert (moved["equivariant"] - moved["invariant"]).abs().max() > 1e-6


@EACH_BACKBONE
def test_unwrap_gives_the_very_same_model_back(name: str):
    backbone = BACKBONES[name]
    base, images = backbone.build(), backbone.images()
    expected, state = answers(base, images), {k: v.clone() for k, v in base.state_dict().items()}
    modules = dict(base.named_modules())
    model = randomise_heads(backbone.adapted(base, **LOOSE))
    answers(model, images)
    assert model.unwrap() is base
    assert torch.equal(answers(base, images), expected)
    assert list(base.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[key]) for key, tensor in base.state_dict().items())
    after = dict(base.named_modules())
    assert list(after) == list(modules)
    assert all(after[path] is modules[path] for path in modules)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_models_take_their_image_by_name_too(name: str):
    backbone = TRANSFORMERS[name]
    images = backbone.images()
    expected = answers(backbone.build(), images)
    model = backbone.adapted()
    with torch.no_grad():
        torch.testing.assert_close(model(pixel_values=images).logits, expected, atol=1e-5, rtol=0)
        randomise_heads(model)
        by_name, report = model(pixel_values=images, return_report=True)
        assert torch.equal(by_name.logits, model(images).logits)
        assert list(report) == ["input", str(backbone.site)]
        assert torch.equal(model(pixel_values=images, return_dict=False)[0], by_name.logits)
        with_loss = model(pixel_values=images, labels=torch.tensor([0, 1]))
        assert torch.equal(with_loss.logits, by_name.logits)
        assert with_loss.loss > 0


def test_labels_may_come_before_the_image():
    """transformers' default_data_collator, and so its Trainer, puts labels first."""
    backbone = TRANSFORMERS["transformers ViT"]
    model, images, labels = backbone.adapted(), backbone.images(), torch.tensor([0, 1])
    with torch.no_grad():
        expected = model(pixel_values=images, labels=labels)
        assert torch.equal(model(labels=labels, pixel_values=images).loss, expected.loss)


def test_a_whole_stage_of_transformers_swin_can_be_adapted():
    """The encoder reads attributes of the stage, which the wrapper must still have."""
    swin = Backbone(
        lambda: transformers.SwinForImageClassification(transformers.SwinConfig(**HF_SWIN)),
        (32, 32),
        "swin.encoder.layers.0",
    )
    base, images = swin.build(), swin.images()
    expected = answers(base, images)
    torch.testing.assert_close(answers(swin.adapted(base), images), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CUSTOM)
def test_a_fully_described_site_needs_no_trial_run(name: str):
    backbone = CUSTOM[name]
    base = backbone.build()
    calls = []
    handle = base.register_forward_pre_hook(lambda *_: calls.append(1))
    model = backbone.adapted(base)
    handle.remove()
    assert not calls
    assert [site.layout for site in model.sites] == ["NCHW", name.split()[1]]


@pytest.mark.parametrize("name", CUSTOM)
def test_a_described_site_is_what_a_trial_run_would_find(name: str):
    backbone = CUSTOM[name]
    found = adapt(backbone.build(), DECConfig(sites=(str(backbone.site),)), input_size=(3, *backbone.size)).sites
    assert found == [backbone.site]


@pytest.mark.skipif(not DEIT_TINY.exists(), reason=f"no weights at {DEIT_TINY}")
def test_real_deit_tiny_weights_answer_as_before():
    base = timm.create_model("deit_tiny_patch16_224").eval()
    base.load_state_dict(load_file(DEIT_TINY), strict=True)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    expected = answers(base, images)
    model = adapt(base, DECConfig(sites=("input", "blocks.0"), knots=(6, 4)))
    torch.testing.assert_close(answers(model, images), expected, atol=1e-5, rtol=0)
    assert torch.equal(answers(model.unwrap(), images), expected)
