"""A box is scaled by the factor that fits; borders stay and the inverse is exact."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from localscale.conventions import lattice
from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.box_map import BoxMap
from localscale.lab.pages.app.examples import read_examples
from localscale.lab.pages.app.models import Pair
from localscale.lab.pages.app.scaling import (
    LARGEST,
    SMALLEST,
    box_around,
    box_between,
    box_maps,
    factors_to_try,
    fit_factor,
)
from localscale.lab.pages.app.views import mark_part, scale_part, view_example

SHARES = st.floats(0, 1)
FACTORS = st.floats(SMALLEST, LARGEST)
POINTS = lattice(41, 41, dtype=torch.float32).reshape(1, -1, 2)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    (left, right), (top, bottom) = (sorted((draw(SHARES), draw(SHARES))) for _ in range(2))
    if min(right - left, bottom - top) < 0.021:
        return Box(0.0, 0.25, 0.5, 0.75)
    return box_between((left, top), (right, bottom))


@given(boxes(), FACTORS)
def test_the_map_is_a_bijection_that_scales_the_box_by_the_factor_that_fits(box: Box, factor: float):
    m = box_maps(box, [factor])
    assert m.min_determinant().item() > 0
    torch.testing.assert_close(m.inverse()(m(POINTS)), POINTS, atol=1e-5, rtol=0)
    fits = fit_factor(box, factor)
    corners = torch.tensor([[[box.left, box.top], [box.right, box.bottom]]])
    grown = m(corners).diff(dim=1)[0, 0].tolist()
    expected = [fits * (box.right - box.left), fits * (box.bottom - box.top)]
    assert grown == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert m.local_scale(corners.mean(1, keepdim=True)).item() == pytest.approx(fits, rel=1e-4)


@given(boxes(), FACTORS)
def test_the_border_stays(box: Box, factor: float):
    m = box_maps(box, [factor])
    along = torch.linspace(0, 1, 21)
    for side in (0.0, 1.0):
        fixed = torch.full_like(along, side)
        assert torch.equal(m(torch.stack((fixed, along), -1)[None])[..., 0], fixed[None])
        assert torch.equal(m(torch.stack((along, fixed), -1)[None])[..., 1], fixed[None])


@given(boxes(), st.floats(0.01, 100))
def test_between_box_and_border_determinants_stay_above_the_least(box: Box, factor: float):
    m = box_maps(box, [factor])
    least = m.min_determinant().item()
    found = torch.linalg.det(m.jacobian(POINTS))
    inside = torch.tensor([[box.centre]])
    assert least <= found.min().item() + 1e-3
    fits = fit_factor(box, factor)
    assert least >= min(fits**2, 0.1 * fits, 0.1) - 1e-3
    torch.testing.assert_close(m.jacobian(inside), _differences(m, inside), atol=1e-2, rtol=1e-2)


def _differences(m: BoxMap, points: torch.Tensor) -> torch.Tensor:
    """Return the Jacobian by central differences in float64."""
    m, steps = m.to(dtype=torch.float64), 1e-7 * torch.eye(2, dtype=torch.float64)
    columns = [(m(points + step) - m(points - step)) / 2e-7 for step in steps]
    return torch.stack(columns, dim=-1).float()


def test_the_least_determinant_is_that_of_the_most_compressed_place():
    boxes = torch.tensor([[0.4, 0.4, 0.6, 0.6], [0.35, 0.45, 0.65, 0.55], [0.3, 0.3, 0.7, 0.7]])
    m = BoxMap(*boxes[:, None])
    found = torch.linalg.det(m.jacobian(lattice(402, 402, dtype=torch.float32).reshape(1, -1, 2)))
    assert m.min_determinant().item() == pytest.approx(found.min().item(), abs=0.01)


def test_only_the_surroundings_of_the_box_make_room():
    box = Box(0.4, 0.45, 0.6, 0.55)
    for factor in (0.4, 2.0):
        displaced = box_maps(box, [factor]).displacement_field(201, 201)[0]
        assert displaced[80:121, 70:131].any()
        displaced[60:141, 50:151] = 0  # a margin of the box's width
        assert not displaced.any()


def test_a_box_near_the_border_moves_inwards():
    m = box_maps(Box(0.7, 0.4, 0.9, 0.6), [2.0])
    left, right = m(torch.tensor([[[0.7, 0.5], [0.9, 0.5]]]))[0, :, 0].tolist()
    assert right - left == pytest.approx(0.4)
    assert right == pytest.approx(0.99)


def test_a_small_box_takes_every_factor_of_the_slider_and_a_wide_box_does_not():
    small, wide = Box(0.3, 0.3, 0.6, 0.6), Box(0.1, 0.1, 0.9, 0.5)
    assert (fit_factor(small, SMALLEST), fit_factor(small, LARGEST)) == (SMALLEST, LARGEST)
    assert factors_to_try(small, 15)[7] == 1.0
    assert fit_factor(wide, LARGEST) == pytest.approx((1 - 0.1 * 0.2) / 0.8)
    assert factors_to_try(wide, 5)[-1] == pytest.approx(fit_factor(wide, LARGEST), abs=1e-5)


@given(boxes(), st.integers(3, 20))
def test_the_factors_increase_and_contain_one_exactly(box: Box, count: int):
    factors = factors_to_try(box, count)
    assert 1.0 in factors
    assert factors == sorted(factors)
    assert len(factors) in (1, count)


@pytest.mark.parametrize("box", [Box(0, 0.2, 1, 0.4), Box(0.2, 0, 0.4, 1), Box(0, 0, 1, 1)])
def test_a_box_as_wide_as_the_image_cannot_be_scaled(box: Box):
    assert fit_factor(box, 2.0) == 1.0
    assert factors_to_try(box, 15) == [1.0]
    assert box_maps(box, [2.0]).mean_displacement().item() == 0


def test_corners_come_in_any_order_and_are_clamped_to_the_image():
    assert box_between((0.9, -0.5), (0.2, 0.5)) == Box(0.2, 0.0, 0.9, 0.5)


@pytest.mark.parametrize(
    ("corners", "message"),
    [
        (((0.5, 0.5), (0.505, 0.9)), "too small"),
        (((1.2, 0), (1.5, 1)), "too small"),
        (((math.nan, 0), (1, 1)), "not a finite number"),
    ],
)
def test_a_box_that_is_too_small_or_not_finite_is_refused(corners: tuple, message: str):
    with pytest.raises(DataError, match=message):
        box_between(*corners)


def test_a_brush_marks_the_box_around_its_stroke():
    box = box_around([(0.5, 0.4), (0.7, 0.6), (0.6, 0.2)], radius=0.1)
    assert box.edges == pytest.approx((0.4, 0.1, 0.8, 0.7))
    with pytest.raises(DataError, match="nothing was painted"):
        box_around([], radius=0.1)


def test_the_whole_image_can_be_marked(pair: Pair):
    view = mark_part(pair, view_example(pair, read_examples()[0]), box_between((0, 0), (1, 1)))
    scaled = scale_part(pair, view, 2.0)
    assert (scaled.factor, scaled.box.edges) == (1.0, (0.0, 0.0, 1.0, 1.0))
    torch.testing.assert_close(scaled.image, view.input)
