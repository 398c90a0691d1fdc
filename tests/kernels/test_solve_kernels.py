"""The solve without gradients against its plain twin: the head, what lies between evaluations, and the whole."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from dec_configs import dec_config
from kernel_inputs import DEVICE, canonicalizer_for, features_for
from torch import Tensor, nn

import localscale as ls
from localscale import kernels
from localscale.canonicalizer.network import MapNetwork, Trunk
from localscale.conventions import resize
from localscale.equilibrium import Anderson, Picard
from localscale.kernels import working_copy
from localscale.kernels.bilinear import FEW_CHANNELS
from localscale.kernels.equilibrium import HALF, gelu, product_dtype
from localscale.kernels.launch import launch
from localscale.kernels.mixing import Iteration
from localscale.kernels.next_map import next_displacements
from localscale.kernels.weight_layout import lay_out_weights
from localscale.kernels.working_copy import normalise, shrink

ON_GPU = DEVICE == "cuda"
HEADS = [
    ((6, 6), (14, 14), 0.1, 1.0),
    ((5, 8), (7, 9), 0.1, 0.5),
    ((4, 3), (5, 5), None, 1.0),
    ((2, 2), (3, 3), 0.1, 1.0),
]
SOLVERS = {
    "anderson": Anderson(max_steps=9, tolerance=1e-5, fixed_steps=True),
    "short history": Anderson(max_steps=7, history=3, damping=0.7, tolerance=0, fixed_steps=True),
    "no history": Anderson(max_steps=4, history=1, tolerance=0, fixed_steps=True),
    "picard": Picard(max_steps=8, tolerance=1e-3, damping=0.8, fixed_steps=True),
}


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


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
    displacements = next_displacements(features, weights(network), knots, **settings)
    assert (displacements - twin.displacements.flatten(1)).abs().max() < 1e-6
    if not spread:
        assert not displacements.any(), "the identity, to the bit"
    moved = features.to(memory_format=torch.channels_last)
    assert (next_displacements(moved, weights(network), knots, **settings) - displacements).abs().max() < 1e-6
    outer = ls.random_map(2, knots, strength=1.0, generator=torch.Generator().manual_seed(1), device=DEVICE)
    composed = next_displacements(features, weights(network), knots, **settings, outer=outer.displacements.flatten(1))
    assert (composed - outer.compose_resampled(twin, guard=guard).displacements.flatten(1)).abs().max() < 1e-6


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
    mixing |= {"max_steps": solver.max_steps, "tolerance": solver.tolerance, "damping": solver.damping}
    iteration = Iteration.begin(5, 20, DEVICE, **mixing)
    for number in range(solver.max_steps):
        iteration.advance(wild(iteration.point, lost), number)
    assert (iteration.best_value - twin.value).abs().max() < 1e-5
    assert (iteration.best_point - twin.point).abs().max() < 1e-5
    assert torch.allclose(iteration.best, twin.residual, atol=1e-6)
    assert torch.equal(iteration.steps, twin.steps)


@pytest.mark.parametrize("history", [0, 5])
def test_a_lost_sample_goes_on_from_the_best_it_had(history: int):
    iteration = Iteration.begin(2, 3, DEVICE, history=history, max_steps=3, tolerance=0)
    first = torch.tensor([[0.5, 0.2, 0.1], [0.3, 0.3, 0.4]], device=DEVICE)
    iteration.advance(first, 0)
    lost = torch.tensor([[0.6, torch.nan, 0.1], [0.35, 0.25, 0.4]], device=DEVICE)
    iteration.advance(lost, 1)
    assert torch.equal(iteration.point[0], first[0])
    assert not torch.equal(iteration.point[1], first[1])


@pytest.mark.filterwarnings("ignore:some fixed points")  # compose would go on
@pytest.mark.parametrize("update", ["direct", "compose"])
@pytest.mark.parametrize(
    ("fixed", "in_channels", "channels"),
    [
        (True, 3, (16, 32)),  # an image
        (False, 150, (16, 16)),  # a feature of so many channels that the taps go first
        (True, 32, (16, 16)),
        (False, 20, (32, 16)),
        (True, 3, (8, 8)),  # too narrow for a matrix unit
        (False, 5, (8, 8, 4)),
    ],
)
def test_the_whole_solve_is_the_twins(update: str, fixed: bool, in_channels: int, channels, monkeypatch):
    canonicalizer = canonicalizer_for(in_channels, update, fixed, channels)
    reports = []
    for by_kernels in (False, True):
        monkeypatch.setattr(kernels, "available", lambda *_, on=by_kernels: on)
        with torch.no_grad():
            reports.append(canonicalizer(features_for(in_channels)))
    twin, found = reports
    assert (found.map.displacements - twin.map.displacements).abs().max() < 1e-5
    assert torch.allclose(found.residual, twin.residual, atol=1e-5)
    assert torch.equal(found.steps, twin.steps)
    assert torch.equal(found.converged, twin.converged)
    assert twin.map.mean_displacement().min() > 1e-4, "or the identity would be compared with itself"


@pytest.mark.filterwarnings("ignore:some fixed points")
def test_what_is_not_at_rest_is_mixed_until_the_last_evaluation(monkeypatch: pytest.MonkeyPatch):
    found = {}
    for way in ("twin", "kernels", "plain"):
        monkeypatch.setattr(kernels, "available", lambda *_, on=way == "kernels": on)
        settings = {"max_steps": 4, "tolerance": 1e-9, "solver": "picard" if way == "plain" else "anderson"}
        canonicalizer = canonicalizer_for(3, "direct", True, (16, 16), spread=30.0, **settings)
        with torch.no_grad():
            found[way] = canonicalizer(features_for(3)).map.displacements
    assert (found["kernels"] - found["twin"]).abs().max() < 1e-5
    assert (found["plain"] - found["twin"]).abs().max() > 1e-4, "or mixing would make no difference"


@pytest.mark.parametrize("in_channels", [3, 32])
def test_a_lost_image_is_the_identity_and_alone(in_channels: int, monkeypatch: pytest.MonkeyPatch):
    canonicalizer, features = canonicalizer_for(in_channels, "direct", True, (16, 16)), features_for(in_channels)
    monkeypatch.setattr(kernels, "available", lambda *_: True)
    with torch.no_grad():
        whole = canonicalizer(features)
        features[1, 0, 2, 3] = torch.nan
        found = canonicalizer(features)
    assert torch.equal(found.map.displacements[0], whole.map.displacements[0])
    assert not found.map.displacements[1].any()
    assert found.residual[1].isinf()
    assert found.converged.tolist() == [True, False]


@pytest.mark.parametrize("size", [(1, 40), (40, 1), (1, 1)])
def test_a_line_of_pixels_is_solved(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    canonicalizer, reports = canonicalizer_for(3, "direct", True, (16, 16)), []
    line = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for by_kernels in (False, True):
        monkeypatch.setattr(kernels, "available", lambda *_, on=by_kernels: on)
        with torch.no_grad():
            reports.append(canonicalizer(line))
    twin, found = reports
    assert (found.map.displacements - twin.map.displacements).abs().max() < 1e-5


def test_full_precision_may_be_asked_for_by_either_name(monkeypatch: pytest.MonkeyPatch):
    assert product_dtype() == torch.float32
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert product_dtype() == HALF
    before = torch.backends.cudnn.conv.fp32_precision
    try:
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        assert product_dtype() == torch.float32
    finally:
        torch.backends.cudnn.conv.fp32_precision = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_channels", [3, 150, 32])
def test_half_the_digits_are_as_good_as_tf32(in_channels: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    canonicalizer = canonicalizer_for(in_channels, "direct", True, (16, 32))
    reports = []
    for by_kernels in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", by_kernels)
        monkeypatch.setattr(kernels, "available", lambda *_, on=by_kernels: on)
        with torch.no_grad():
            reports.append(canonicalizer(features_for(in_channels).to(dtype)))
    twin, found = reports
    distance, moved = (found.map.displacements - twin.map.displacements).norm(), twin.map.displacements.norm()
    assert 0 < distance < (2e-3 if dtype == torch.float32 else 1e-2) * moved


@pytest.mark.parametrize("taps_first", [False, True])
@pytest.mark.parametrize(("inputs", "wide", "last"), [(3, 16, 32), (100, 32, 16)])
def test_weights_are_laid_out_as_by_permuting(inputs: int, wide: int, last: int, taps_first: bool):
    rng = torch.Generator().manual_seed(0)
    first, second = torch.randn(wide, inputs, 3, 3, generator=rng), torch.randn(last, wide, 3, 3, generator=rng)
    first, second = (weight.to(memory_format=torch.channels_last) for weight in (first.to(DEVICE), second))
    for dtype in (torch.float32, HALF):
        one, two = lay_out_weights(first, second.to(DEVICE, torch.bfloat16), dtype, taps_first=taps_first)
        turned = first.permute(2, 3, 0, 1).flatten(0, 1) if taps_first else first.permute(0, 2, 3, 1).flatten(1, 2)
        assert torch.equal(one, turned.to(dtype))
        assert torch.equal(two, second.bfloat16().permute(0, 2, 3, 1).flatten(1, 2).to(DEVICE, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "new"), [((20, 13), (7, 13)), ((9, 33), (2, 5)), ((8, 6), (8, 1)), ((5, 4), (9, 7))])
def test_a_small_copy_is_the_twins(size, new, dtype: torch.dtype):
    x = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    twin = resize(x.float(), *new)
    assert (shrink(x, *new).permute(0, 3, 1, 2) - twin).abs().max() < 1e-5
    last = x.to(memory_format=torch.channels_last)
    assert torch.allclose(shrink(last, *new), shrink(x, *new), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("channels", "size", "new", "dtype", "kernel"),
    [
        (40, (7, 6), (4, 4), torch.float32, working_copy._shrink_last),
        (40, (1, 7), (1, 4), torch.bfloat16, working_copy._shrink_last),
        (32, (6, 1), (3, 1), torch.float32, working_copy._shrink_last),
        (9, (1, 40), (1, 6), torch.bfloat16, working_copy._shrink),  # too many under a tent to be spelled out
        (8, (5, 5), (3, 3), torch.float32, working_copy._shrink),  # too few to be read together
    ],
)
def test_a_small_copy_of_features_side_by_side_is_the_twins(
    channels: int, size, new, dtype: torch.dtype, kernel: Any, monkeypatch: pytest.MonkeyPatch
):
    launched = []
    monkeypatch.setattr(
        working_copy, "launch", lambda *given, **named: (launched.append(given[0]), launch(*given, **named))
    )
    tokens = torch.rand(2, 1 + math.prod(size), channels, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    x = tokens[:, 1:].unflatten(1, size).permute(0, 3, 1, 2)
    assert x.stride(1) == 1
    assert (shrink(x, *new).permute(0, 3, 1, 2) - resize(x.float(), *new)).abs().max() < 1e-5
    assert launched == [kernel]


@pytest.mark.parametrize(
    ("channels", "size", "new", "dtype", "used"),
    [
        (5, (5, 7), (5, 7), torch.float32, [working_copy._normalise]),
        (96, (5, 7), (5, 7), HALF, [working_copy._normalise]),
        (40, (33, 20), (17, 10), HALF, [working_copy._shrink_band]),  # more rows than one band
        (40, (7, 6), (4, 4), HALF, [working_copy._shrink_band]),
        (150, (41, 5), (20, 3), HALF, [working_copy._shrink_band]),  # with as many channels, too
        (40, (13, 9), (1, 5), HALF, [working_copy._shrink_band]),
        (40, (1, 9), (1, 5), HALF, [working_copy._shrink_band]),
        (40, (9, 9), (9, 5), HALF, [working_copy._shrink_band]),
        (40, (9, 1), (5, 1), HALF, [working_copy._shrink_band]),
        (40, (7, 6), (4, 4), torch.float32, [working_copy._shrink_last, working_copy._normalise]),
        (
            40,
            (7, 6),
            (4, 4),
            torch.bfloat16,
            [working_copy._shrink_band] * ON_GPU or [working_copy._shrink_last, working_copy._normalise],
        ),
        (8, (5, 5), (3, 3), HALF, [working_copy._shrink, working_copy._normalise]),  # too few to be read together
    ],
)
def test_a_normalised_copy_is_the_twins(
    channels: int, size, new, dtype: torch.dtype, used: list[Any], monkeypatch: pytest.MonkeyPatch
):
    launched = []
    monkeypatch.setattr(
        working_copy, "launch", lambda *given, **named: (launched.append(given[0]), launch(*given, **named))
    )
    x = 3 + torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    twin = F.layer_norm(resize(x.float(), *new).movedim(1, -1), (channels,))
    last, error = x.to(memory_format=torch.channels_last), 1e-5 if dtype == torch.float32 else 5e-5
    assert (normalise(last, *new, torch.float32) - twin).abs().max() < error
    assert launched == used
    assert (normalise(last, *new, torch.float16) - twin).abs().max() < 5e-3
    if channels <= FEW_CHANNELS:
        assert (normalise(x, *new, torch.float32) - twin).abs().max() < error


@pytest.mark.parametrize("held", [(5, 32, 256), (64, 3, 256), (64, 32, 39)])
def test_what_is_more_than_a_program_holds_is_shrunk_first(held, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(working_copy, "HELD", held)
    x = torch.randn(2, 40, 7, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE, HALF)
    x = x.to(memory_format=torch.channels_last)
    monkeypatch.setattr(working_copy, "_shrink_band", None)
    twin = F.layer_norm(resize(x.float(), 4, 4).movedim(1, -1), (40,))
    assert (normalise(x, 4, 4, torch.float32) - twin).abs().max() < 5e-5


@triton.jit
def gelu_of(x, out, COUNT: tl.constexpr):  # noqa: N803
    at = tl.arange(0, COUNT)
    tl.store(out + at, gelu(tl.load(x + at), out.dtype.element_ty).to(out.dtype.element_ty))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 1.2e-5)])
def test_gelu_is_the_twins_to_the_digits_that_are_asked_for(dtype: torch.dtype, error: float):
    x = torch.linspace(-12, 12, 4096, device=DEVICE)
    out = torch.empty_like(x, dtype=dtype)
    launch(gelu_of, (1, 1, 1), 4, x, out, COUNT=4096)
    rounding = torch.finfo(dtype).eps * out.float().abs()
    assert ((out - F.gelu(x.double())).abs() <= error + rounding).all()


def test_what_records_every_step_takes_the_other_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "available", lambda *_: True)
    monkeypatch.setattr("localscale.canonicalizer.kernel_solver.solve_with_kernels", None)
    config = dec_config(channels=(4,), max_steps=2, fixed_steps=True, gradient="unrolled")
    canonicalizer = ls.Canonicalizer(3, (4, 4), config).to(DEVICE)
    assert canonicalizer(torch.rand(1, 3, 16, 16, device=DEVICE)).map.displacements.requires_grad


def test_what_does_not_come_to_rest_is_the_identity_if_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "available", lambda *tensors: True)
    images = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for policy in ("warn", "identity"):
        settings = {"max_steps": 1, "tolerance": 1e-9, "on_failure": policy}
        canonicalizer = canonicalizer_for(3, "direct", True, (16, 16), **settings)
        with torch.no_grad():
            report = canonicalizer(images)
        assert not report.converged.any()
        assert report.map.moves.any().item() == (policy == "warn")
