"""Canon: the best of a finite set of maps, against a loop over all of them."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from baseline_inputs import cnn, images, randomise
from torch import Tensor, nn

from localscale.conventions import lattice, resize, resize_cubic, stretch
from localscale.errors import ConfigError
from localscale.lab.methods import Canon, DiscreteCanonicalizer
from localscale.lab.methods.canon import EnergyCNN, profiles
from localscale.lab.randomness import Draws
from localscale.lab.recipes import find_recipe
from localscale.maps import SeparableMap, map_from_logits
from localscale.maps.monotone import MonotoneMap
from localscale.warp import scale, unscale


def trained(dtype: torch.dtype = torch.float32, **settings) -> DiscreteCanonicalizer:
    """Return a canonicalizer around a small network; its energies differ between maps."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = DiscreteCanonicalizer(cnn(), **{"configurations": 9, "resolution": 24, **settings})
    return randomise(model, std=3.0).to(dtype)


def pictures(batch: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return images that are not square and larger than the copies on which energies are computed."""
    return images(batch, 48, seed=5, dtype=dtype)[:, :, :30]


# The set.


@pytest.mark.parametrize(("count", "knots"), [(1, 6), (5, 6), (8, 6), (9, 6), (5, 4)])
def test_profiles_are_distinct_increasing_maps_and_the_first_is_the_identity(count: int, knots: int):
    raw = profiles(count, knots, 1.0)
    assert raw.shape == (count, knots - 1)
    assert not raw[0].any()
    assert all((a - b).abs().max() > 0.1 for a, b in itertools.combinations(raw, 2))
    assert (MonotoneMap.from_logits(raw).slopes > 0.25).all()


def test_profiles_come_in_opposite_pairs_and_grow_with_strength():
    raw = profiles(7, 6, 1.0)
    torch.testing.assert_close(raw[1::2], -raw[2::2])
    torch.testing.assert_close(profiles(7, 6, 2.5), 2.5 * raw)
    assert (raw[1].diff() < 0).all(), "the first enlarges one side at the cost of the other"


@pytest.mark.parametrize("count", [64, 25])
def test_configurations_are_all_pairs_and_hold_the_identity_once(count: int):
    every = Canon(configurations=count).build(cnn()).configurations()
    assert every.batch == count
    assert len(every.state().unique(dim=0)) == count
    assert torch.equal(every.mean_displacement() == 0, torch.arange(count) == 0)
    side = round(count**0.5)
    assert len(every.x.values.unique(dim=0)) == len(every.y.values.unique(dim=0)) == side


@pytest.mark.parametrize("count", [0, 8, 63, -4])
def test_a_number_that_is_not_a_square_is_refused(count: int):
    for refuse in (
        Canon(configurations=count).check,
        lambda: DiscreteCanonicalizer(nn.Identity(), configurations=count),
    ):
        with pytest.raises(ConfigError, match=f"{count} configurations are not a square; expected 25, 64"):
            refuse()


@pytest.mark.parametrize(
    "settings",
    [
        {"canon_knots": 1},
        {"canon_knots": 2},
        {"canon_knots": 5},  # 4 increments tell 7 profiles apart, and 64 configurations need 8
        {"canon_strength": 0.0},
        {"canon_strength": float("nan")},
        {"canon_strength": float("inf")},
    ],
)
def test_configurations_that_would_not_be_distinct_are_refused(settings: dict):
    with pytest.raises(ConfigError):
        Canon(**settings).check()


def test_the_set_can_undo_the_augmentation_of_mnist():
    """The best of the row's 64 maps leaves half of the displacement; maps twice as strong leave 70 %."""
    u = find_recipe("mnist-deit_tiny-aug").augmentation.maps(Draws(0, torch.arange(100)))
    points = lattice(12, 12, dtype=torch.float32).reshape(1, -1, 2)

    def left(method: Canon) -> float:
        every = method.build(cnn()).configurations()
        moved = [(u(every[k](points).expand(100, -1, -1)) - points).norm(dim=-1).mean(1) for k in range(every.batch)]
        return float(torch.stack(moved).amin(0).mean() / u.mean_displacement().mean())

    method = find_recipe("mnist-deit_tiny-canon").method
    assert isinstance(method, Canon)
    assert left(method) < 0.5
    assert left(Canon(canon_strength=2 * method.canon_strength)) > 0.65


# The choice.


def test_at_first_answers_are_the_backbones_bitwise():
    backbone, shown = cnn(), pictures()
    model = Canon(configurations=16).build(backbone)
    assert torch.equal(model(shown), backbone(shown))
    assert not model.choose(shown).displacement_field(7, 7).any()


def oracle(model: DiscreteCanonicalizer, shown: Tensor) -> tuple[Tensor, list[SeparableMap]]:
    """Return energies ``(B, K)`` of every image under every pair of profiles, computed one at a time, and the maps."""
    raw = profiles(3, 6, 1.0)
    maps = [map_from_logits(x[None], y[None], family="separable") for x, y in itertools.product(raw, raw)]
    rows = [[model.energy(unscale(resize(image[None], 15, 24), m)) for m in maps] for image in shown]
    return torch.stack([torch.cat(row) for row in rows]), maps


@torch.no_grad()
def test_the_map_of_least_energy_is_chosen():
    model, shown = trained(), pictures()
    energies, maps = oracle(model, shown)
    best = energies.argmin(1).tolist()
    assert len(set(best)) >= 3, "images differ"
    two_best = energies.topk(2, dim=1, largest=False).values
    assert (two_best.diff(dim=1) > 1e-4).all(), "no ties"
    torch.testing.assert_close(model.energies(shown), energies, atol=1e-5, rtol=1e-5)
    assert torch.equal(model.choose(shown).state(), torch.cat([maps[k].state() for k in best]))
    expected = torch.cat([model.base(unscale(image[None], maps[k])) for image, k in zip(shown, best, strict=True)])
    torch.testing.assert_close(model(shown), expected)


@torch.no_grad()
def test_images_do_not_see_each_other():
    model, shown = trained(), pictures()
    alone = torch.cat([model.choose(image[None]).state() for image in shown])
    assert torch.equal(model.choose(shown).state(), alone)


def test_energies_do_not_depend_on_the_temperature_and_weights_do():
    cold, warm = trained(temperature=0.5), trained(temperature=50.0)
    assert torch.equal(cold.energies(pictures()), warm.energies(pictures()))
    slopes = [
        torch.autograd.grad(model.choose(pictures()).mean_displacement().sum(), model.energy.to_energy.weight)[0].norm()
        for model in (cold, warm)
    ]
    assert slopes[0] > 5 * slopes[1]


# The gradient.


def test_forward_is_the_chosen_map_and_backward_the_weighted_mean_of_all():
    """The gradient to the chosen map is passed to the mean of all maps, weighted by a softmax of energies (float64)."""
    model, shown = trained(torch.float64, temperature=2.0), pictures(dtype=torch.float64)
    every, energies = model.configurations().state(), model.energies(shown)
    chosen = model.choose(shown)
    assert torch.equal(chosen.state(), every[energies.argmin(1)])
    leaf = chosen.state().detach().requires_grad_()
    answer = model.base(unscale(shown, SeparableMap.from_state(leaf, (6, 6))))
    (to_map,) = torch.autograd.grad(answer.square().sum(), leaf)
    mean = F.softmax(-energies / 2.0, dim=1) @ every
    weights = list(model.energy.parameters())
    expected = torch.autograd.grad((mean * to_map).sum(), weights)
    found = torch.autograd.grad(model(shown).square().sum(), weights)
    for one, other in zip(found, expected, strict=True):
        assert other.abs().max() > 1e-6
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-7)


def test_gradients_reach_the_energy_network():
    """At first only its last layer has a gradient, afterwards all layers do. The backbone always has one."""
    model, shown = Canon(configurations=9, tuned=True).build(cnn()), pictures()
    for moved in (False, True):
        if moved:
            randomise(model)
        model.zero_grad()
        model(shown).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert bool(parameter.grad.any()) == (moved or not name.startswith("energy.layers")), name


# Precision.


def test_autocast_keeps_coordinates_in_single_precision():
    model, shown = trained(), pictures()
    every = model.configurations().state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        chosen, answer = model.choose(shown), model(shown)
    assert chosen.dtype == torch.float32
    assert all((every == row).all(dim=1).any() for row in chosen.state()), "a configuration, to the last bit"
    assert answer.dtype == torch.bfloat16
    answer.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in model.energy.parameters())


def test_a_half_precision_model_keeps_coordinates_in_single_precision():
    model, every = trained().bfloat16(), trained().configurations().state()
    chosen = model.choose(pictures().bfloat16())
    assert model.configurations().dtype == chosen.dtype == torch.float32
    assert all((every == row).all(dim=1).any() for row in chosen.state())


# The energy.


def test_an_energy_is_one_number_per_image_and_zero_at_first():
    energy = EnergyCNN(2)
    assert torch.equal(energy(torch.rand(3, 2, 17, 9)), torch.zeros(3))
    nn.init.ones_(energy.to_energy.weight)
    assert len(energy(torch.rand(3, 2, 17, 9)).unique()) == 3


# Images larger than the backbone's input.


@pytest.mark.parametrize("mode", ["invariant", "equivariant"])
def test_large_images_become_small_canonical_forms(mode: str):
    base = cnn() if mode == "invariant" else nn.Conv2d(3, 4, 3, padding=1)
    sizes = {"input_size": (3, 24, 16), "source_size": (48, 32)}
    model = Canon(configurations=9, mode=mode).build(base, **sizes)
    large = images(2, 48, seed=5)[:, :, :, :32]
    before = base(resize_cubic(large, 24, 16))
    expected = before if mode == "invariant" else stretch(before, 48, 32)
    torch.testing.assert_close(model(large), expected, atol=1e-5, rtol=0)
    m = randomise(model, std=3.0).choose(large)
    after = base(unscale(large, m, size=(24, 16)))
    expected = after if mode == "invariant" else scale(stretch(after, 48, 32), m)
    torch.testing.assert_close(model(large), expected)
