"""A box is scaled by the factor that fits; borders stay and the inverse is exact."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from localscale.conventions import lattice
from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.scaling import (
    LARGEST,
    SMALLEST,
    box_around,
    box_between,
    box_maps,
    factors_to_try,
    fit_factor,
)

SHARES = st.floats(0, 1)
FACTORS = st.floats(SMALLEST, LARGEST)
POINTS = lattice(41, 41, dtype=torch.float32).reshape(1, -1, 2)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    (left, right), (top, bottom) = (sorted((draw(SHARES), draw(SHARES))) for _ in range(2))
    if min(right - left, bottom - top) < 0.02:
        return Box(0.0, 0.25, 0.5, 0.75)
    return Box(left, top, right, bottom)


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
def test_the_slope_outside_the_box_stays_between_a_tenth_and_ten(box: Box, factor: float):
    m = box_maps(box, [factor])
    for axis, (start, end) in ((m.x, (box.left, box.right)), (m.y, (box.top, box.bottom))):
        outside = axis.local_scale(torch.tensor([[start / 2, (1 + end) / 2]]))[0]
        for slope, room in zip(outside.tolist(), (start, 1 - end), strict=True):
            assert room < 1e-4 or 0.1 - 1e-3 <= slope <= 10 + 1e-2


def test_a_small_box_takes_every_factor_of_the_slider_and_a_wide_box_does_not():
    small, wide = Box(0.3, 0.3, 0.6, 0.6), Box(0.1, 0.1, 0.9, 0.5)
    assert (fit_factor(small, SMALLEST), fit_factor(small, LARGEST)) == (SMALLEST, LARGEST)
    assert factors_to_try(small, 15)[7] == 1.0
    assert fit_factor(wide, LARGEST) == pytest.approx((1 - 0.1 * 0.2) / 0.8)
    assert factors_to_try(wide, 5)[-1] == pytest.approx(fit_factor(wide, LARGEST), abs=1e-5)


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
