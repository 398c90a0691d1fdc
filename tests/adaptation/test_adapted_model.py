"""Adapted models: reports, threads, copies, gradients, checkpointing and precision."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import safetensors.torch
import torch
from backbones import LOOSE, RESNET, SMALL, VIT, gradients, randomise_heads, trained, vit
from dec_configs import dec_config
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from localscale import adapt
from localscale.errors import ConvergenceError, ConvergenceWarning, SiteError
from localscale.maps import GridMap, SeparableMap
from localscale.warp import unscale

EACH_SOURCE = pytest.mark.parametrize("source", ["latent", "image"])


def answer(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model(images)


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("the base broke")


# Reports


@pytest.mark.parametrize(("source", "family"), [("latent", "grid"), ("image", "separable")])
def test_report_of_every_site(source: str, family: str):
    model = trained(source=source, family=family, knots=((5, 3), 4))
    _, report = model(VIT.images(3), return_report=True)
    assert list(report) == ["input", "blocks.0"]
    assert [site.map.knots for site in report.values()] == [(5, 3), (4, 4)]
    for site in report.values():
        assert isinstance(site.map, {"grid": GridMap, "separable": SeparableMap}[family])
        assert site.map.batch == 3
        assert site.residual.shape == site.steps.shape == site.converged.shape == (3,)
        assert site.converged.dtype == torch.bool
        assert site.converged.all()
        assert (site.residual <= 1e-3).all()
        assert ((site.steps >= 1) & (site.steps <= 40)).all()
        assert site.map.state().requires_grad
        assert not site.residual.requires_grad


def test_the_report_shows_failed_images():
    model = trained(max_steps=1, tolerance=1e-9)
    with pytest.warns(ConvergenceWarning, match="fixed points stopped above the tolerance 1e-09 after 1 steps"):
        _, report = model(VIT.images(), return_report=True)
    for site in report.values():
        assert not site.converged.any()
        assert (site.residual > 1e-9).all()
        assert site.steps.tolist() == [1, 1]


@pytest.mark.parametrize(("size", "path"), [((64, 64), "input"), ((96, 96), "layer1")])
def test_policy_raise_is_a_convergence_error_at_any_size(size: tuple[int, int], path: str):
    model = RESNET.adapted(sites=(path,), max_steps=1, tolerance=1e-9, on_failure="raise")
    with pytest.raises(ConvergenceError, match="fixed points stopped above the tolerance 1e-09 after 1 steps"):
        randomise_heads(model)(torch.randn(2, 3, *size))


def test_the_base_gets_the_unscaled_image():
    base, images = VIT.build(), VIT.images()
    model = randomise_heads(VIT.adapted(base, sites=("input",), **LOOSE))
    with torch.no_grad():
        found, report = model(images, return_report=True)
        torch.testing.assert_close(found, base(unscale(images, report["input"].map)), atol=1e-6, rtol=0)


def test_source_image_uses_the_original_image():
    model, images = trained(source="image"), VIT.images()
    _, report = model(images, return_report=True)
    for path, canonicalizer in model.canonicalizers.items():
        assert torch.equal(canonicalizer(images).map.state(), report[path].map.state())


# The base model's output


def test_disabled_gives_exactly_the_base_models_output():
    images = VIT.images()
    expected = answer(VIT.build(), images)
    model = trained()
    assert not torch.equal(answer(model, images), expected)
    with model.disabled():
        assert torch.equal(answer(model, images), expected)
        assert model(images, return_report=True)[1] == {}
        with model.disabled():
            assert torch.equal(answer(model, images), expected)
        assert torch.equal(answer(model, images), expected), "the inner block must not switch it on again"
    assert not torch.equal(answer(model, images), expected)


def test_disabled_ends_with_an_exception():
    model, images = trained(), VIT.images()
    before = answer(model, images)
    with pytest.raises(KeyError), model.disabled():
        raise KeyError
    assert torch.equal(answer(model, images), before)


def test_disabled_affects_only_its_thread():
    model, images = trained(), VIT.images()
    expected = answer(model, images)
    with model.disabled(), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(answer, model, images).result(), expected)
        assert not torch.equal(answer(model, images), expected)


def test_the_base_can_be_called_on_its_own_at_its_usual_size():
    model, images = trained(sites=("blocks.0",)), VIT.images()
    assert torch.equal(answer(model.base, images), answer(model, images))


def test_the_base_alone_refuses_another_size():
    model = adapt(vit(dynamic_img_size=True), dec_config(sites=("blocks.0",), **SMALL))
    model(torch.zeros(1, 3, 96, 96))
    with pytest.raises(SiteError) as error:
        model.base(torch.zeros(1, 3, 96, 96))
    assert str(error.value).startswith(
        "blocks.0 was called outside its adapted model, where it knows only 64×64 images"
    )


# State


class Meet(nn.Module):
    """A module that waits until another thread reaches it too."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting: threading.Barrier | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.meeting is not None:
            self.meeting.wait(timeout=120)
        return x

    def __deepcopy__(self, memo: dict) -> "Meet":
        return Meet()


@EACH_SOURCE
def test_two_threads_at_once(source: str):
    """Two images with equally many tokens and different shapes are in the base at the same time."""
    base = vit(img_size=(64, 96), dynamic_img_size=True)
    base.norm_pre = Meet()
    config = dec_config(sites=("input", "blocks.0"), source=source, fixed_steps=True, **SMALL)
    model = randomise_heads(adapt(base, config), std=3.0)
    batches = [torch.randn(2, 3, 64, 96), torch.randn(2, 3, 96, 64)]
    expected = [answer(model, images) for images in batches]
    base.norm_pre.meeting = threading.Barrier(2)

    def report(images: Tensor) -> tuple[Tensor, list[int]]:
        with torch.no_grad():
            found, sites = model(images, return_report=True)
        return found, [site.map.batch for site in sites.values()]

    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            results = [future.result() for future in [pool.submit(report, images) for images in batches]]
            for (found, maps), wanted in zip(results, expected, strict=True):
                torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
                assert maps == [2, 2]


def attributes(model: nn.Module) -> dict[str, set[str]]:
    return {name: set(vars(module)) for name, module in model.named_modules()}


@EACH_SOURCE
def test_a_forward_pass_leaves_no_state(source: str):
    model = trained(source=source)
    before = attributes(model)
    model(VIT.images())
    assert model.channel.current is None
    assert attributes(model) == before
    assert not [v for module in model.modules() for v in vars(module).values() if isinstance(v, Tensor)]


@EACH_SOURCE
def test_an_exception_in_the_base_leaves_no_state(source: str):
    model, images = trained(source=source), VIT.images()
    expected, block = answer(model, images), model.base.blocks[1]
    model.base.blocks[1] = Fails()
    with pytest.raises(RuntimeError, match=r"^the base broke$"):
        model(images)
    assert model.channel.current is None
    model.base.blocks[1] = block
    assert torch.equal(answer(model, images), expected)


# Copies and weights


def test_a_deep_copy_is_independent():
    model, images = trained(), VIT.images()
    other = copy.deepcopy(model)
    expected = answer(model, images)
    assert torch.equal(answer(other, images), expected)
    assert other.channel is not model.channel
    assert other.base.blocks[0].channel is other.channel
    assert other.canonicalizers["blocks.0"] is other.base.blocks[0].canonicalizer
    assert copy.deepcopy(model).channel is not other.channel
    with other.disabled():
        assert torch.equal(answer(model, images), expected)
        assert not torch.equal(answer(other, images), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.unwrap()
    assert torch.equal(answer(model, images), expected)


def test_state_dict_round_trip():
    model, images = trained(), VIT.images()
    other = VIT.adapted(VIT.build(seed=5), **LOOSE)
    assert not torch.equal(answer(other, images), answer(model, images))
    state = safetensors.torch.load(safetensors.torch.save(model.state_dict()))
    other.load_state_dict(state, strict=True)
    assert torch.equal(answer(other, images), answer(model, images))


@pytest.mark.parametrize("sites", [("input",), ("layer1",), ("layer1", "layer1.0"), ("input", "layer1.0.conv1")])
def test_base_state_has_the_base_models_names(sites: tuple[str, ...]):
    expected = RESNET.build().state_dict()
    state = RESNET.adapted(sites=sites).base_state()
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "settings",
    [{}, {"update": "compose", "source": "image"}, {"update": "descent"}, {"gradient": "phantom(2)"}],
    ids=str,
)
def test_no_parameter_is_unused(settings: dict[str, str]):
    model = randomise_heads(VIT.adapted(fixed_steps=True, max_steps=4, **settings))
    model(VIT.images()).square().sum().backward()
    assert {name for name, parameter in model.named_parameters() if parameter.grad is None} == set()


@pytest.mark.parametrize("sites", [("layer1", "layer1.0"), ("layer1.0", "layer1")])
def test_sites_within_sites(sites: tuple[str, ...]):
    base, images = RESNET.build(), RESNET.images()
    modules, expected = dict(base.named_modules()), answer(base, images)
    model = RESNET.adapted(base, sites=sites, knots=(3, 5), **LOOSE)
    torch.testing.assert_close(answer(model, images), expected, atol=1e-5, rtol=0)
    randomise_heads(model)
    _, report = model(images, return_report=True)
    assert {path: site.map.knots for path, site in report.items()} == {sites[0]: (3, 3), sites[1]: (5, 5)}
    assert list(model.canonicalizers) == list(sites)
    assert all(gradient.any() for name, gradient in gradients(model, images).items() if "canonicalizer" in name)
    assert model.unwrap() is base
    assert dict(base.named_modules()) == modules
    assert torch.equal(answer(base, images), expected)


# Activation checkpointing


def test_checkpointed_gradients_are_the_same():
    model, images = trained(), VIT.images()
    expected = gradients(model, images)
    model.base.set_grad_checkpointing()
    found = gradients(model, images)
    assert list(found) == list(expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5)
    assert model.channel.current is None


def test_checkpointing_does_not_go_with_maps_from_the_image():
    model = trained(source="image")
    model.base.set_grad_checkpointing()
    loss = model(VIT.images()).sum()
    with pytest.raises(SiteError) as error:
        loss.backward()
    assert str(error.value).startswith("blocks.0 takes its map from the image but was called outside its adapted model")


@pytest.mark.parametrize(("size", "error"), [((96, 64), CheckpointError), ((96, 96), SiteError)])
def test_checkpointing_raises_at_another_size(size: tuple[int, int], error: type[Exception]):
    """If only the layout of the tokens differs, PyTorch raises the error; if their number differs, the site does."""
    base = vit(img_size=(64, 96), dynamic_img_size=True)
    model = randomise_heads(adapt(base, dec_config(sites=("blocks.0",), fixed_steps=True, **SMALL)), std=3.0)
    base.set_grad_checkpointing()
    with pytest.raises(error):
        gradients(model, torch.randn(2, 3, *size))


# Precision


def test_autocast_keeps_the_map_in_full_precision():
    base, images = VIT.build(), VIT.images()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = answer(base, images)
        model = VIT.adapted(base, **LOOSE)
        torch.testing.assert_close(answer(model, images), expected, atol=1e-5, rtol=0)
        found, report = randomise_heads(model)(images, return_report=True)
    assert found.dtype == torch.bfloat16
    assert {site.map.dtype for site in report.values()} == {torch.float32}
    found.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    _, full = model(images, return_report=True)
    torch.testing.assert_close(report["input"].map.state(), full["input"].map.state())


@pytest.mark.parametrize(
    ("dtype", "when"), [(torch.float16, "after"), (torch.bfloat16, "before"), (torch.float64, "after")]
)
def test_other_precisions_set_before_and_after_adapting(dtype: torch.dtype, when: str):
    images = VIT.images().to(dtype)
    base = VIT.build().to(dtype)
    expected = answer(base, images)
    model = VIT.adapted(base, **LOOSE) if when == "before" else VIT.adapted(VIT.build(), **LOOSE).to(dtype)
    torch.testing.assert_close(answer(model, images), expected, atol=1e-5, rtol=0)
    found, report = randomise_heads(model)(images, return_report=True)
    assert found.dtype == dtype
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    assert {site.map.dtype for site in report.values()} == {precise}
    found.square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == parameter.dtype
        assert parameter.grad.isfinite().all()


# Trainable parameters


def trainable(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_freezing_the_base_leaves_the_canonicalizers(capsys: pytest.CaptureFixture[str]):
    model = trained()
    everything = trainable(model)
    own = {name for name in everything if "canonicalizer." in name}
    assert any(name.startswith("base.blocks.0.canonicalizer.") for name in own), "one is inside the base"
    model.freeze_base()
    assert trainable(model) == own
    count, total = (sum(p.numel() for n, p in model.named_parameters() if n in names) for names in (own, everything))
    model.print_trainable_parameters()
    said = f"trainable parameters: {count:,} of {total:,} ({100 * count / total:.2f} %)\n"
    assert capsys.readouterr().out == said
    model.base.get_classifier().requires_grad_(True)
    assert trainable(model) == own | {"base.head.weight", "base.head.bias"}
    model.unfreeze_base()
    assert trainable(model) == everything


def test_a_frozen_canonicalizer_stays_frozen():
    model = trained()
    model.canonicalizers["input"].requires_grad_(False)
    model.freeze_base()
    model.unfreeze_base()
    assert not any(name.startswith("input_canonicalizer.") for name in trainable(model))


def test_settings_may_be_a_dictionary():
    config = dec_config(sites=("input",), **SMALL)
    assert adapt(VIT.build(), config.to_dict()).canonicalizers["input"].config == config
