"""The kernels of the size equilibrium against plain PyTorch: the balance of springs, looks, sizes, whole solves."""

import math

import pytest
import torch
from kernel_inputs import DEVICE, use_kernels
from torch import Tensor, nn

import localscale as ls
from localscale.canonicalizer.looks import Looks, levels_for, pyramid
from localscale.canonicalizer.sizes import WEIGHTS
from localscale.kernels.equilibrium import HALF
from localscale.kernels.lattice import solve_lattices
from localscale.kernels.looks import build_levels, look_launch
from localscale.maps.similarity import _LatticeSolve

pytestmark = pytest.mark.filterwarnings("ignore:some fixed points")


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("rows", "inner"), [(5, 3), (14, 12), (3, 6), (4, 1), (2, 2)])
def test_springs_are_in_balance(rows: int, inner: int):
    horizontal, vertical, force = (
        random(3, rows, inner + 1) + 0.02,
        random(3, rows - 1, inner) + 0.02,
        random(3, rows, inner) - 0.5,
    )
    found = solve_lattices(*(x.to(DEVICE) for x in (horizontal, vertical, force)))
    expected, _ = _LatticeSolve.apply(horizontal.double(), vertical.double(), force.double())
    assert (found.cpu() - expected).abs().max() < 1e-6 * expected.abs().max()
    rough = solve_lattices(*(x.to(DEVICE) for x in (horizontal, vertical, force)), refine=False)
    assert (rough.cpu() - expected).abs().max() < 1e-4 * expected.abs().max()


def test_gradients_of_a_map_from_scales_match(monkeypatch):
    scale, weight = (random(2, 6, 5, seed=seed).add(0.3).to(DEVICE) for seed in (0, 1))
    gradients = []
    for on in (False, True):
        use_kernels(monkeypatch, on)
        fields = [field.clone().requires_grad_() for field in (scale, weight)]
        loss = ls.map_from_scales(*fields, knots=(5, 6)).displacements.square().sum()
        first = torch.autograd.grad(loss, fields, retain_graph=True)
        differentiable = torch.autograd.grad(loss, fields, create_graph=True)
        second = torch.autograd.grad(sum(part.square().sum() for part in differentiable), fields)
        gradients.append([*first, *second])
    for plain, kernel in zip(*gradients, strict=True):
        assert torch.allclose(plain, kernel, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("channels", "source", "size"),
    [(3, (40, 31), (17, 13)), (20, (9, 12), (9, 12)), (5, (12, 9), (6, 5)), (1, (1, 20), (1, 11)), (2, (7, 1), (4, 1))],
)
def test_looks_match(channels: int, source: tuple[int, int], size: tuple[int, int]):
    images = random(2, channels, *source).to(DEVICE)
    m = ls.random_map(2, (5, 4), strength=3.0, generator=torch.Generator().manual_seed(1), device=DEVICE)
    expected = Looks(pyramid(images, size), size)(m)
    looks, count = torch.empty(2, *size, channels, device=DEVICE), levels_for(source, size)
    state = {
        "rows": 4,
        "columns": 5,
        "point": m.displacements.flatten(1).contiguous(),
        "active": torch.ones(2, dtype=torch.int8, device=DEVICE),
    }
    look_launch(build_levels(images, count, torch.float32), looks, source, count, state)()
    assert (looks.permute(0, 3, 1, 2) - expected).abs().max() < 1e-5


def size_canonicalizer(
    channels: int, knots: tuple[int, int], *, guard: float | None = 0.03, solver=None, **settings
) -> ls.Canonicalizer:
    torch.manual_seed(0)
    network = ls.SizeNetwork(**{"width": 16, "blocks": 1, "resolution": 33} | settings)
    solver = solver or ls.Picard(max_steps=2, tolerance=1e-3, fixed_steps=True)
    config = ls.DECConfig(knots=(knots,), update="compose", network=network, solver=solver, guard=guard)
    module = ls.Canonicalizer(channels, knots, config)
    nn.init.normal_(module.network.head.weight, std=0.3)
    for parameter in (*module.network.norm.parameters(), *module.network.blocks.parameters()):
        parameter.data += 0.1 * random(*parameter.shape, seed=1)
    module.network.trust.fill_(0.8)
    return module.to(DEVICE)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("channels", "knots", "size", "settings"),
    [
        (3, (6, 6), (64, 64), {}),
        slow(1, (7, 5), (40, 66), {"settling": 3, "blocks": 2}),
        slow(3, (5, 5), (64, 64), {"blocks": 0, "guard": None}),
        slow(20, (5, 4), (11, 14), {"settling": 2}),
        slow(3, (5, 5), (40, 40), {"shrink": False, "most": 1.3, "target": 0.2}),
        slow(3, (6, 6), (64, 64), {"solver": ls.Anderson(max_steps=4, tolerance=1e-3, fixed_steps=True)}),
    ],
)
def test_a_whole_solve_matches(monkeypatch, channels, knots, size, settings):
    module = size_canonicalizer(channels, knots, **settings)
    images = random(3, channels, *size).to(DEVICE)
    images[1] = 0.5  # nothing to see
    images[2, 0, 3, 5] = math.nan  # lost
    with torch.no_grad():
        expected = module(images)
        use_kernels(monkeypatch)
        found = module(images)
    assert expected.map.mean_displacement()[0] > 1e-3, "something must move"
    errors = (found.map.displacements - expected.map.displacements).flatten(1).abs().amax(dim=1)
    assert errors[0] < 2e-5
    assert errors[1] < 1e-3, "rounding is all that a constant image shows"
    assert torch.allclose(found.residual[0], expected.residual[0], atol=1e-5)
    assert torch.equal(found.steps, expected.steps)
    assert torch.equal(found.converged, expected.converged)
    assert not found.converged[2]
    assert not found.map.displacements[2].any()
    for a, b in zip(found.sizes_after, expected.sizes_after, strict=True):
        assert (a - b)[:2].abs().max() < 1e-3


@pytest.mark.slow
def test_a_lost_image_changes_no_other(monkeypatch):
    module, images = size_canonicalizer(3, (5, 5)), random(2, 3, 40, 40).to(DEVICE)
    images[0, 0, 3, 5] = math.nan
    use_kernels(monkeypatch)
    with torch.no_grad():
        found, alone = module(images), module(images[1:])
    assert not found.converged[0]
    assert not found.map.displacements[0].any()
    assert torch.equal(found.map.displacements[1], alone.map.displacements[0])


@pytest.mark.parametrize("settings", [{"weight": "learned"}, {"sure": 0.1}])
def test_settings_without_kernels_take_the_plain_path(monkeypatch, settings: dict):
    module, images = size_canonicalizer(3, (5, 5), **settings), random(2, 3, 40, 40).to(DEVICE)
    with torch.no_grad():
        expected = module(images)
        use_kernels(monkeypatch)
        assert torch.allclose(module(images).map.displacements, expected.map.displacements, atol=2e-5)


def test_another_function_in_the_place_of_edges_counts(monkeypatch):
    monkeypatch.setitem(WEIGHTS, "edges", lambda looks, size: torch.zeros(len(looks), *size, device=looks.device))
    use_kernels(monkeypatch)
    with torch.no_grad():
        assert not size_canonicalizer(3, (5, 5))(random(2, 3, 40, 40).to(DEVICE)).map.displacements.any()


def test_an_untrained_network_moves_nothing(monkeypatch):
    module = size_canonicalizer(3, (5, 5), settling=2)
    module.network.trust.fill_(0.0)
    use_kernels(monkeypatch)
    with torch.no_grad():
        assert not module(random(2, 3, 40, 40).to(DEVICE)).map.displacements.any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_in_half_precision_are_read_as_they_are(monkeypatch, dtype: torch.dtype):
    module, images = size_canonicalizer(3, (5, 5)), random(2, 3, 40, 40).to(DEVICE, dtype)
    with torch.no_grad():
        expected = module(images)
        use_kernels(monkeypatch)
        found = module(images)
    assert (found.map.displacements - expected.map.displacements).abs().max() < 2e-5
    assert found.sizes_after[0].dtype == torch.float32


@pytest.mark.slow
def test_half_precision_is_close(monkeypatch):
    module, images = size_canonicalizer(3, (6, 6)), random(2, 3, 64, 64).to(DEVICE)
    with torch.no_grad():
        expected = module(images)
        use_kernels(monkeypatch)
        monkeypatch.setattr("localscale.kernels.equilibrium.product_dtype", lambda: HALF)
        monkeypatch.setattr("localscale.kernels.size_network.product_dtype", lambda: HALF)
        monkeypatch.setattr("localscale.kernels.size_equilibrium.product_dtype", lambda: HALF)
        found = module(images)
    assert (found.map.displacements - expected.map.displacements).abs().max() < 3e-3


@pytest.mark.parametrize("frozen", [True, slow(False)])
def test_kernels_run_where_nothing_asks_for_a_gradient(monkeypatch, frozen: bool):
    module, images = size_canonicalizer(3, (5, 5)), random(2, 3, 40, 40).to(DEVICE)
    module.requires_grad_(not frozen)
    use_kernels(monkeypatch)
    assert module(images).map.displacements.requires_grad is not frozen
