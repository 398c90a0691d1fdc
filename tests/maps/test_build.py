"""Random maps, the identity, maps from raw parameters, and the errors of wrong arguments."""

import pytest
import torch
from scipy.stats import beta, kstest, triang

from localscale.conventions import lattice
from localscale.errors import MapError
from localscale.maps import DISTRIBUTIONS, FAMILIES, identity_map, map_from_logits, random_map
from localscale.maps.distributions import raw_parameters

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


@EACH_FAMILY
def test_same_seed_same_maps(family: str):
    first, second, other = (
        random_map(3, (4, 6), family=family, generator=torch.Generator().manual_seed(seed)).state()
        for seed in (7, 7, 8)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1]), "maps of a batch differ"


@EACH_FAMILY
def test_a_generator_leaves_the_global_one_unchanged(family: str, rng: torch.Generator):
    before = torch.random.get_rng_state()
    random_map(3, family=family, generator=rng)
    assert torch.equal(torch.random.get_rng_state(), before)


@EACH_FAMILY
def test_identity_draws_no_random_numbers(family: str):
    before = torch.random.get_rng_state()
    identity_map(3, family=family)
    assert torch.equal(torch.random.get_rng_state(), before)


@EACH_FAMILY
@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_raw_parameters_are_uniform(family: str, strength: float, rng: torch.Generator):
    """The softmax removes a common offset, but the difference of two raw parameters is triangular on ±strength."""
    m = random_map(2000, (3, 2), strength=strength, family=family, guard=None, generator=rng, dtype=torch.float64)
    difference = m.logits()[0].diff(dim=-1).flatten()
    assert difference.abs().max() <= strength
    assert kstest(difference.numpy(), triang(0.5, -strength, 2 * strength).cdf).pvalue > 0.01


@EACH_FAMILY
@pytest.mark.parametrize(("dtype", "knots"), [(torch.float32, 2), (torch.float64, (2, 5)), (torch.float32, (7, 3))])
def test_identity_has_zero_displacement(family: str, dtype: torch.dtype, knots: int | tuple[int, int]):
    points = lattice(11, 13, dtype=dtype).reshape(1, -1, 2)
    for m in (identity_map(2, knots, family=family, dtype=dtype), random_map(2, knots, strength=0.0, family=family)):
        assert not m.displacement(points.to(m.dtype).expand(2, -1, -1)).any()
        assert not m.displacement_field(9, 5).any()
        assert not m.mean_displacement().any()
        assert torch.equal(m.min_determinant(), torch.ones(2, dtype=m.dtype))


@EACH_FAMILY
def test_temperature_divides_the_raw_parameters(family: str, rng: torch.Generator):
    logits = [torch.rand(2, *shape, generator=rng) for shape in FAMILIES[family].logit_shapes((6, 4))]
    sharp = map_from_logits(*logits, family=family, temperature=0.5, guard=None)
    doubled = map_from_logits(*(2 * raw for raw in logits), family=family, guard=None)
    assert torch.equal(sharp.state(), doubled.state())


@EACH_FAMILY
def test_dtype_and_knots_are_those_of_the_arguments(family: str):
    m = random_map(2, (6, 4), family=family, dtype=torch.float64)
    shape_x, shape_y = FAMILIES[family].logit_shapes((6, 4))
    assert (m.batch, m.dtype, m.device) == (2, torch.float64, torch.device("cpu"))
    assert [raw.shape[1:] for raw in m.logits()] == [shape_x, shape_y]


@pytest.mark.parametrize("knots", [1, (1, 4), (4, 1), 0, -3])
def test_too_few_knots(knots: int | tuple[int, int]):
    with pytest.raises(MapError, match="a map needs at least 2 control points along each axis"):
        random_map(knots=knots)


@pytest.mark.parametrize("knots", [(3,), (3, 3, 3), True, (4, 2.0)])
def test_knots_that_are_not_integers(knots: object):
    with pytest.raises(MapError, match=r"expected an integer or a pair of integers \(along x, along y\)"):
        random_map(knots=knots)


def test_unknown_family_names_the_near_miss():
    with pytest.raises(MapError, match=r"no family 'seperable': did you mean separable\?"):
        random_map(family="seperable")
    with pytest.raises(MapError, match="no family 'affine': known: grid, separable"):
        map_from_logits(torch.zeros(1, 2), torch.zeros(1, 2), family="affine")


@EACH_FAMILY
def test_values_out_of_range_are_named(family: str):
    with pytest.raises(MapError, match=r"strength is -0\.1; expected a finite number, 0 or more"):
        random_map(strength=-0.1, family=family)
    with pytest.raises(MapError, match="batch is 0; expected an integer, at least 1"):
        random_map(0, family=family)
    for temperature in (0.0, -1.0):
        with pytest.raises(MapError, match=f"temperature is {temperature}; expected a finite number, at least 0.001"):
            random_map(temperature=temperature, family=family)


@EACH_FAMILY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_half_precision_maps_are_refused(family: str, dtype: torch.dtype):
    with pytest.raises(MapError, match=f"dtype is {dtype}; expected float32 or float64"):
        random_map(dtype=dtype, family=family)


@EACH_FAMILY
@pytest.mark.parametrize("dtype", [torch.float16])
def test_half_precision_logits_are_refused(family: str, dtype: torch.dtype):
    shapes = FAMILIES[family].logit_shapes((4, 4))
    with pytest.raises(MapError, match="float32 or float64"):
        map_from_logits(*(torch.zeros(1, *shape, dtype=dtype) for shape in shapes), family=family)


@pytest.mark.parametrize(
    ("family", "x", "y"), [("grid", (1, 3, 0), (1, 1, 2)), ("separable", (1, 0), (1, 2)), ("separable", (1, 2), (1, 0))]
)
def test_logits_for_fewer_than_two_knots_are_refused(family: str, x: tuple[int, ...], y: tuple[int, ...]):
    with pytest.raises(MapError, match="logits have shapes"):
        map_from_logits(torch.zeros(x), torch.zeros(y), family=family)


# Increments uniform on the simplex.


@pytest.mark.parametrize("knots", [3, 6])
def test_simplex_increments_are_uniform_on_the_simplex(knots: int, rng: torch.Generator):
    """Each of n increments then has the distribution Beta(1, n − 1), and its pairs the covariance −1 / (n²(n + 1))."""
    m = random_map(4000, knots, family="separable", distribution="simplex", generator=rng, dtype=torch.float64)
    count = knots - 1
    increments = m.x.values.diff(dim=-1)
    assert kstest(increments[:, 0].numpy(), beta(1, count - 1).cdf).pvalue > 0.01
    covariance = float(torch.cov(increments[:, :2].T)[0, 1])
    assert covariance == pytest.approx(-1 / (count**2 * (count + 1)), rel=0.15)


def test_the_mean_displacement_of_each_distribution(rng: torch.Generator):
    """Six knots; the figures are those of the documentation. The guard shrinks grid maps, nearly all of which fold."""
    found = {
        (distribution, family): 100
        * float(
            random_map(4000, 6, strength=1.0, family=family, distribution=distribution, generator=rng)
            .mean_displacement()
            .mean()
        )
        for distribution in DISTRIBUTIONS
        for family in FAMILIES
    }
    expected = {("logits", "grid"): 4.4, ("logits", "separable"): 5.6, ("simplex", "grid"): 5.4}
    assert found == pytest.approx(expected | {("simplex", "separable"): 17.8}, abs=0.3)


def test_steep_simplex_maps_can_be_inverted(rng: torch.Generator):
    m = random_map(2000, 6, family="separable", distribution="simplex", generator=rng)
    assert (m.min_determinant() > 0).all()
    points = torch.rand(2000, 20, 2, generator=rng)
    assert (m(m.inverse()(points)) - points).abs().max() < 1e-4
    assert torch.isfinite(raw_parameters(torch.tensor([0.0, 1 - 2**-24]), "simplex")).all()


def test_an_unknown_distribution_names_the_near_miss():
    with pytest.raises(MapError, match="no distribution 'simplx': did you mean simplex"):
        random_map(distribution="simplx")
