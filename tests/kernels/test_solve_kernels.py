"""The solve without gradients against its plain twin: the head, what lies between evaluations, and the whole."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import localscale as ls
from localscale import kernels
from localscale.canonicalizer.network import MapNetwork, Trunk
from localscale.equilibrium import Anderson, Plain
from localscale.kernels.first_layer import first_layer, project_taps
from localscale.kernels.head import next_offsets
from localscale.kernels.mixing import Iteration

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS = [
    ((6, 6), (14, 14), 0.1, 1.0),
    ((5, 8), (7, 9), 0.1, 0.5),
    ((4, 3), (5, 5), None, 1.0),
    ((2, 2), (3, 3), 0.1, 1.0),
]
LAYERS = [(3, 64, (13, 16), 2), (1, 20, (9, 9), 1), (4, 7, (8, 5), 2), (40, 4, (7, 6), 1)]
SOLVERS = {
    "anderson": Anderson(max_steps=9, tolerance=1e-5, fixed=True),
    "short history": Anderson(max_steps=7, history=3, damping=0.7, tolerance=0, fixed=True),
    "no history": Anderson(max_steps=4, history=1, tolerance=0, fixed=True),
    "plain": Plain(max_steps=8, tolerance=1e-3, damping=0.8, fixed=True),
}


def head(knots: tuple[int, int], guard: float | None, temperature: float, spread: float) -> MapNetwork:
    torch.manual_seed(0)
    network = MapNetwork(3, knots, channels=(16,), guard=guard, temperature=temperature).to(DEVICE)
    network.trunk = Trunk(16, ())  # passes features on
    for parameter in (*network.to_x.parameters(), *network.to_y.parameters()):
        nn.init.normal_(parameter, std=spread) if spread else nn.init.zeros_(parameter)
    return network


def weights(network: MapNetwork) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    both = (network.to_x, network.to_y)
    a, b, c, d = (p.detach() for layer in both for p in (layer.weight, layer.bias))
    return a, b, c, d


@pytest.mark.parametrize(("knots", "size", "guard", "temperature"), HEADS)
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_next_map_is_the_twins(knots, size, guard, temperature, spread):
    network = head(knots, guard, temperature, spread)
    features = torch.randn(2, 16, *size, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    with torch.no_grad():
        twin = network(features)
    settings = {"temperature": temperature, "guard": guard}
    offsets = next_offsets(features, weights(network), knots, **settings)
    assert (offsets - twin.offsets.flatten(1)).abs().max() < 1e-6
    if not spread:
        assert not offsets.any(), "the identity, to the bit"
    moved = features.to(memory_format=torch.channels_last)
    assert (next_offsets(moved, weights(network), knots, **settings) - offsets).abs().max() < 1e-6
    outer = ls.random_map(2, knots, strength=1.0, generator=torch.Generator().manual_seed(1), device=DEVICE)
    composed = next_offsets(features, weights(network), knots, **settings, outer=outer.offsets.flatten(1))
    assert (composed - outer.compose_resampled(twin, guard=guard).offsets.flatten(1)).abs().max() < 1e-6


def wild(z: Tensor, lost: bool) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    matrix, shift = torch.randn(20, 20, generator=rng) / 5, torch.randn(5, 20, generator=rng)
    image = torch.tanh(z @ matrix.to(z.device) + shift.to(z.device)) + 1
    if lost:
        image[2] = torch.where(z[2, 0] > 0.9, torch.nan, image[2])
    return image


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("name", SOLVERS)
def test_what_lies_between_evaluations_is_the_twins(name: str, lost: bool):
    solver, start = SOLVERS[name], torch.zeros(5, 20, device=DEVICE)
    twin = solver.solve(lambda z: wild(z, lost), start)
    mixing = {"history": solver.history, "ridge": solver.ridge} if isinstance(solver, Anderson) else {"history": 0}
    iteration = Iteration.begin(5, 20, DEVICE, tolerance=solver.tolerance, damping=solver.damping, **mixing)
    for number in range(solver.max_steps):
        iteration.advance(wild(iteration.point, lost), number)
    assert (iteration.best_image - twin.image).abs().max() < 1e-5
    assert torch.allclose(iteration.best, twin.residual, atol=1e-6)
    assert torch.equal(iteration.steps, twin.steps)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("channels", "wide", "size", "stride"), LAYERS)
def test_the_first_layer_is_the_twins(channels, wide, size, stride, channels_last: bool):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2, channels, *size, generator=rng).to(DEVICE)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    weight, bias = torch.randn(wide, channels, 3, 3, generator=rng).to(DEVICE), torch.randn(wide).to(DEVICE)
    m = ls.random_map(2, (5, 4), strength=2.0, generator=rng, device=DEVICE)
    twin = F.gelu(F.conv2d(ls.unscale(x, m, sampler="gather"), weight, bias, stride=stride, padding=1))
    projected = channels > 4
    found = first_layer(
        project_taps(x, weight) if projected else x, *m.displacements(*size), weight, bias,
        stride=stride, projected=projected,
    )  # fmt: skip
    assert found.shape == twin.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - twin).abs().max() < 1e-5 * twin.abs().max()


@pytest.mark.parametrize("update", ["direct", "compose"])
@pytest.mark.parametrize(("fixed", "in_channels"), [(True, 3), (False, 3), (True, 80), (True, 5)])
def test_the_whole_solve_is_the_twins(update: str, fixed: bool, in_channels: int, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    steps = {"max_steps": 3 if update == "compose" else 6, "fixed_steps": fixed, "on_failure": "identity"}
    solver = {"solver": "plain"} if update == "compose" else {}
    config = ls.DECConfig(update=update, knots=5, channels=(8, 8), resolution=12, tolerance=1e-4, **steps, **solver)
    canonicalizer = ls.Canonicalizer(in_channels, (5, 5), config).to(DEVICE)
    for layer in (canonicalizer.network.to_x, canonicalizer.network.to_y):
        nn.init.normal_(layer.weight, std=0.3)
    side = 20 if in_channels == 3 else 8
    image = torch.rand(3, in_channels, side, side, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    reports = []
    for fast in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda *_, fast=fast: fast)
        with torch.no_grad():
            reports.append(canonicalizer(image))
    twin, found = reports
    assert (found.map.offsets - twin.map.offsets).abs().max() < 1e-5
    assert torch.allclose(found.residual, twin.residual, atol=1e-5)
    assert torch.equal(found.steps, twin.steps)
    assert torch.equal(found.converged, twin.converged)
    assert (found.map.displacement() > 0).any() or not twin.converged.any()


def test_gradients_take_the_other_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "usable", lambda *_: True)
    monkeypatch.setattr("localscale.canonicalizer.module.solve_fast", None)
    canonicalizer = ls.Canonicalizer(3, (4, 4), ls.DECConfig(channels=(4,), max_steps=2, fixed_steps=True)).to(DEVICE)
    assert canonicalizer(torch.rand(1, 3, 16, 16, device=DEVICE)).map.offsets.requires_grad
