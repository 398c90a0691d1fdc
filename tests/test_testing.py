"""The assertions that ship to users pass where they should and fail where they should."""

from types import SimpleNamespace

import pytest
import timm
import torch
import torch.nn.functional as F
import transformers
from dec_configs import dec_config
from torch import Tensor, nn

from localscale import AdaptedModel, identity_map, random_map, testing
from localscale.canonicalizer import network
from localscale.conventions import lattice
from localscale.maps import FAMILIES

SMALL = {"knots": 4, "channels": (8, 8), "resolution": 16}


def smooth(batch: int = 2, size: int = 48) -> Tensor:
    x, y = lattice(size, size, dtype=torch.float32).unbind(dim=-1)
    waves = [torch.sin(5 * y + 2) * torch.cos(4 * x), torch.cos(3 * x + 4 * y), x - y]
    return torch.stack(waves).expand(batch, -1, -1, -1)


def pointwise() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.Tanh(), nn.Conv2d(8, 4, 1))


def strided() -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(3, 4, 3, stride=2, padding=1)


# assert_equivariant


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pointwise_network_is_equivariant(family: str, rng: torch.Generator):
    m = random_map(2, 5, strength=0.5, family=family, generator=rng)
    testing.assert_equivariant(pointwise(), smooth(), m)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_strided_convolution_is_not(family: str, rng: torch.Generator):
    m = random_map(2, 5, strength=0.5, family=family, generator=rng)
    with pytest.raises(AssertionError, match=r"not equivariant: relative error \d\.\d\de-0\d, tolerance 1\.00e-02"):
        testing.assert_equivariant(strided(), smooth(), m)


def test_everything_is_equivariant_to_the_identity():
    testing.assert_equivariant(strided(), smooth(), identity_map(2), tolerance=1e-6)


def test_tolerance_is_relative_to_the_spread_of_the_answer(rng: torch.Generator):
    m = random_map(2, 5, strength=0.5, generator=rng)
    f = strided()
    for factor in (1e-3, 1.0, 1e3):
        testing.assert_equivariant(lambda x, k=factor: k * f(x), smooth(), m, tolerance=0.5)
        with pytest.raises(AssertionError, match="not equivariant"):
            testing.assert_equivariant(lambda x, k=factor: k * f(x), smooth(), m, tolerance=1e-2)


def test_an_answer_that_is_not_a_number_is_not_equivariant(rng: torch.Generator):
    with pytest.raises(AssertionError, match="relative error nan"):
        testing.assert_equivariant(lambda x: x * torch.nan, smooth(), random_map(2, generator=rng))


def test_shapes_that_depend_on_the_content_are_named(rng: torch.Generator):
    x = smooth()

    def odd(y: Tensor) -> Tensor:
        return y if torch.equal(y, x) else y[:, :1]

    with pytest.raises(
        AssertionError, match=r"f\(S\(x\)\) has shape \(2, 1, 48, 48\) and S\(f\(x\)\) \(2, 3, 48, 48\)"
    ):
        testing.assert_equivariant(odd, x, random_map(2, generator=rng))


def test_no_graph_is_kept(rng: torch.Generator):
    seen = []
    testing.assert_equivariant(
        lambda x: seen.append(torch.is_grad_enabled()) or torch.sigmoid(x), smooth(), random_map(2, generator=rng)
    )
    assert seen == [False, False]


# assert_identity_at_init


def vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=64, depth=1, embed_dim=48, num_heads=3, num_classes=5
    ).eval()


def test_the_adapted_copy_comes_back_and_the_base_is_not_touched():
    base = vit()
    modules = dict(base.named_modules())
    model = testing.assert_identity_at_init(base, dec_config(sites=("input", "blocks.0"), **SMALL))
    assert isinstance(model, AdaptedModel)
    assert list(model.canonicalizers) == ["input", "blocks.0"]
    assert model.base is not base
    assert dict(base.named_modules()) == modules
    assert not model.training


def test_answers_of_transformers_are_compared():
    small = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.ViTConfig(image_size=32, patch_size=8, **small)
    sites = dec_config(sites=("input",), **SMALL)
    testing.assert_identity_at_init(transformers.ViTForImageClassification(config), sites)
    testing.assert_identity_at_init(transformers.ViTModel(config), sites)


@pytest.mark.parametrize("site", ["input", "blocks.0"])
def test_a_head_that_does_not_start_at_zero_is_caught(site: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "_zero", lambda layer: layer)
    config = dec_config(sites=(site,), fixed_steps=True, temperature=0.1, **SMALL)
    with pytest.raises(AssertionError, match=r"the adapted model differs from its base by \d\.\d\de.*, tolerance 1"):
        testing.assert_identity_at_init(vit(), config, torch.randn(2, 3, 64, 64))


def test_the_tolerance_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "_zero", lambda layer: layer)
    config = dec_config(sites=("blocks.0",), fixed_steps=True, **SMALL)
    testing.assert_identity_at_init(vit(), config, torch.randn(2, 3, 64, 64), tolerance=100.0)


def test_images_are_those_given():
    seen = []
    base = nn.Sequential(nn.Conv2d(3, 2, 1))
    base.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    images = torch.rand(1, 3, 20, 30)
    testing.assert_identity_at_init(base, dec_config(sites=("input",), **SMALL), images)
    assert all(torch.equal(x, images) for x in seen)
    assert len(seen) == 2


def test_the_size_of_the_trial_run_can_be_given():
    base = timm.create_model("test_resnet").eval()
    model = testing.assert_identity_at_init(base, dec_config(sites=("layer2",), **SMALL), input_size=(3, 64, 48))
    assert model.input_size == (3, 64, 48)


def test_other_answers_cannot_be_compared():
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 1)

        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(boxes=F.relu(self.conv(x)))

    with pytest.raises(AssertionError, match="cannot compare outputs of type SimpleNamespace"):
        testing.assert_identity_at_init(Other(), images=torch.rand(1, 3, 16, 16))
