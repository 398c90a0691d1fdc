"""The kernels of a solve without gradients against plain PyTorch: next map, solver step, working copy, whole solve."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from dec_configs import dec_config
from kernel_inputs import DEVICE, canonicalizer_for, features_for, use_kernels
from torch import Tensor, nn

import localscale as ls
from localscale.canonicalizer.network import MapNetwork, Trunk
from localscale.conventions import resize
from localscale.equilibrium import Anderson, Picard
from localscale.kernels import working_copy as wc
from localscale.kernels.bilinear import FEW_CHANNELS
from localscale.kernels.equilibrium import HALF, gelu, product_dtype
from localscale.kernels.launch import launch
from localscale.kernels.mixing import Iteration
from localscale.kernels.next_map import next_displacements
from localscale.kernels.weight_layout import lay_out_weights

ON_GPU = DEVICE == "cuda"
SOLVERS = {
    "anderson": Anderson(max_steps=9, tolerance=1e-5, fixed_steps=True),
    "short history": Anderson(max_steps=7, history=3, damping=0.7, tolerance=0, fixed_steps=True),
    "no history": Anderson(max_steps=4, history=1, tolerance=0, fixed_steps=True),
    "picard": Picard(max_steps=8, tolerance=1e-3, damping=0.8, fixed_steps=True),
}
unconverged = pytest.mark.filterwarnings("ignore:some fixed points")


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def random(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def head(knots: tuple[int, int], guard: float | None, temperature: float, spread: float) -> MapNetwork:
    torch.manual_seed(0)
    network = MapNetwork(3, knots, channels=(16,), guard=guard, temperature=temperature).to(DEVICE)
    network.trunk = Trunk(16, ())  # passes features on
    for parameter in (*network.to_x.parameters(), *network.to_y.parameters()):
        nn.init.normal_(parameter, std=spread) if spread else nn.init.zeros_(parameter)
    return network


@pytest.mark.parametrize(
    ("knots", "size", "guard", "temperature", "spread"),
    [
        ((5, 8), (7, 9), 0.1, 0.5, 1.0),
        slow((6, 6), (14, 14), 0.1, 1.0, 1.0),
        slow((4, 3), (5, 5), None, 1.0, 1.0),
        slow((2, 2), (3, 3), 0.1, 1.0, 1.0),
        slow((6, 6), (14, 14), 0.1, 1.0, 0.0),
    ],
)
def test_the_next_map_matches_the_network(knots, size, guard, temperature, spread):
    network = head(knots, guard, temperature, spread)
    weights = tuple(p.detach() for layer in (network.to_x, network.to_y) for p in (layer.weight, layer.bias))
    features = torch.randn(2, 16, *size, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    with torch.no_grad():
        expected = network(features)
    settings = {"temperature": temperature, "guard": guard}
    displacements = next_displacements(features, weights, knots, **settings)
    assert (displacements - expected.displacements.flatten(1)).abs().max() < 1e-6
    if not spread:
        assert not displacements.any(), "the identity, to the bit"
    moved = features.to(memory_format=torch.channels_last)
    assert (next_displacements(moved, weights, knots, **settings) - displacements).abs().max() < 1e-6
    outer = ls.random_map(2, knots, strength=1.0, generator=torch.Generator().manual_seed(1), device=DEVICE)
    composed = next_displacements(features, weights, knots, **settings, outer=outer.displacements.flatten(1))
    assert (composed - outer.compose_resampled(expected, guard=guard).displacements.flatten(1)).abs().max() < 1e-6


def nonlinear(z: Tensor, turns_nan: bool) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    matrix, shift = torch.randn(20, 20, generator=rng) / 5, torch.randn(5, 20, generator=rng)
    value = torch.tanh(z @ matrix.to(z.device) + shift.to(z.device)) + 1
    if turns_nan:
        value[2] = torch.where(z[2, 0] > 0.9, torch.nan, value[2])
    return value


@pytest.mark.parametrize(
    ("name", "turns_nan"),
    [("anderson", True), ("picard", False), slow("anderson", False), slow("picard", True)]
    + [slow(name, turns_nan) for name in ("short history", "no history") for turns_nan in (False, True)],
)
def test_a_step_of_the_solver_matches_the_solver(name: str, turns_nan: bool):
    solver, start = SOLVERS[name], torch.zeros(5, 20, device=DEVICE)
    expected = solver.solve(lambda z: nonlinear(z, turns_nan), start)
    mixing = {"history": solver.history, "ridge": solver.ridge} if isinstance(solver, Anderson) else {"history": 0}
    mixing |= {"max_steps": solver.max_steps, "tolerance": solver.tolerance, "damping": solver.damping}
    iteration = Iteration.begin(5, 20, DEVICE, **mixing)
    for step in range(solver.max_steps):
        iteration.advance(nonlinear(iteration.point, turns_nan), step)
    assert (iteration.best_value - expected.value).abs().max() < 1e-5
    assert (iteration.best_point - expected.point).abs().max() < 1e-5
    assert torch.allclose(iteration.best, expected.residual, atol=1e-6)
    assert torch.equal(iteration.steps, expected.steps)


@pytest.mark.parametrize("history", [0, 5])
def test_a_sample_that_turns_nan_goes_on_from_its_best_value(history: int):
    iteration = Iteration.begin(2, 3, DEVICE, history=history, max_steps=3, tolerance=0)
    first = torch.tensor([[0.5, 0.2, 0.1], [0.3, 0.3, 0.4]], device=DEVICE)
    iteration.advance(first, 0)
    second = torch.tensor([[0.6, torch.nan, 0.1], [0.35, 0.25, 0.4]], device=DEVICE)
    iteration.advance(second, 1)
    assert torch.equal(iteration.point[0], first[0])
    assert not torch.equal(iteration.point[1], first[1])


def both_ways(canonicalizer: ls.Canonicalizer, features: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the reports of plain PyTorch and of the kernels."""
    reports = []
    for on in (False, True):
        use_kernels(monkeypatch, on)
        with torch.no_grad():
            reports.append(canonicalizer(features))
    return reports


@unconverged
@pytest.mark.parametrize(
    ("update", "fixed_steps", "in_channels", "channels", "size"),
    [
        ("compose", True, 3, (16, 16), (9, 8)),  # an image
        ("direct", False, 144, (16, 16), (4, 3)),  # a feature whose first layer is projected
        slow("direct", True, 3, (16, 32), None),
        slow("compose", False, 150, (16, 16), None),
        slow("direct", True, 32, (16, 16), None),
        slow("compose", False, 20, (32, 16), None),
        slow("direct", True, 3, (8, 8), None),  # layers too narrow for tensor cores
        slow("compose", False, 5, (8, 8, 4), None),  # more than two layers
        *[slow("direct", True, 3, (16, 16), size) for size in ((1, 40), (40, 1), (1, 1))],
    ],
)
def test_a_whole_solve_matches_plain_pytorch(update, fixed_steps, in_channels, channels, size, monkeypatch):
    canonicalizer = canonicalizer_for(in_channels, update, fixed_steps, channels, **({"max_steps": 3} if size else {}))
    expected, found = both_ways(canonicalizer, features_for(in_channels, size), monkeypatch)
    assert (found.map.displacements - expected.map.displacements).abs().max() < 1e-5
    assert torch.allclose(found.residual, expected.residual, atol=1e-5)
    assert torch.equal(found.steps, expected.steps)
    assert torch.equal(found.converged, expected.converged)
    if size is None or min(size) > 1:
        assert expected.map.mean_displacement().min() > 1e-4, "or the identity would be compared with itself"


@pytest.mark.slow
@unconverged
def test_anderson_mixes_until_the_last_step(monkeypatch: pytest.MonkeyPatch):
    settings = {"max_steps": 4, "tolerance": 1e-9, "spread": 30.0}
    anderson, picard = (
        canonicalizer_for(3, "direct", True, (16, 16), solver=solver, **settings) for solver in ("anderson", "picard")
    )
    expected, found = both_ways(anderson, features_for(3), monkeypatch)
    assert (found.map.displacements - expected.map.displacements).abs().max() < 1e-5
    with torch.no_grad():
        unmixed = picard(features_for(3))
    assert (unmixed.map.displacements - expected.map.displacements).abs().max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("in_channels", [3, 32])
def test_a_nan_image_gets_the_identity_and_leaves_the_others_alone(in_channels: int, monkeypatch: pytest.MonkeyPatch):
    canonicalizer, features = canonicalizer_for(in_channels, "direct", True, (16, 16)), features_for(in_channels)
    use_kernels(monkeypatch)
    with torch.no_grad():
        whole = canonicalizer(features)
        features[1, 0, 2, 3] = torch.nan
        found = canonicalizer(features)
    assert torch.equal(found.map.displacements[0], whole.map.displacements[0])
    assert not found.map.displacements[1].any()
    assert found.residual[1].isinf()
    assert found.converged.tolist() == [True, False]


def test_full_precision_can_be_set_by_either_name(monkeypatch: pytest.MonkeyPatch):
    assert product_dtype() == torch.float32
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert product_dtype() == HALF
    before = torch.backends.cudnn.conv.fp32_precision
    try:
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        assert product_dtype() == torch.float32
    finally:
        torch.backends.cudnn.conv.fp32_precision = before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_channels", "dtype"), [(3, torch.float32), (3, torch.bfloat16), (150, torch.bfloat16), (32, torch.float32)]
)
def test_float16_products_are_as_exact_as_tf32(in_channels: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    canonicalizer = canonicalizer_for(in_channels, "direct", True, (16, 32))
    expected, _ = both_ways(canonicalizer, features_for(in_channels).to(dtype), monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    _, found = both_ways(canonicalizer, features_for(in_channels).to(dtype), monkeypatch)
    distance = (found.map.displacements - expected.map.displacements).norm()
    assert 0 < distance < (2e-3 if dtype == torch.float32 else 1e-2) * expected.map.displacements.norm()


@pytest.mark.slow
@pytest.mark.parametrize("in_channels", [256, 320, 512])
def test_features_of_many_channels_fit_into_shared_memory(in_channels: int, monkeypatch: pytest.MonkeyPatch):
    canonicalizer = canonicalizer_for(in_channels, "direct", True, (64, 128))
    expected, _ = both_ways(canonicalizer, features_for(in_channels).bfloat16(), monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    _, found = both_ways(canonicalizer, features_for(in_channels).bfloat16(), monkeypatch)
    distance = (found.map.displacements - expected.map.displacements).norm()
    assert 0 < distance < 1e-2 * expected.map.displacements.norm()


@pytest.mark.parametrize(("inputs", "wide", "last", "taps_first"), [(3, 16, 32, True), slow(100, 32, 16, False)])
def test_weights_are_laid_out_as_by_permuting(inputs: int, wide: int, last: int, taps_first: bool):
    rng = torch.Generator().manual_seed(0)
    first, second = torch.randn(wide, inputs, 3, 3, generator=rng), torch.randn(last, wide, 3, 3, generator=rng)
    first, second = (weight.to(memory_format=torch.channels_last) for weight in (first.to(DEVICE), second))
    for dtype in (torch.float32, HALF):
        one, two = lay_out_weights(first, second.to(DEVICE, torch.bfloat16), dtype, taps_first=taps_first)
        turned = first.permute(2, 3, 0, 1).flatten(0, 1) if taps_first else first.permute(0, 2, 3, 1).flatten(1, 2)
        assert torch.equal(one, turned.to(dtype))
        assert torch.equal(two, second.bfloat16().permute(0, 2, 3, 1).flatten(1, 2).to(DEVICE, dtype))


@pytest.mark.parametrize(
    ("size", "new", "dtype"),
    [
        ((8, 6), (5, 1), torch.float32),
        slow((20, 13), (7, 13), torch.bfloat16),
        slow((9, 33), (2, 5), torch.float32),
        slow((5, 4), (9, 7), torch.bfloat16),
    ],
)
def test_shrinking_matches_resize(size, new, dtype: torch.dtype):
    x = random(2, 3, *size).to(dtype)
    assert (wc.shrink(x, *new).permute(0, 3, 1, 2) - resize(x.float(), *new)).abs().max() < 1e-5
    last = x.to(memory_format=torch.channels_last)
    assert torch.allclose(wc.shrink(last, *new), wc.shrink(x, *new), rtol=0, atol=1e-6)


def record_launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    launched: list[Any] = []
    monkeypatch.setattr(wc, "launch", lambda *given, **named: (launched.append(given[0]), launch(*given, **named)))
    return launched


@pytest.mark.parametrize(
    ("channels", "size", "new", "dtype", "kernel"),
    [
        (40, (7, 6), (4, 4), torch.float32, wc._shrink_last),
        slow(40, (1, 7), (1, 4), torch.bfloat16, wc._shrink_last),
        slow(32, (6, 1), (3, 1), torch.float32, wc._shrink_last),
        slow(9, (1, 40), (1, 6), torch.bfloat16, wc._shrink),  # more taps than are unrolled
        slow(8, (5, 5), (3, 3), torch.float32, wc._shrink),  # too few channels to be read together
    ],
)
def test_shrinking_tokens_matches_resize(channels: int, size, new, dtype: torch.dtype, kernel: Any, monkeypatch):
    launched = record_launches(monkeypatch)
    tokens = random(2, 1 + math.prod(size), channels).to(dtype)
    x = tokens[:, 1:].unflatten(1, size).permute(0, 3, 1, 2)
    assert x.stride(1) == 1
    assert (wc.shrink(x, *new).permute(0, 3, 1, 2) - resize(x.float(), *new)).abs().max() < 1e-5
    assert launched == [kernel]


@pytest.mark.parametrize(
    ("channels", "size", "new", "dtype", "used"),
    [
        (5, (5, 7), (5, 7), torch.float32, [wc._normalise]),
        (40, (9, 9), (5, 5), HALF, [wc._shrink_band]),
        slow(96, (5, 7), (5, 7), HALF, [wc._normalise]),
        slow(40, (33, 20), (17, 10), HALF, [wc._shrink_band]),  # more rows than one band
        slow(150, (41, 5), (20, 3), HALF, [wc._shrink_band]),  # and many channels
        slow(40, (13, 9), (1, 5), HALF, [wc._shrink_band]),
        slow(40, (1, 9), (1, 5), HALF, [wc._shrink_band]),
        slow(40, (9, 9), (9, 5), HALF, [wc._shrink_band]),
        slow(40, (9, 1), (5, 1), HALF, [wc._shrink_band]),
        slow(40, (7, 6), (4, 4), torch.float32, [wc._shrink_last, wc._normalise]),
        slow(40, (7, 6), (4, 4), torch.bfloat16, [wc._shrink_band] * ON_GPU or [wc._shrink_last, wc._normalise]),
        slow(8, (5, 5), (3, 3), HALF, [wc._shrink, wc._normalise]),  # too few channels to be read together
    ],
)
def test_a_normalised_copy_matches_layer_norm(channels: int, size, new, dtype: torch.dtype, used, monkeypatch):
    launched = record_launches(monkeypatch)
    x = 3 + torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    expected = F.layer_norm(resize(x.float(), *new).movedim(1, -1), (channels,))
    last, error = x.to(memory_format=torch.channels_last), 1e-5 if dtype == torch.float32 else 5e-5
    assert (wc.normalise(last, *new, torch.float32) - expected).abs().max() < error
    assert launched == used
    assert (wc.normalise(last, *new, torch.float16) - expected).abs().max() < 5e-3
    if channels <= FEW_CHANNELS:
        assert (wc.normalise(x, *new, torch.float32) - expected).abs().max() < error


@pytest.mark.slow
@pytest.mark.parametrize("held", [(5, 32, 256), (64, 3, 256), (64, 32, 39)])
def test_features_too_large_for_shared_memory_are_shrunk_first(held, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wc, "HELD", held)
    x = torch.randn(2, 40, 7, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE, HALF)
    x = x.to(memory_format=torch.channels_last)
    monkeypatch.setattr(wc, "_shrink_band", None)
    expected = F.layer_norm(resize(x.float(), 4, 4).movedim(1, -1), (40,))
    assert (wc.normalise(x, 4, 4, torch.float32) - expected).abs().max() < 5e-5


@triton.jit
def gelu_of(x, out, COUNT: tl.constexpr):  # noqa: N803
    at = tl.arange(0, COUNT)
    tl.store(out + at, gelu(tl.load(x + at), out.dtype.element_ty).to(out.dtype.element_ty))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 1.2e-5)])
def test_gelu_is_as_exact_as_its_dtype(dtype: torch.dtype, error: float):
    x = torch.linspace(-12, 12, 4096, device=DEVICE)
    out = torch.empty_like(x, dtype=dtype)
    launch(gelu_of, (1, 1, 1), 4, x, out, COUNT=4096)
    rounding = torch.finfo(dtype).eps * out.float().abs()
    assert ((out - F.gelu(x.double())).abs() <= error + rounding).all()


def test_unrolled_gradients_do_not_solve_by_kernels(monkeypatch: pytest.MonkeyPatch):
    use_kernels(monkeypatch)
    monkeypatch.setattr("localscale.canonicalizer.kernel_solver.solve_with_kernels", None)
    config = dec_config(channels=(4,), max_steps=2, fixed_steps=True, gradient="unrolled")
    canonicalizer = ls.Canonicalizer(3, (4, 4), config).to(DEVICE)
    assert canonicalizer(torch.rand(1, 3, 8, 8, device=DEVICE)).map.displacements.requires_grad


def test_the_identity_policy_replaces_maps_that_did_not_converge(monkeypatch: pytest.MonkeyPatch):
    use_kernels(monkeypatch)
    images = random(2, 3, 6, 6)
    for policy in ("warn", "identity"):
        settings = {"max_steps": 1, "tolerance": 1e-9, "on_failure": policy}
        canonicalizer = canonicalizer_for(3, "direct", True, (16, 16), **settings)
        with torch.no_grad():
            report = canonicalizer(images)
        assert not report.converged.any()
        assert report.map.moves.any().item() == (policy == "warn")
