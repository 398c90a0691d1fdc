"""Aug: every image gets a random map of its own, which depends on its number alone."""

import pytest
import reference
import torch
from baseline_inputs import draws, images
from scipy import stats

from localscale.errors import ConfigError, LocalScaleError, MapError
from localscale.lab.methods import RandomScaling
from localscale.lab.randomness import Draws
from localscale.maps import FAMILIES, GridMap, SeparableMap

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def state(scaling: RandomScaling, index: torch.Tensor, seed: int = 3, **settings) -> torch.Tensor:
    return scaling.maps(Draws(seed, index), **settings).state()


# The map of each sample.


@EACH_FAMILY
def test_a_samples_map_depends_on_its_draws_alone(family: str):
    scaling = RandomScaling(strength=2.0, probability=0.7, knots=5, family=family)
    index = torch.arange(40)
    whole = state(scaling, index)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(state(scaling, index[order]), whole[order])
    assert torch.equal(torch.cat([state(scaling, part) for part in index.split([1, 7, 32])]), whole)


@EACH_FAMILY
def test_a_samples_image_depends_on_its_draws_alone(family: str):
    scaling, pictures, index = RandomScaling(family=family, probability=0.5), images(6), torch.arange(6)
    whole = scaling(pictures, Draws(0, index))
    parts = zip(pictures.split([1, 2, 3]), index.split([1, 2, 3]), strict=True)
    assert torch.equal(torch.cat([scaling(some, Draws(0, at)) for some, at in parts]), whole)
    assert torch.equal(scaling(pictures.flip(0), Draws(0, index.flip(0))), whole.flip(0))


def test_every_sample_seed_and_name_has_a_map_of_its_own():
    scaling, index = RandomScaling(), torch.arange(20)
    drawn = torch.cat([state(scaling, index), state(scaling, index, seed=4), state(scaling, index, name="other")])
    assert len(drawn.unique(dim=0)) == 60


@EACH_FAMILY
def test_both_axes_have_numbers_of_their_own(family: str):
    x, y = RandomScaling(family=family).maps(draws(20)).logits()
    assert ((x - y).flatten(1).abs().amax(dim=1) > 0.1).all()


@pytest.mark.parametrize("scaling", [RandomScaling(probability=0.0), RandomScaling(strength=0.0)])
def test_without_probability_or_strength_images_stay_bitwise(scaling: RandomScaling):
    pictures = images()
    assert torch.equal(scaling(pictures, draws()), pictures)
    assert not scaling.maps(draws()).displacement_field(9, 9).any(), "whoever asks for the maps gets the identity too"


@EACH_FAMILY
def test_as_many_images_are_touched_as_probability_says(family: str):
    """About 600 of 2,000 images change (within four standard deviations); the others stay bitwise equal."""
    scaling, pictures = RandomScaling(probability=0.3, family=family), torch.rand(2000, 1, 4, 4)
    index = torch.arange(2000)
    touched = (scaling(pictures, Draws(0, index)) != pictures).flatten(1).any(dim=1)
    assert torch.equal(touched, scaling.maps(Draws(0, index)).mean_displacement() > 0)
    assert abs(int(touched.sum()) - 600) < 4 * (2000 * 0.3 * 0.7) ** 0.5


def test_who_is_touched_and_how_are_independent():
    """The map of an image does not depend on how many other images are scaled."""
    index = torch.arange(50)
    some, all_of_them = state(RandomScaling(probability=0.5), index), state(RandomScaling(), index)
    identity = state(RandomScaling(strength=0.0), index)
    touched = (some != identity).any(dim=1)
    assert 10 < int(touched.sum()) < 40
    assert torch.equal(some[touched], all_of_them[touched])


# The distribution of the maps.


@pytest.mark.parametrize(("family", "knots", "strength"), [("separable", 7, 1.5), ("grid", 3, 0.3)])
def test_raw_parameters_are_uniform_from_zero_to_strength(family: str, knots: int, strength: float):
    """A map determines its raw parameters up to a constant, so their differences are tested (triangular)."""
    scaling = RandomScaling(strength=strength, knots=knots, family=family)
    for logits in scaling.maps(Draws(0, torch.arange(1000))).logits():
        pairs = (logits[..., ::2] - logits[..., 1::2]).double().flatten()
        assert stats.kstest(pairs, stats.triang(0.5, loc=-strength, scale=2 * strength).cdf).pvalue > 1e-3
        assert 0.9 * strength < float(pairs.abs().max()) < strength + 1e-5


def test_simplex_increments_are_uniform_on_the_simplex():
    """Each of five increments has the distribution Beta(1, 4); the maps move points by 18 % of the side."""
    maps = RandomScaling(distribution="simplex", family="separable").maps(Draws(0, torch.arange(3000)))
    for axis in (maps.x, maps.y):
        assert stats.kstest(axis.values.diff(dim=-1)[:, 2].double(), stats.beta(1, 4).cdf).pvalue > 1e-3
    assert float(maps.mean_displacement().mean()) == pytest.approx(0.178, abs=0.004)


@EACH_FAMILY
def test_family_and_knots_are_those_asked_for(family: str):
    drawn = RandomScaling(family=family, knots=5).maps(draws(7))
    assert type(drawn) is {"grid": GridMap, "separable": SeparableMap}[family]
    assert (drawn.knots, drawn.batch, drawn.dtype) == ((5, 5), 7, torch.float32)


def test_no_map_folds_however_strong():
    assert (RandomScaling(strength=20.0, knots=8).maps(draws(50)).min_determinant() > 0.09).all()


def test_an_image_is_read_where_the_map_says():
    """S(I; u⁻¹)(p) = I(u(p)), pixel by pixel."""
    scaling, pictures = RandomScaling(strength=2.0, knots=4), images(2, size=9, dtype=torch.float64)
    control = scaling.maps(draws(2)).control_points.double().numpy()
    scaled = scaling(pictures, draws(2))
    assert (scaled - pictures).abs().max() > 0.1
    for n in range(2):
        expected = torch.from_numpy(reference.unscale(pictures[n].numpy(), control[n]))
        torch.testing.assert_close(scaled[n], expected, atol=1e-5, rtol=0)


# Settings that cannot work.


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"strength": -0.5}, ConfigError, "strength is -0.5; expected a finite number, 0 or more"),
        ({"strength": float("inf")}, ConfigError, "strength is inf; expected a finite number, 0 or more"),
        ({"strength": float("nan")}, ConfigError, "strength is nan; expected a finite number, 0 or more"),
        ({"probability": 1.5}, ConfigError, "probability is 1.5; expected 0 to 1"),
        ({"probability": float("nan")}, ConfigError, "probability is nan; expected 0 to 1"),
        ({"family": "grids"}, MapError, "no family 'grids': did you mean grid?"),
        ({"distribution": "simplx"}, ConfigError, "distribution is 'simplx': did you mean simplex?"),
        ({"knots": 1}, MapError, "knots is 1; a map needs at least 2 control points along each axis"),
    ],
)
def test_what_cannot_be_drawn_is_refused(settings: dict, kind: type[LocalScaleError], text: str):
    RandomScaling().check()
    with pytest.raises(kind) as error:
        RandomScaling(**settings).check()
    assert text in str(error.value)
