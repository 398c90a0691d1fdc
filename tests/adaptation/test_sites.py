"""Find sites, and the layout of their features at every image size."""

import inspect
from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
import transformers
from backbones import HF_SWIN, HF_VIT, SMALL, TIMM_SWIN, Custom, logits, randomise_heads, vit
from dec_configs import dec_config
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

from localscale import AdaptedModel, DECConfig, Site, Tokens, adapt, sites
from localscale.adaptation.discover import usual_input_size
from localscale.errors import SiteError
from localscale.layouts import as_nchw
from localscale.warp import scale, unscale

TAKES_DYNAMIC = "dynamic_img_size" in inspect.signature(SwinTransformer).parameters  # since timm 1.0.31
ANY_SIZE = {"dynamic_img_size": True} if TAKES_DYNAMIC else {"strict_img_size": False, "dynamic_mask": True}


def swin(**settings) -> nn.Module:
    return timm.create_model("swin_tiny_patch4_window7_224", **{**TIMM_SWIN, **settings}).eval()


def table(found: list[Site]) -> list[tuple]:
    return [(str(site), site.layout, site.shape, site.prefix, site.stride) for site in found]


# The sites that sites() lists


def test_vit():
    found = sites(vit(img_size=(64, 96), reg_tokens=2))
    assert table(found) == [
        ("input", "NCHW", (2, 3, 64, 96), 0, None),
        ("blocks", "tokens", (2, 27, 48), 3, (16, 16)),
        ("blocks.0", "tokens", (2, 27, 48), 3, (16, 16)),
        ("blocks.1", "tokens", (2, 27, 48), 3, (16, 16)),
    ]
    assert [site.channels for site in found] == [3, 48, 48, 48]


def test_timm_swin():
    assert table(sites(swin())) == [
        ("input", "NCHW", (2, 3, 64, 64), 0, None),
        ("patch_embed", "NCHW", (2, 3, 64, 64), 0, None),
        ("layers", "NHWC", (2, 16, 16, 24), 0, None),
        ("layers.0", "NHWC", (2, 16, 16, 24), 0, None),
        ("layers.0.blocks.0", "NHWC", (2, 16, 16, 24), 0, None),
        ("layers.1", "NHWC", (2, 16, 16, 24), 0, None),
        ("layers.1.blocks.0", "NHWC", (2, 8, 8, 48), 0, None),
    ]


def test_resnet():
    assert table(sites(timm.create_model("test_resnet"), (3, 64, 96))) == [
        ("input", "NCHW", (2, 3, 64, 96), 0, None),
        ("conv1", "NCHW", (2, 3, 64, 96), 0, None),
        ("layer1", "NCHW", (2, 32, 16, 24), 0, None),
        ("layer1.0", "NCHW", (2, 32, 16, 24), 0, None),
        ("layer2", "NCHW", (2, 32, 16, 24), 0, None),
        ("layer2.0", "NCHW", (2, 32, 16, 24), 0, None),
        ("layer3", "NCHW", (2, 48, 8, 12), 0, None),
        ("layer3.0", "NCHW", (2, 48, 8, 12), 0, None),
        ("layer4", "NCHW", (2, 192, 4, 6), 0, None),
        ("layer4.0", "NCHW", (2, 192, 4, 6), 0, None),
    ]


def test_transformers_swin():
    assert table(sites(transformers.SwinForImageClassification(transformers.SwinConfig(**HF_SWIN)))) == [
        ("input", "NCHW", (2, 3, 32, 32), 0, None),
        ("swin", "NCHW", (2, 3, 32, 32), 0, None),
        ("swin.encoder.layers.0", "tokens", (2, 256, 12), 0, (2, 2)),
        ("swin.encoder.layers.0.blocks.0", "tokens", (2, 256, 12), 0, (2, 2)),
        ("swin.encoder.layers.1", "tokens", (2, 64, 24), 0, (4, 4)),
        ("swin.encoder.layers.1.blocks.0", "tokens", (2, 64, 24), 0, (4, 4)),
    ]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: vit(img_size=(64, 96)), (3, 64, 96)),
        (lambda: vit(in_chans=4), (4, 64, 64)),
        (lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**HF_VIT)), (3, 32, 32)),
        (lambda: torchvision.models.VisionTransformer(32, 8, 1, 2, 24, 48), (3, 32, 32)),
        (lambda: timm.create_model("test_resnet", in_chans=1), (1, 160, 160)),
        (lambda: timm.create_model("csatv2", num_classes=1), (3, 512, 512)),  # its first convolution reads 64 channels
        (lambda: nn.Sequential(nn.Conv2d(2, 3, 1)), (2, 224, 224)),
        (nn.Identity, (3, 224, 224)),
    ],
)
def test_the_size_a_model_says_it_takes(make: Callable[[], nn.Module], size: tuple[int, int, int]):
    assert usual_input_size(make()) == size


def test_every_listed_site_of_a_model_can_be_adapted():
    images = torch.rand(1, 3, 64, 64)
    for make in (vit, swin, lambda: timm.create_model("test_resnet").eval()):
        for site in sites(make(), (3, 64, 64)):
            base = make()
            with torch.no_grad():
                expected = base(images)
                model = adapt(base, dec_config(sites=(str(site),), **SMALL), input_size=(3, 64, 64))
                torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)


def test_as_many_channels_as_pixels_are_resolved_by_the_layers():
    first = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.Sequential(nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)))
    last = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)))
    for model, layout in ((first, "NCHW"), (last, "NHWC")):
        found = sites(model, (3, 64, 64))
        assert (str(found[1]), found[1].layout, found[1].shape) == ("1", layout, (2, 16, 16, 16))


def test_a_partly_described_site_keeps_its_fields():
    given = Site("trunk.body", layout="tokens", prefix=2, stride=(4, 8))
    model = adapt(Custom("tokens", stride=(4, 8), prefix=2), DECConfig(sites=(given,)), input_size=(3, 32, 48))
    (site,) = model.sites
    assert (site.layout, site.prefix, site.stride, site.channels) == ("tokens", 2, (4, 8), 6)


def test_padded_patches_are_not_taken_for_prefix_tokens():
    """A 70×90 image padded to 80×96 has 5×6 patches and one class token, not 4×5 patches and eleven prefix tokens."""
    found = sites(vit(dynamic_img_size=True, dynamic_img_pad=True), (3, 70, 90))
    assert found[1].shape == (2, 31, 48)
    assert (found[1].prefix, found[1].stride) == (1, (16, 16))


def test_the_rest_of_an_odd_size_is_dropped():
    """A convolution of 4×8 patches makes 8×6 of a 34×52 image."""
    found = sites(nn.Sequential(Custom("tokens", stride=(4, 8), prefix=2)), (3, 34, 52))
    assert table(found)[1:] == [("0", "NCHW", (2, 3, 34, 52), 0, None)]
    model = adapt(Custom("tokens", stride=(4, 8), prefix=2), DECConfig(sites=("trunk.body",)), input_size=(3, 34, 52))
    (site,) = model.sites
    assert (site.shape, site.prefix, site.stride) == ((2, 50, 6), 2, (4, 8))


# sites() does not change the model


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def flags(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def test_a_trial_run_leaves_no_hooks():
    model = timm.create_model("test_resnet", drop_rate=0.5).train()
    model.layer1.eval()
    model.layer2[0].bn1.eval()
    before, state = flags(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert len(set(before.values())) == 2
    generator = torch.random.get_rng_state()
    assert len(sites(model, (3, 64, 64))) > 4
    assert flags(model) == before
    assert hooks(model) == 0
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items()), "running statistics"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), generator)


def test_a_failing_trial_run_leaves_no_hooks():
    model = vit().train()
    model.blocks[0].eval()
    before = flags(model)
    with pytest.raises(SiteError, match="VisionTransformer did not run on a blank 3×70×64 image"):
        sites(model, (3, 70, 64))
    assert flags(model) == before
    assert hooks(model) == 0


def test_adapting_leaves_training_flags_and_statistics_alone():
    model = timm.create_model("test_resnet").train()
    model.layer1.eval()
    before, state = flags(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapted = adapt(model, DECConfig(sites=("input", "layer2")), input_size=(3, 64, 64))
    assert hooks(adapted) == 0
    base = adapted.unwrap()
    assert flags(base) == before
    assert all(torch.equal(tensor, state[name]) for name, tensor in base.state_dict().items())


@pytest.mark.parametrize("training", [True, False])
def test_an_adapted_model_trains_or_not_as_its_base_did(training: bool):
    assert adapt(vit().train(training), dec_config(sites=("blocks.0",), **SMALL)).training == training


# Layouts follow the image


class Probe(nn.Module):
    """A hook that records the input of a module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, *args, **kwargs):
        self.seen.append(x.detach())
        return self.inner(x, *args, **kwargs)


def warped_and_plain(model: AdaptedModel, probe: Probe, images: Tensor, **kwargs):
    """Return the input of the probed module with canonicalization, without it, and the map."""
    probe.seen.clear()
    with torch.no_grad():
        _, report = model(images, return_report=True, **kwargs)
        with model.disabled():
            model(images, **kwargs)
    assert len(probe.seen) == 2
    return *probe.seen, report


def probed_vit(mode: str = "invariant", **settings) -> tuple[AdaptedModel, Probe]:
    base = vit(**settings)
    base.blocks[0] = probe = Probe(base.blocks[0])
    model = adapt(base, dec_config(sites=("blocks.0",), mode=mode, fixed_steps=True, **SMALL))
    return randomise_heads(model, std=3.0), probe


def check_tokens(model: AdaptedModel, probe: Probe, images: Tensor, layout: Tokens, path: str, **kwargs) -> None:
    warped, plain, report = warped_and_plain(model, probe, images, **kwargs)
    m = report[path].map
    assert m.mean_displacement().min() > 0.01, "a warp too small to see would prove nothing"
    torch.testing.assert_close(warped, unscale(plain, m, layout=layout), atol=1e-6, rtol=0)
    own = model.canonicalizers[path](as_nchw(plain, layout)[0]).map
    torch.testing.assert_close(m.state(), own.state(), atol=1e-6, rtol=0)
    assert torch.equal(warped[:, : layout.prefix], plain[:, : layout.prefix]), "prefix tokens are no pixels"
    assert (warped - plain)[:, layout.prefix :].abs().max() > 1e-2


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_prefix_tokens_are_not_warped(prefix: int):
    settings = {0: {"class_token": False, "global_pool": "avg"}, 1: {}, 5: {"reg_tokens": 4}}[prefix]
    model, probe = probed_vit(img_size=(64, 96), **settings)
    check_tokens(model, probe, torch.randn(2, 3, 64, 96), Tokens(4, 6, prefix), "blocks.0")


def test_prefix_tokens_are_not_scaled_back():
    """With a block that does nothing, the site changes patches only."""
    base = vit(reg_tokens=2)
    base.blocks[0] = nn.Sequential(nn.Identity())
    base.blocks[1] = probe = Probe(base.blocks[1])
    config = dec_config(sites=(Site("blocks.0"),), mode="equivariant", fixed_steps=True, **SMALL)
    model = randomise_heads(adapt(base, config), std=3.0)
    after, before, report = warped_and_plain(model, probe, torch.randn(2, 3, 64, 64))
    m, layout = report["blocks.0"].map, Tokens(4, 4, 3)
    assert torch.equal(after[:, :3], before[:, :3])
    expected = scale(unscale(before, m, layout=layout), m, layout=layout)
    torch.testing.assert_close(after, expected, atol=1e-5, rtol=0)
    assert (after - before)[:, 3:].abs().max() > 1e-2


def test_swapped_aspect_with_as_many_tokens():
    """96×64 and 64×96 give the same number of tokens: only the image tells them apart."""
    model, probe = probed_vit(img_size=(64, 96), dynamic_img_size=True)
    for height, width in [(64, 96), (96, 64), (64, 96), (48, 128), (48, 48)]:
        images = torch.randn(2, 3, height, width)
        check_tokens(model, probe, images, Tokens(height // 16, width // 16, 1), "blocks.0")


def test_padded_sizes():
    model, probe = probed_vit(dynamic_img_size=True, dynamic_img_pad=True)
    for height, width in [(64, 64), (70, 90), (33, 64), (96, 65)]:
        layout = Tokens(-(-height // 16), -(-width // 16), 1)
        check_tokens(model, probe, torch.randn(1, 3, height, width), layout, "blocks.0")


def test_transformers_vit_with_interpolated_positions():
    base = transformers.ViTForImageClassification(transformers.ViTConfig(**HF_VIT)).eval()
    base.vit.layers[0] = probe = Probe(base.vit.layers[0])
    images = torch.randn(2, 3, 48, 64)
    with torch.no_grad():
        expected = base(images, interpolate_pos_encoding=True).logits
    model = adapt(base, dec_config(sites=("vit.layers.0",), fixed_steps=True, **SMALL))
    with torch.no_grad():
        answer = model(images, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(answer, expected, atol=1e-5, rtol=0)
    randomise_heads(model, std=3.0)
    check_tokens(model, probe, images, Tokens(6, 8, 1), "vit.layers.0", interpolate_pos_encoding=True)


@pytest.mark.parametrize("size", [(64, 64), (96, 64), (50, 77), (33, 32)])
def test_resnet_takes_any_size(size: tuple[int, int]):
    base = timm.create_model("test_resnet").eval()
    base.layer2 = probe = Probe(base.layer2)
    model = adapt(base, dec_config(sites=("layer2",), fixed_steps=True, **SMALL), input_size=(3, 64, 64))
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        with model.disabled():
            expected = model(images)
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)
    randomise_heads(model, std=3.0)
    warped, plain, report = warped_and_plain(model, probe, images)
    torch.testing.assert_close(warped, unscale(plain, report["layer2"].map), atol=1e-6, rtol=0)
    assert (warped - plain).abs().max() > 1e-2


@pytest.mark.parametrize("size", [(64, 64), (96, 64), (64, 128)])
def test_swin_takes_any_size_if_configured(size: tuple[int, int]):
    base = swin(**ANY_SIZE)
    base.layers[1] = probe = Probe(base.layers[1])
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        expected = base(images)
        model = adapt(base, dec_config(sites=("input", "layers.1"), fixed_steps=True, **SMALL))
        torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)
    model = adapt(model.unwrap(), dec_config(sites=("layers.1",), fixed_steps=True, **SMALL))
    randomise_heads(model, std=3.0)
    warped, plain, report = warped_and_plain(model, probe, images)
    expected = unscale(plain, report["layers.1"].map, layout="NHWC")
    torch.testing.assert_close(warped, expected, atol=1e-6, rtol=0)
    assert (warped - plain).abs().max() > 1e-2


def test_transformers_swin_at_another_size():
    base = transformers.SwinForImageClassification(transformers.SwinConfig(**HF_SWIN)).eval()
    images = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        expected = base(images, interpolate_pos_encoding=True).logits
        model = adapt(base, dec_config(sites=("swin.encoder.layers.1.blocks.0",), **SMALL))
        answer, report = model(images, interpolate_pos_encoding=True, return_report=True)
    torch.testing.assert_close(logits(answer), expected, atol=1e-5, rtol=0)
    assert list(report) == ["swin.encoder.layers.1.blocks.0"]
