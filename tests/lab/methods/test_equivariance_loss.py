"""Masks that move with their image: AugL's loss, and canonicalization that scales the answer back."""

from collections.abc import Callable

import pytest
import torch
from baseline_inputs import dec, draws, images, randomise
from torch import Tensor, nn
from torch.autograd import gradcheck

from localscale import DECConfig, adapt
from localscale.adaptation import AdaptedModel
from localscale.canonicalizer import SiteReport
from localscale.errors import ConfigError
from localscale.lab.methods import DEC, AugL, Canon, DiscreteCanonicalizer, RandomScaling
from localscale.lab.methods.equivariance import mask_error
from localscale.lab.methods.method import check_mode
from localscale.lab.recipes.changes import with_changes
from localscale.maps import FAMILIES, Map, identity_map, map_from_logits, random_map
from localscale.metrics import equivariance_error
from localscale.warp import scale, unscale

CLASSES = 4
STRONG = RandomScaling(strength=2.0)
LABELS = torch.randint(0, CLASSES, (3, 32, 32), generator=torch.Generator().manual_seed(9))


def sharp(model: nn.Sequential) -> nn.Module:
    """Enlarge the last weights, because fresh ones give almost the same mask for every image."""
    with torch.no_grad():
        for parameter in model[-1].parameters():
            parameter.mul_(6)
    return model


def segmenter(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a segmenter with a receptive field of 5 × 5 pixels."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return sharp(nn.Sequential(nn.Conv2d(3, 6, 5, padding=2), nn.Tanh(), nn.Conv2d(6, CLASSES, 1)).to(dtype))


def pointwise() -> nn.Module:
    """Return a segmenter with a receptive field of one pixel, which is equivariant without any training."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return sharp(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Tanh(), nn.Conv2d(8, CLASSES, 1)))


class TiedToPlaces(nn.Module):
    """A segmenter whose answers depend on the position of a pixel, so it is not equivariant."""

    def __init__(self) -> None:
        super().__init__()
        self.base = pointwise()

    def forward(self, x: Tensor) -> Tensor:
        place = torch.linspace(0, 6, x.shape[-1], device=x.device)
        return self.base(x) + 2 * torch.sin(place + torch.arange(CLASSES)[:, None, None] + place[:, None])


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels)


def eque(model: Callable[[Tensor], Tensor], shown: Tensor, g: Map) -> float:
    with torch.no_grad():
        return equivariance_error(model(shown).softmax(1), model(scale(shown, g)).softmax(1), g).item()


# The distance between masks.


def logits(seed: int, *, dtype: torch.dtype = torch.float32, size: int = 12) -> Tensor:
    return 2 * torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_metric_under_the_inverse_map(family: str, rng: torch.Generator):
    u = random_map(2, 5, strength=1.5, family=family, generator=rng)
    one, two = logits(0), logits(1)
    expected = equivariance_error(one.softmax(1), two.softmax(1), u.inverse())
    torch.testing.assert_close(mask_error(one, two, u), expected, rtol=1e-4, atol=1e-6)
    assert abs(expected - equivariance_error(one.softmax(1), two.softmax(1), u)) > 1e-3, "not under the map itself"


def test_it_is_the_metric_of_an_image_and_its_scaled_version(rng: torch.Generator):
    """The image that AugL scales by u is S(I; g) with g = u⁻¹."""
    model, shown, u = segmenter(), images(), random_map(3, 5, strength=1.0, generator=rng)
    with torch.no_grad():
        found = mask_error(model(shown), model(unscale(shown, u)), u)
    assert found.item() == pytest.approx(eque(model, shown, u.inverse()), rel=1e-3)


def test_by_hand():
    """One mask is (1/2, 1/2) everywhere; half of the pixels of the other are (1/4, 3/4)."""
    one, two = torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4)
    two[0, 1, 0, :2] = torch.tensor(3.0).log()
    assert mask_error(one, two, identity_map()).item() == pytest.approx(2 * 0.25**2 / 2, rel=1e-5)


def test_gradients_reach_both_masks(rng: torch.Generator):
    u = random_map(2, 4, strength=1.0, generator=rng).to(dtype=torch.float64)
    sides = tuple(logits(seed, dtype=torch.float64, size=5).requires_grad_() for seed in (0, 1))
    assert gradcheck(lambda a, b: mask_error(a, b, u), sides)
    mask_error(*sides, u).backward()
    assert all(side.grad is not None and side.grad.abs().max() > 1e-4 for side in sides)


# AugL.


class Witness(nn.Module):
    """A network that stores its last input and output."""

    def __init__(self) -> None:
        super().__init__()
        self.network = segmenter()

    def forward(self, x: Tensor) -> Tensor:
        self.shown, self.answer = x, self.network(x)
        return self.answer


@pytest.mark.parametrize("weight", [0.0, 2.5])
def test_the_loss_is_the_tasks_plus_weight_times_the_error(weight: float):
    """Images and scaled images pass the model in one batch; the task's loss is computed for the images only."""
    method, model, shown = AugL(weight=weight, scaling=STRONG), Witness(), images()
    found = method.losses(model, shown, LABELS, cross_entropy, draws())
    u = STRONG.maps(draws(), "equivariance")
    assert torch.equal(model.shown, torch.cat((shown, unscale(shown, u))))
    one, two = model.answer.chunk(2)
    assert found["task"] == cross_entropy(one, LABELS)
    assert found["equivariance"] == mask_error(one, two, u)
    assert found["equivariance"] > 1e-3
    assert found["loss"] == found["task"] + weight * found["equivariance"]
    assert set(found) == {"loss", "task", "equivariance"}


def test_what_is_minimised_is_the_metric():
    """Training with this loss alone makes a segmenter more equivariant under scalings that it was not trained on."""
    model, shown = segmenter(), images()
    g = STRONG.maps(draws(seed=77)).inverse()
    before = eque(model, shown, g)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(30):
        optimizer.zero_grad()
        AugL(scaling=STRONG).losses(model, shown, LABELS, cross_entropy, draws(seed=step))["equivariance"].backward()
        optimizer.step()
    assert eque(model, shown, g) < 0.6 * before


def test_images_that_are_not_scaled_have_nothing_to_compare():
    method = AugL(scaling=RandomScaling(probability=0.0))
    assert method.losses(segmenter(), images(), LABELS, cross_entropy, draws())["equivariance"] < 1e-12


def test_half_precision_masks_are_compared_in_single():
    model, method, shown = segmenter(), AugL(scaling=STRONG), images()
    exact = method.losses(model, shown, LABELS, cross_entropy, draws())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = method.losses(model, shown, LABELS, cross_entropy, draws())
    assert all(value.dtype == torch.float32 for value in found.values())
    torch.testing.assert_close(found["equivariance"], exact["equivariance"], rtol=0.02, atol=0)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_cannot_be_minimised_is_refused(weight: float):
    AugL(weight=0.0).check()
    with pytest.raises(ConfigError, match=f"--method.weight is {weight}"):
        AugL(weight=weight).check()


def test_a_scaling_that_cannot_be_drawn_is_refused():
    with pytest.raises(ConfigError, match="probability is 2"):
        AugL(scaling=RandomScaling(probability=2.0)).check()


# Canon, scaled back.


def canon(base: nn.Module | None = None, **settings) -> DiscreteCanonicalizer:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        chosen = {"configurations": 9, "mode": "equivariant", "resolution": 24, **settings}
        return DiscreteCanonicalizer(base or segmenter(), **chosen)


def test_canon_begins_with_the_backbones_masks_bitwise():
    base, shown = segmenter(), images()
    model = Canon(configurations=16, mode="equivariant").build(base)
    assert torch.equal(model(shown), base(shown))


@torch.no_grad()
def test_canon_scales_the_masks_of_the_chosen_map_back():
    model, shown = randomise(canon(), std=3.0), images(6, seed=5)
    m = model.choose(shown)
    assert m.mean_displacement().max() > 0.01
    expected = scale(model.base(unscale(shown, m)), m)
    assert torch.equal(model(shown), expected)
    assert (model(shown) - model.base(unscale(shown, m))).abs().max() > 0.01
    assert torch.equal(randomise(canon(mode="invariant"), std=3.0)(shown), model.base(unscale(shown, m)))


def test_canons_energy_learns_from_masks_alone():
    """This needs a segmenter that sees neighbours: the masks of a pointwise one hardly depend on the map."""
    model = randomise(canon())
    cross_entropy(model(images()), LABELS).backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in model.parameters())


# DEC, scaled back.


def trained(method: Canon | DEC, base: nn.Module, mode: str = "equivariant") -> nn.Module:
    """Return a model with random maps that are not the identity, as if it had been trained."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        changes = {"config": {"mode": mode}} if isinstance(method, DEC) else {"mode": mode}
        return randomise(with_changes(method, changes).build(base), std=3.0)


@pytest.mark.parametrize("update", ["direct", "compose"])
def test_dec_begins_with_the_backbones_masks_bitwise(update: str):
    base, shown = segmenter(), images()
    expected = base(shown)
    assert torch.equal(dec(mode="equivariant", update=update).build(base)(shown), expected)


@torch.no_grad()
def test_dec_scales_the_masks_back():
    model, shown = trained(dec(), segmenter()), images()
    found, report = model(shown, return_report=True)
    m = report["input"].map
    assert m.mean_displacement().max() > 0.01
    assert (found - model.base(unscale(shown, m))).abs().max() > 0.01
    torch.testing.assert_close(found, scale(model.base(unscale(shown, m)), m), atol=1e-6, rtol=0)


EITHER = pytest.mark.parametrize("method", [Canon(configurations=25), dec(knots=(6,))], ids=["canon", "dec"])


@EITHER
@torch.no_grad()
def test_around_a_pointwise_segmenter_any_map_costs_resampling_alone(method: Canon | DEC):
    """S(M(S⁻¹(I))) equals M(I) up to interpolation; without scaling back, the difference is large."""
    shown = images(size=64)
    expected = pointwise()(shown).softmax(1)
    back, left = (
        (trained(method, pointwise(), mode)(shown).softmax(1) - expected).square().sum(1).mean().item()
        for mode in ("equivariant", "invariant")
    )
    assert 0 < back < 2e-4
    assert left > 100 * back


@EITHER
def test_wrapping_a_pointwise_segmenter_leaves_it_equivariant(method: Canon | DEC):
    shown, g = images(size=64), RandomScaling(strength=1.0).maps(draws(seed=4)).inverse()
    floor = eque(pointwise(), shown, g)
    back, left = (eque(trained(method, pointwise(), mode), shown, g) for mode in ("equivariant", "invariant"))
    assert 0 < floor < 1e-4
    assert back < 5 * floor
    assert left > 100 * floor


class Given(nn.Module):
    """A canonicalizer that always returns a given map."""

    def __init__(self, m: Map) -> None:
        super().__init__()
        self.m = m

    def forward(self, x: Tensor) -> SiteReport:
        nothing = torch.zeros(len(x))
        return SiteReport(self.m, nothing, nothing, nothing == 0)  # type: ignore[arg-type]


def with_map(base: nn.Module, m: Map) -> AdaptedModel:
    model = adapt(base, DECConfig(sites=("input",), mode="equivariant"), input_size=(3, 64, 64))
    model.input_canonicalizer = Given(m)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(("kind", "factor"), [(TiedToPlaces, 100), (segmenter, 4)])
def test_canonicalizers_that_follow_the_image_make_any_segmenter_equivariant(
    kind: Callable[[], nn.Module], factor: float, rng: torch.Generator
):
    """h(S(I; g)) = g∘h(I) gives M̃(S(I; g)) = S(M̃(I); g), whatever M is."""
    base, shown = kind(), images(size=64)
    g, m = (map_from_logits(*(torch.rand(3, 4, generator=rng) for _ in "xy"), family="separable") for _ in range(2))
    with torch.no_grad():
        answer, followed = with_map(base, m)(shown), with_map(base, g @ m)(scale(shown, g))
        stayed = with_map(base, m)(scale(shown, g))
    good, bad = (equivariance_error(answer.softmax(1), other.softmax(1), g).item() for other in (followed, stayed))
    assert good < 5e-4
    assert min(bad, eque(base, shown, g)) > factor * good


# Methods that support masks.


def test_modes_are_checked_against_the_answers():
    check_mode("equivariant", dense=True)
    check_mode("invariant", dense=False)
    with pytest.raises(ConfigError, match=r"mode is equivarient, .*; use equivariant"):
        check_mode("equivarient", dense=True)
