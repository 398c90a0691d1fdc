"""H_ψ and E_ψ: convolutions, pooling to the knots, and the identity at initialisation (App. A1)."""

import pytest
import torch
import torch.nn.functional as F
from canonicalizer_inputs import noise
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from localscale.canonicalizer import EnergyNetwork, MapNetwork
from localscale.canonicalizer.network import Trunk, _pooling_matrix
from localscale.maps import FAMILIES, map_from_logits

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
SIZES = [(1, 1), (1, 9), (7, 1), (3, 2), (14, 14), (28, 27), (28, 31), (56, 40), (112, 112)]


def randomised(network: nn.Module, std: float = 0.5, seed: int = 0) -> nn.Module:
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("to_"):
                parameter.normal_(std=std, generator=rng)
    return network


def trunk_oracle(trunk: Trunk, x: Tensor) -> Tensor:
    """Two convolutions with GELU; each has stride two if its input has at least 28 pixels."""
    for layer in trunk.layers:
        x = F.gelu(F.conv2d(x, layer.weight, layer.bias, stride=2 if min(x.shape[-2:]) >= 28 else 1, padding=1))
    return x


def map_oracle(network: MapNetwork, x: Tensor, family: str, knots: tuple[int, int]) -> Tensor:
    """The whole network with torch's own pooling, as the state of its map."""
    x = trunk_oracle(network.trunk, x)
    columns, rows = knots
    if family == "grid":
        cells_x, cells_y = (rows, columns - 1), (rows - 1, columns)
    else:
        cells_x, cells_y = (1, columns - 1), (rows - 1, 1)
    logits_x = network.to_x(F.adaptive_avg_pool2d(x, cells_x).movedim(1, -1)).squeeze(-1)
    logits_y = network.to_y(F.adaptive_avg_pool2d(x, cells_y).movedim(1, -1)).squeeze(-1).transpose(1, 2)
    if family == "separable":
        logits_x, logits_y = logits_x.squeeze(1), logits_y.squeeze(1)
    raw = (torch.tanh(logits_x), torch.tanh(logits_y))
    return map_from_logits(*raw, family=family, guard=network.guard, temperature=network.temperature).state()


def test_two_layers_of_64_and_128_by_default():
    for network in (MapNetwork(3, (6, 6)), EnergyNetwork(3)):
        layers = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
        assert [(m.in_channels, m.out_channels, m.kernel_size) for m in layers] == [(3, 64, (3, 3)), (64, 128, (3, 3))]


@pytest.mark.parametrize("channels", [(5,), (4, 6), (4, 6, 8, 2)])
def test_depth_is_the_number_of_channels(channels: tuple[int, ...]):
    for network in (MapNetwork(7, (4, 5), channels=channels), EnergyNetwork(7, channels=channels)):
        widths = [(m.in_channels, m.out_channels) for m in network.modules() if isinstance(m, nn.Conv2d)]
        assert widths == list(zip((7, *channels), channels, strict=False))


@pytest.mark.parametrize(
    ("size", "out"),
    [((56, 56), (14, 14)), ((55, 55), (14, 14)), ((54, 54), (27, 27)), ((28, 27), (28, 27)), ((112, 28), (56, 14))],
)
def test_a_layer_halves_only_what_stays_large_enough(size: tuple[int, int], out: tuple[int, int]):
    assert Trunk(1, (2, 2))(torch.zeros(1, 1, *size)).shape[-2:] == out


@EACH_FAMILY
@pytest.mark.parametrize(("size", "knots"), list(zip(SIZES, [(6, 6), (2, 5), (4, 2), (20, 3)] * 3, strict=False)))
def test_the_whole_network_matches_the_oracle(knots: tuple[int, int], size: tuple[int, int], family: str):
    """The sizes go down to a single pixel, and there may be more knots than pixels."""
    network = randomised(MapNetwork(3, knots, family=family, channels=(4, 6), temperature=0.7, guard=0.3))
    x = noise(2, 3, *size)
    m = network(x)
    assert m.batch == 2
    torch.testing.assert_close(m.state(), map_oracle(network, x, family, knots), atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", SIZES)
def test_energy_matches_the_oracle(size: tuple[int, int]):
    network = randomised(EnergyNetwork(3, channels=(4, 6)))
    x = noise(2, 3, *size)
    expected = network.to_energy(F.adaptive_avg_pool2d(trunk_oracle(network.trunk, x), 1).flatten(1)).squeeze(1)
    assert expected.shape == (2,)
    torch.testing.assert_close(network(x), expected, atol=1e-6, rtol=0)


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_pooling_is_torchs_adaptive_average(height: int, width: int, rows: int, columns: int, dtype: torch.dtype):
    x = noise(2, 3, height, width, dtype=dtype)
    down, across = (_pooling_matrix(*pair, dtype, x.device) for pair in ((height, rows), (width, columns)))
    ours, theirs = down @ x @ across.T, F.adaptive_avg_pool2d(x, (rows, columns))
    torch.testing.assert_close(ours, theirs, atol=1e-6 if dtype == torch.float32 else 1e-14, rtol=0)


@pytest.mark.parametrize("size", SIZES)
def test_the_trunks_size_is_known_beforehand(size: tuple[int, int]):
    trunk = Trunk(3, (4, 5, 6))
    assert trunk.output_size(*size) == tuple(trunk(noise(1, 3, *size)).shape[2:])


@EACH_FAMILY
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, (56, 40)), (torch.float64, (1, 1))])
def test_the_first_map_is_exactly_the_identity(family: str, dtype: torch.dtype, size: tuple[int, int]):
    network = MapNetwork(8, (6, 4), family=family).to(dtype)
    m = network(100 * noise(2, 8, *size, dtype=dtype))
    assert m.dtype == dtype
    assert not m.displacement_field(11, 13).any()


def test_the_first_energy_is_exactly_zero_everywhere():
    assert EnergyNetwork(8)(100 * noise(2, 8, 14, 14)).tolist() == [0, 0]


@EACH_FAMILY
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_weights_compute_in_float32(family: str, half: torch.dtype):
    """The result is exactly that of the rounded weights in float32."""
    network = randomised(MapNetwork(8, (4, 4), family=family, channels=(8, 8))).to(half)
    energy = randomised(EnergyNetwork(8, channels=(8, 8))).to(half)
    x = noise(2, 8, 14, 14)
    m, e = network(x), energy(x)
    assert (m.dtype, e.dtype) == (torch.float32, torch.float32)
    assert {p.dtype for p in network.parameters()} == {half}
    assert torch.equal(m.state(), network.float()(x).state())
    assert torch.equal(e, energy.float()(x))


@EACH_FAMILY
def test_temperature_bounds_neighbouring_increments(family: str):
    """tanh keeps raw parameters in [−1, 1], so increments differ by at most e^(2/τ)."""
    for temperature in (0.5, 1.0, 4.0):
        network = randomised(MapNetwork(4, (6, 6), family=family, channels=(4,), temperature=temperature, guard=None))
        network.trunk = Trunk(4, ())  # passes features on
        m = network(1e4 * noise(20, 4, 14, 14))
        largest = max((raw.amax(dim=-1) - raw.amin(dim=-1)).max().item() for raw in m.logits())
        assert largest <= 2 / temperature + 1e-3
        assert largest > 1.5 / temperature, "and the bound is reached"


def test_samples_are_independent():
    network = randomised(MapNetwork(3, (6, 6), channels=(4, 4)))
    x = noise(3, 3, 20, 20)
    changed = x.clone()
    changed[1] = torch.nan
    kept = network(changed).state()
    assert torch.equal(kept[[0, 2]], network(x).state()[[0, 2]])
    assert kept[1].isnan().any()
