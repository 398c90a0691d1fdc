"""One step of the equilibrium: direct, compose and descent (paper, Eq. deq_cano)."""

import pytest
import torch
from canonicalizer_inputs import canonicalizer, noise, smooth
from dec_configs import dec_config
from torch import Tensor, nn

from localscale.canonicalizer import UPDATES, Canonicalizer, EnergyNetwork, MapNetwork
from localscale.conventions import lattice
from localscale.maps import FAMILIES, MonotoneMap, SeparableMap, identity_map, map_from_logits, random_map
from localscale.warp import scale, unscale

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EACH_UPDATE = pytest.mark.parametrize("update", UPDATES)


def step(module: Canonicalizer, features: Tensor, m):
    """Return the map after one step from ``m``."""
    config = module.config
    return config.update.step(m, lambda seen: unscale(features, seen, sampler="gather"), module.network, config.guard)


@EACH_UPDATE
@pytest.mark.parametrize(("family", "dtype"), [("grid", torch.float32), ("separable", torch.float64)])
def test_the_identity_is_exactly_the_first_equilibrium(update: str, family: str, dtype: torch.dtype):
    module = canonicalizer(3, (5, 4), update=update, family=family, dtype=dtype)
    start = identity_map(2, (5, 4), family=family, dtype=dtype)
    after = step(module, noise(2, 3, 20, 30, dtype=dtype), start)
    assert torch.equal(after.state(), start.state())
    assert not after.displacement_field(9, 9).any()


@EACH_FAMILY
def test_direct_is_the_network_on_the_canonical_form(family: str):
    module = canonicalizer(3, std=0.5, update="direct", family=family)
    features = noise(2, 3, 20, 20)
    m = random_map(2, 6, family=family, generator=torch.Generator().manual_seed(4))
    assert torch.equal(
        step(module, features, m).state(), module.network(unscale(features, m, sampler="gather")).state()
    )


@EACH_FAMILY
def test_compose_follows_the_map_by_the_networks(family: str):
    """l∘δ on the lattice."""
    module = canonicalizer(3, std=0.5, update="compose", family=family, guard=None)
    features = noise(3, 3, 20, 20)
    m = random_map(3, 6, strength=1.0, family=family, generator=torch.Generator().manual_seed(4))
    after, delta = step(module, features, m), module.network(unscale(features, m))
    torch.testing.assert_close(on_knots(after, 6), m(on_knots(delta, 6)), atol=1e-5, rtol=0)


def test_the_guard_reaches_the_composition():
    """The composition of two guarded maps may fold."""
    module = canonicalizer(3, std=0.5, update="compose", guard=0.6)
    features = noise(20, 3, 20, 20)
    m = random_map(20, 6, strength=1.0, guard=0.6, generator=torch.Generator().manual_seed(4))
    delta = module.network(unscale(features, m))
    assert (m.compose_resampled(delta).min_determinant() < 0.55).any(), "or the guard has nothing to do"
    assert (step(module, features, m).min_determinant() >= 0.6 - 1e-4).all()


# Compose is equivariant by construction; direct cannot be.


def pair(at: Tensor) -> SeparableMap:
    """The same monotone map, with these values on even knots, along x and along y."""
    axis = MonotoneMap.from_displacements(at - torch.linspace(0, 1, at.shape[-1], dtype=at.dtype))
    return SeparableMap(axis, axis)


def on_knots(m, knots: int) -> Tensor:
    return m(lattice(knots, knots, dtype=m.dtype).reshape(1, -1, 2))


@pytest.mark.parametrize("start", ["identity", "warped"])
def test_same_canonical_form_and_compose_carries_g_along_while_direct_forgets_it(start: str):
    """g has a knot only at 1/2 and m keeps 1/2, so g∘m is exact on the knots."""
    even = torch.tensor([[0, 0.25, 0.5, 0.75, 1]], dtype=torch.float64)
    m = pair(even if start == "identity" else torch.tensor([[0, 0.32, 0.5, 0.71, 1]], dtype=torch.float64))
    g = pair(torch.tensor([[0, 0.3, 0.6, 0.8, 1]], dtype=torch.float64))
    chain = g.compose_resampled(m)
    dense = torch.rand(1, 500, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(chain(dense), g(m(dense)), atol=1e-12, rtol=0)

    features = smooth(1, 3, 193)
    scaled = scale(features, g)
    interpolation = float((unscale(scaled, chain) - unscale(features, m)).abs().max())
    assert interpolation < 0.02, "S⁻¹(F′; g∘m) = S⁻¹(F; m)"
    assert float((scaled - features).abs().max()) > 1, "though F′ is far from F"

    for update in ("compose", "direct"):
        module = canonicalizer(3, (5, 5), std=0.5, dtype=torch.float64, family="separable", update=update)
        with torch.no_grad():
            here, there = step(module, features, m), step(module, scaled, chain)
        carried, forgotten = (
            float((on_knots(there, 5) - other).abs().max()) for other in (g(on_knots(here, 5)), on_knots(here, 5))
        )
        assert float((on_knots(here, 5) - on_knots(m, 5)).abs().max()) > 0.02, "the network does something"
        kept, lost = (carried, forgotten) if update == "compose" else (forgotten, carried)
        assert kept < 5e-4
        assert lost > 0.05


@pytest.mark.parametrize("seed", range(3))
def test_a_grid_carries_g_along_too(seed: int):
    """Starting from the identity, g∘id is on the lattice for every g; a guard would shrink g∘δ."""
    g = random_map(1, 6, strength=0.8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    module = canonicalizer(3, std=0.5, dtype=torch.float64, update="compose", guard=None)
    errors = []
    for size in (49, 97, 193):
        features = smooth(1, 3, size, seed=seed)
        with torch.no_grad():
            here = step(module, features, identity_map(1, 6, dtype=torch.float64))
            there = step(module, scale(features, g), g)
        errors.append(float((on_knots(there, 6) - g(on_knots(here, 6))).abs().max()))
        assert here.mean_displacement() > 0.02
        assert float((on_knots(there, 6) - on_knots(here, 6)).abs().max()) > 0.04
    assert errors[0] > 2 * errors[1] > 4 * errors[2], "what is left is interpolation, and goes with the pixels' size"
    assert errors[2] < 5e-4


class Straighten(nn.Module):
    """A network with a known equilibrium: δ inverts, on the knots, the ramps in channels 0 (x) and 1 (y)."""

    def __init__(self, knots: int) -> None:
        super().__init__()
        self.knots = knots

    def forward(self, x: Tensor) -> SeparableMap:
        at = torch.arange(self.knots) * (x.shape[-1] - 1) // (self.knots - 1)
        even = torch.linspace(0, 1, self.knots, dtype=x.dtype).expand(len(x), -1)
        axes = []
        for ramp in (x[:, 0].mean(dim=1)[:, at], x[:, 1].mean(dim=2)[:, at]):
            values = torch.cat((even[:, :1], ramp[:, 1:-1], even[:, -1:]), dim=1)
            axes.append(MonotoneMap(even, values))
        return SeparableMap(*axes).inverse().resample(self.knots)


@pytest.mark.parametrize("knots", [9, 17])
def test_equilibria_of_compose_move_with_the_image_and_those_of_direct_do_not(knots: int):
    """h(S(F; g)) = g·h(F), the definition of a canonicalizer, where compose has an equilibrium to find."""
    place = torch.linspace(0, 1, 129, dtype=torch.float64)
    ramps = (place + 0.08 * torch.sin(2 * torch.pi * place), place - 0.1 * torch.sin(torch.pi * place))
    features = torch.stack((ramps[0].expand(129, -1), ramps[1][:, None].expand(-1, 129))).unsqueeze(0)
    g = random_map(
        1, 5, strength=0.7, family="separable", generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    errors = {}
    for update in ("compose", "direct"):
        config = dec_config(
            family="separable", update=update, resolution=129, tolerance=1e-8, max_steps=60, on_failure="raise"
        )
        module = Canonicalizer(2, (knots, knots), config)
        module.network = Straighten(knots)
        here, there = module(features).map, module(scale(features, g)).map
        errors[update] = float((on_knots(there, knots) - g(on_knots(here, knots))).abs().max())
        assert here.mean_displacement() > 0.02
        if update == "compose":
            for ramp, axis in zip(ramps, (here.x, here.y), strict=True):
                seen = MonotoneMap(place[None], ramp[None])(axis.values)
                torch.testing.assert_close(seen, axis.knots, atol=1e-6, rtol=0)
    assert errors["compose"] < 2e-4
    assert errors["direct"] > 0.02


# Descent.


@EACH_FAMILY
@pytest.mark.parametrize("step_size", [0.5, 20.0])
def test_one_descent_step_by_hand(family: str, step_size: float):
    """Φ − η ∇E on the raw parameters, computed with autograd alone."""
    module = canonicalizer(
        3, (5, 4), std=0.5, dtype=torch.float64, update="descent", family=family, step_size=step_size
    )
    features = smooth(2, 3, 24)
    m = random_map(2, (5, 4), family=family, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits = [torch.log(increments(m, axis)).requires_grad_() for axis in (0, 1)]
    energy = module.network(unscale(features, map_from_logits(*logits, family=family, guard=0.1)))
    slopes = torch.autograd.grad(energy.sum(), logits)
    moved = [raw - step_size * slope for raw, slope in zip(logits, slopes, strict=True)]
    expected = map_from_logits(*moved, family=family, guard=0.1).state().detach()
    found = step(module, features, m).state()
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    assert (found - m.state()).abs().max() > 1e-4


def increments(m, axis: int) -> Tensor:
    """Differences of neighbouring control points, rows along x or columns along y."""
    if isinstance(m, SeparableMap):
        return (m.x, m.y)[axis].values.diff(dim=-1)
    control = m.control_points[:, axis]
    return control.diff(dim=-1) if axis == 0 else control.transpose(1, 2).diff(dim=-1)


@EACH_FAMILY
def test_energy_decreases_along_small_descent_steps(family: str):
    module = canonicalizer(
        3, (4, 4), std=0.5, dtype=torch.float64, update="descent", family=family, step_size=0.5, channels=(6, 8)
    )
    features = smooth(2, 3, 16)
    m, energies = identity_map(2, 4, family=family, dtype=torch.float64), []
    with torch.no_grad():
        for _ in range(20):
            energies.append(module.network(unscale(features, m)))
            m = step(module, features, m)
    energy = torch.stack(energies)
    assert (energy.diff(dim=0) < 0).all()
    assert (energy[-1] < energy[0] - 1e-3).all()


class Distance(nn.Module):
    """An energy with a known minimum: the mean squared distance to a template."""

    def __init__(self, template: Tensor) -> None:
        super().__init__()
        self.template = template

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.template).square().mean(dim=(1, 2, 3))


@EACH_FAMILY
def test_fixed_points_of_descent_are_stationary_points_of_the_energy(family: str):
    """Claim 1, both ways: the minimum is a fixed point, and the fixed point found has no gradient."""
    features = smooth(1, 3, 24)
    true = random_map(
        1, 4, strength=0.8, family=family, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    config = dec_config(
        family=family,
        update="descent",
        step_size=1.0 if family == "grid" else 0.3,
        max_steps=400,
        tolerance=1e-8,
        on_failure="raise",
    )
    module = Canonicalizer(3, (4, 4), config)
    module.network = Distance(unscale(features, true))
    torch.testing.assert_close(step(module, features, true).state(), true.state(), atol=1e-12, rtol=0)

    with torch.no_grad():
        found = module(features).map
    assert (true.mean_displacement() > 0.03).all()
    torch.testing.assert_close(found.state(), true.state(), atol=1e-5, rtol=0)
    logits = [raw.detach().requires_grad_() for raw in found.logits()]
    energy = module.network(unscale(features, map_from_logits(*logits, family=family)))
    start = [torch.zeros_like(raw, requires_grad=True) for raw in logits]
    at_start = module.network(unscale(features, map_from_logits(*start, family=family)))
    slopes, first = torch.autograd.grad(energy.sum(), logits), torch.autograd.grad(at_start.sum(), start)
    for slope, reference in zip(slopes, first, strict=True):
        assert slope.norm() < 1e-5 * reference.norm()


@EACH_UPDATE
def test_networks_are_maps_or_energies(update: str):
    network = canonicalizer(3, update=update).network
    assert isinstance(network, EnergyNetwork if update == "descent" else MapNetwork)


@EACH_FAMILY
def test_step_size_zero_does_nothing(family: str):
    """A step of size zero does not change the map."""
    module = canonicalizer(3, (4, 4), std=0.5, dtype=torch.float64, update="descent", family=family, step_size=0.0)
    m = random_map(2, 4, family=family, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(step(module, smooth(2, 3, 16), m).state(), m.state(), atol=1e-12, rtol=0)
