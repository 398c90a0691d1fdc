"""The size network: it starts as the identity, learns sizes without labels, and brings things to one size."""

import functools
import math
import pickle

import pytest
import torch
from host_syncs import HostSyncs
from torch import Tensor

import localscale as ls
from localscale.canonicalizer import size_loss, sizes
from localscale.canonicalizer.looks import Looks, pyramid
from localscale.conventions import lattice
from localscale.errors import ConfigError, ShapeError

SIDE = 64
pytestmark = pytest.mark.filterwarnings("ignore:some fixed points")  # a few steps are enough here


def config(**settings) -> ls.DECConfig:
    network = ls.SizeNetwork(**{"width": 16, "blocks": 1} | settings)
    return ls.DECConfig(knots=7, network=network, solver=ls.Picard(max_steps=8, tolerance=1e-3))


def canonicalizer(channels: int = 1, **settings) -> ls.Canonicalizer:
    torch.manual_seed(0)
    return ls.Canonicalizer(channels, (7, 7), config(**settings))


def rings(radius: Tensor, side: int = SIDE) -> Tensor:
    """One ring of each radius (in fractions of the side) in the middle of a black image, ``(B, 1, side, side)``."""
    place = torch.linspace(-0.5, 0.5, side)
    distance = (place[:, None].square() + place.square()).sqrt()
    return (1 - (distance - radius[:, None, None]).abs() / (0.3 * radius[:, None, None])).clamp_min(0).unsqueeze(1)


@functools.cache
def learned(steps: int = 120) -> tuple[ls.Canonicalizer, float, float]:
    """A canonicalizer that learned the sizes of rings, its last error, and the error of predicting no change."""
    module, rng = canonicalizer(target=0.3), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(module.parameters(), 5e-3)
    for _ in range(steps):
        found = module.size_loss(rings(0.06 + 0.14 * torch.rand(24, generator=rng)))
        optimizer.zero_grad()
        found.loss.backward()
        optimizer.step()
    return module, float(found.error), float(found.change)


@pytest.mark.parametrize("weight", ["edges", "learned"])
def test_an_untrained_network_moves_nothing(weight: str):
    module = canonicalizer(3, weight=weight)
    torch.nn.init.normal_(module.network.head.weight)
    report = module(torch.rand(2, 3, SIDE, 48))
    assert not report.map.displacements.any()
    assert report.converged.all()


def test_learning_explains_changes_of_size_and_brings_things_to_one_size():
    module, error, change = learned()
    assert error < 0.5 * change
    assert 0.3 < float(module.network.trust) < 1
    radius = torch.linspace(0.07, 0.18, 8)
    with torch.no_grad():
        report = module(rings(radius))
    middle = torch.tensor([[[0.5, 0.5]]]).expand(8, -1, -1)
    canonical = (radius / report.map.local_scale(middle)[:, 0]).log()
    assert canonical.std() < 0.6 * radius.log().std()
    before, after = report.sizes_before, pickle.loads(pickle.dumps(report)).sizes_after
    assert before[0].shape == after[1].shape == before[1].shape


def test_sizes_follow_a_zoom():
    module, *_ = learned()
    with torch.no_grad():
        near, far = (module.network.sizes(rings(torch.tensor([r]), 33)) for r in (0.16, 0.08))
    size = [float((s * w).sum() / w.sum()) for s, w in (near, far)]
    assert size[0] - size[1] == pytest.approx(torch.tensor(2.0).log().item(), abs=0.25)


def test_settling_reaches_the_target_without_another_look(monkeypatch: pytest.MonkeyPatch):
    """The size of a thing in the middle is given; through the map it must be the target."""
    grid = torch.linspace(0, 1, 21)
    distance = (grid[:, None] - 0.5).square() + (grid - 0.5).square()
    given = torch.full((1, 21, 21), -0.4), torch.exp(-distance / 0.02)[None]
    left = []
    for settling in (1, 2, 4):
        network = canonicalizer(settling=settling, target=0.3).network
        network.trust.fill_(0.8)
        monkeypatch.setattr(network, "sizes", lambda _: given)
        change = network(torch.rand(1, 1, 33, 33)).local_scale(torch.tensor([[[0.5, 0.5]]])).log()
        left.append(abs(float(-0.4 - change - 0.3)))
    assert left[2] < left[1] / 2 < left[0] / 4
    assert left[2] < 0.03


def test_a_random_contrast_keeps_the_range_and_the_order():
    looks = torch.rand(5, 3, 9, 9) * 4 - 2
    looks[4] = 1.5  # a constant look has no contrast
    changed = size_loss.change_contrast(looks)
    for before, after in zip(looks.flatten(1).aminmax(dim=1), changed.flatten(1).aminmax(dim=1), strict=True):
        assert torch.allclose(before, after, atol=0.1)
    order = looks.flatten(1).argsort(dim=1)
    assert (changed.flatten(1).gather(1, order).diff(dim=1) >= -1e-5).all()
    assert (changed[:4] - looks[:4]).abs().flatten(1).amax(dim=1).min() > 0.01


def test_images_without_anything_that_matters_rest():
    module, *_ = learned(20)
    images = torch.stack((torch.zeros(1, SIDE, SIDE), torch.ones(1, SIDE, SIDE)))
    with torch.no_grad():
        assert module(images).map.mean_displacement().max() < 1e-3


def test_a_lost_image_is_the_identity_and_leaves_the_others_alone():
    module, *_ = learned(20)
    images = rings(torch.tensor([0.1, 0.1, 0.16]))
    broken = images.clone()
    broken[1, 0, 3, 3] = torch.nan
    with torch.no_grad():
        whole, partly = module(images), module(broken)
    assert not partly.map.displacements[1].any()
    assert not partly.converged[1]
    torch.testing.assert_close(partly.map.displacements[::2], whole.map.displacements[::2], atol=1e-5, rtol=0)
    assert torch.isfinite(module.size_loss(broken).loss)
    assert module.size_loss(torch.full_like(images, torch.nan)).error == 0, "an image that is not finite has no part"


@pytest.mark.parametrize("bias", [-50.0, 50.0])
def test_sizes_beyond_the_learned_range_are_bounded(bias: float):
    module = canonicalizer()
    module.network.trust.fill_(1.0)
    with torch.no_grad():
        module.network.head.bias.fill_(bias)
        report = module(torch.rand(3, 1, SIDE, SIDE))
    size = report.sizes_before[0]
    assert size.sign().unique() == math.copysign(1, bias)
    assert size.abs().max() <= sizes.LARGEST
    assert report.map.min_determinant().min() > 0.029, "the guard holds"


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 3, 1, 9), (2, 8, 1, 1), (2, 3, 400, 3)])
@pytest.mark.parametrize("weight", ["edges", "learned"])
def test_features_of_one_pixel_along_a_side(shape: tuple[int, ...], weight: str):
    module, features = canonicalizer(shape[1], weight=weight), torch.rand(shape)
    torch.nn.init.normal_(module.network.head.weight)
    module.network.trust.fill_(1.0)
    report = module(features)
    (module.size_loss(features).loss + report.map.displacements.square().sum()).backward()
    assert report.map.min_determinant().min() > 0.029
    assert all(bool(p.grad.isfinite().all()) for p in module.parameters() if p.grad is not None)
    if shape[-2:] == (1, 1):
        assert not report.map.displacements.any(), "one pixel has no sizes to compare"


@pytest.mark.parametrize(("shrink", "smaller"), [(True, True), (False, False)])
def test_large_things_are_made_smaller_only_if_asked(monkeypatch: pytest.MonkeyPatch, shrink: bool, smaller: bool):
    grid = torch.linspace(0, 1, 21)
    weight = torch.exp(-((grid[:, None] - 0.5).square() + (grid - 0.5).square()) / 0.02)[None]
    network, middle = canonicalizer(shrink=shrink, target=0.0).network, torch.tensor([[[0.5, 0.5]]])
    network.trust.fill_(1.0)
    change = {}
    for size in (-0.5, 0.5):
        monkeypatch.setattr(network, "sizes", lambda _, size=size: (torch.full((1, 21, 21), size), weight))
        change[size] = float(network(torch.rand(1, 1, 33, 33)).local_scale(middle).log())
    assert change[-0.5] < -0.2, "small things are always magnified"
    assert (change[0.5] > 0.2) == smaller
    assert abs(change[0.5]) < 1e-6 or smaller


def test_a_step_magnifies_by_no_more_than_most(monkeypatch: pytest.MonkeyPatch):
    network = canonicalizer(most=1.2, target=0.0).network
    network.trust.fill_(1.0)
    seen = []
    monkeypatch.setattr(sizes, "map_from_scales", lambda scale, *_, **__: seen.append(scale) or ls.identity_map())
    network._correct(torch.tensor([[[-3.0, -0.1, 0.0, 3.0]]]), torch.ones(1, 1, 4))
    torch.testing.assert_close(seen[0], torch.tensor([[[1 / 1.2, math.exp(-0.1), 1.0, 1.2]]]))


def test_weights_that_are_not_sure_move_nothing(monkeypatch: pytest.MonkeyPatch):
    size, weak = torch.randn(1, 9, 9), 0.1 * torch.rand(1, 9, 9)
    moved = []
    for sure in (0.0, 0.1):
        network = canonicalizer(weight="learned", sure=sure).network
        network.trust.fill_(1.0)
        monkeypatch.setattr(network, "estimates", lambda _: (size, weak.logit()))
        moved.append(network(torch.rand(1, 1, 33, 33)).displacements.abs().max())
    assert moved[0] > 1e-2
    assert moved[1] == 0


def test_a_weight_of_ones_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sizes.WEIGHTS, "nothing", lambda looks, size: looks.new_zeros(len(looks), *size))
    module = canonicalizer(weight="nothing")
    module.network.trust.fill_(1.0)
    assert not module(rings(torch.tensor([0.1]))).map.displacements.any()


def test_a_weight_of_ones_own_counts_where_it_is_a_positive_number(monkeypatch: pytest.MonkeyPatch):
    def mine(looks: Tensor, size: tuple[int, int]) -> Tensor:
        weight = torch.ones(len(looks), *size, dtype=torch.float64)
        weight[:, :5], weight[:, 5:9], weight[:, 9:12] = torch.nan, -1.0, torch.inf
        return weight

    monkeypatch.setitem(sizes.WEIGHTS, "mine", mine)
    module, looks = canonicalizer(weight="mine"), torch.rand(4, 1, 33, 33)
    size, weight = module.network.sizes(looks)
    assert weight.dtype == size.dtype
    assert (not weight[:, :12].any(), bool(weight[:, 12:].all())) == (True, True)
    assert 0 < float(module.size_loss(torch.rand(4, 1, SIDE, SIDE)).error) < 2


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (
            torch.ones(1, 1, 17, 17),
            r"WEIGHTS\['mine'\] returned \(1, 1, 17, 17\); expected a tensor of shape \(1, 17, 17\)",
        ),
        (None, "returned NoneType"),
    ],
)
def test_a_function_that_returns_no_weights_is_refused(returned, sentence: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sizes.WEIGHTS, "mine", lambda looks, size: returned)
    with pytest.raises(ShapeError, match=sentence):
        canonicalizer(weight="mine")(torch.rand(1, 1, SIDE, SIDE))


@pytest.mark.parametrize("images", [torch.full((4, 1, SIDE, SIDE), 0.5), torch.full((4, 1, SIDE, SIDE), torch.nan)])
def test_images_that_show_nothing_give_no_trust(images: Tensor):
    """Trust that nothing was learned for would move the images that come later."""
    module = canonicalizer()
    for _ in range(5):
        module.size_loss(images)
    assert module.network.trust == 0
    module.network.trust.fill_(0.5)
    module.size_loss(images)
    assert module.network.trust == 0.5


def test_features_without_room_for_zooms_are_taught_by_maps():
    source = torch.rand(6, 8, 14, 14)
    looks = Looks(pyramid(source, (14, 14)), (14, 14))
    pairs = size_loss.draw_pairs(6, looks)
    assert [m.batch for m in pairs.maps] == [3, 3]
    assert (
        pairs.move(lattice(14, 14, dtype=source.dtype).expand(6, -1, -1, -1))[1].flatten(1).abs().amax(dim=1) > 0.01
    ).all()


def test_gradients_reach_the_network_through_the_equilibrium():
    module, *_ = learned(20)
    module(rings(torch.tensor([0.07, 0.15]))).map.displacements.square().sum().backward()
    assert module.network.head.weight.grad.abs().max() > 0


@pytest.mark.parametrize("weight", ["edges", "learned"])
def test_with_fixed_steps_nothing_synchronises_with_the_host(weight: str):
    """So that inference and training can be recorded as CUDA graphs."""
    network = ls.SizeNetwork(width=8, blocks=0, weight=weight)
    solver = ls.Picard(max_steps=2, tolerance=1e-3, fixed_steps=True)
    module = ls.Canonicalizer(1, (5, 5), ls.DECConfig(knots=5, network=network, solver=solver))
    module.network.trust.fill_(0.5)
    images = rings(torch.linspace(0.07, 0.15, 4))
    with HostSyncs() as syncs:
        (module(images).map.displacements.square().sum() + module.size_loss(images).loss).backward()
    assert syncs.count == 0


def test_it_survives_json():
    assert ls.DECConfig.from_json(config(weight="learned").to_json()) == config(weight="learned")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"width": 12}, "width is 12; expected a positive multiple of 8"),
        ({"blocks": -1}, "blocks is -1"),
        ({"settling": 0}, "settling is 0"),
        ({"resolution": 4}, "resolution is 4"),
        ({"target": 3.0}, "target is 3.0"),
        ({"background": 0.0}, "background is 0.0"),
        ({"weight": "edge"}, "did you mean edges"),
        ({"weight": sizes.edge_weight}, "weight is a function; expected a name"),
        ({"sure": 1.0}, "sure is 1.0"),
        ({"most": 1.0}, "most is 1.0; expected a factor above 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        ls.SizeNetwork(**settings)


def test_other_networks_estimate_no_sizes():
    with pytest.raises(ConfigError, match="only a SizeNetwork learns sizes"):
        ls.Canonicalizer(3, (4, 4), ls.DECConfig.paper()).size_loss(torch.rand(2, 3, 32, 32))
    with pytest.raises(ConfigError, match="estimates no sizes"):
        _ = ls.Canonicalizer(3, (4, 4), ls.DECConfig.paper())(torch.rand(1, 3, 32, 32)).sizes_before
