"""Increasing maps of the line, and that they form a group (paper, Lemma 1)."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from localscale.errors import MapError
from localscale.maps import MonotoneMap
from localscale.maps.monotone import displacements_from_logits, interpolate, logits_from_displacements

LINE = torch.linspace(0, 1, 101)[None]


@st.composite
def monotone_maps(draw, strength: float = 1.0) -> MonotoneMap:
    raw = draw(st.lists(st.floats(0, strength, width=32), min_size=1, max_size=9))
    return MonotoneMap.from_logits(torch.tensor([raw], dtype=torch.float32))


def distance(a, b) -> float:
    return (a - b).abs().max().item()


@given(a=monotone_maps(), b=monotone_maps())
def test_composition_is_closed_and_exact(a: MonotoneMap, b: MonotoneMap):
    c = a @ b
    assert isinstance(c, MonotoneMap)
    assert distance(c(LINE), a(b(LINE))) <= 1e-6
    assert (c.knots.diff() >= 0).all()
    assert (c.values.diff() >= -1e-7).all()
    assert torch.equal(c(torch.tensor([[0.0, 1.0]])), torch.tensor([[0.0, 1.0]]))


@given(a=monotone_maps(), b=monotone_maps(), c=monotone_maps())
def test_composition_is_associative(a: MonotoneMap, b: MonotoneMap, c: MonotoneMap):
    assert distance(((a @ b) @ c)(LINE), (a @ (b @ c))(LINE)) <= 1e-6


@given(a=monotone_maps(), knots=st.integers(2, 9))
def test_identity_is_neutral(a: MonotoneMap, knots: int):
    one = MonotoneMap.identity(knots=knots)
    assert torch.equal(one(LINE), LINE)
    assert distance((one @ a)(LINE), a(LINE)) <= 1e-6
    assert distance((a @ one)(LINE), a(LINE)) <= 1e-6


@given(a=monotone_maps(strength=2.0))
def test_inverse_undoes_from_both_sides(a: MonotoneMap):
    assert distance((a @ a.inverse())(LINE), LINE) <= 1e-6
    assert distance((a.inverse() @ a)(LINE), LINE) <= 1e-6
    assert distance(a.inverse().inverse()(LINE), a(LINE)) == 0


@given(a=monotone_maps(), b=monotone_maps())
def test_inverse_of_a_composition_is_the_reversed_composition(a: MonotoneMap, b: MonotoneMap):
    assert distance((a @ b).inverse()(LINE), (b.inverse() @ a.inverse())(LINE)) <= 1e-6


def test_evaluation_is_numpy_interpolation(rng: torch.Generator):
    logits = torch.randn(3, 6, generator=rng, dtype=torch.float64)
    m = MonotoneMap.from_logits(logits)
    x = torch.rand(3, 50, generator=rng, dtype=torch.float64)
    for b in range(3):
        weights = np.exp(logits[b].numpy())
        values = np.concatenate(([0], np.cumsum(weights / weights.sum())))
        np.testing.assert_allclose(m(x)[b], np.interp(x[b], np.linspace(0, 1, 7), values), atol=1e-14)


@pytest.mark.parametrize(("count", "dtype"), [(1, torch.float32), (2, torch.float64), (15, torch.float32)])
def test_equal_logits_are_exactly_the_identity(count: int, dtype: torch.dtype):
    displacements = displacements_from_logits(torch.full((2, count), 0.3, dtype=dtype))
    assert displacements.shape == (2, count + 1)
    assert not displacements.any()


def test_ends_never_move(rng: torch.Generator):
    displacements = displacements_from_logits(5 * torch.randn(100, 9, generator=rng))
    assert not displacements[:, [0, -1]].any()


def test_logits_and_displacements_are_inverse_to_each_other(rng: torch.Generator):
    displacements = displacements_from_logits(2 * torch.randn(20, 6, generator=rng, dtype=torch.float64))
    torch.testing.assert_close(
        displacements_from_logits(logits_from_displacements(displacements)), displacements, atol=1e-14, rtol=0
    )
    assert not logits_from_displacements(torch.zeros(2, 6)).any(), "the identity is exactly zero"


def test_logits_of_a_decreasing_segment_count_it_as_tiny():
    logits = logits_from_displacements(torch.tensor([[0.0, -0.6, 0.0]], requires_grad=True))
    assert logits.isfinite().all()
    assert (displacements_from_logits(logits).detach() - torch.tensor([[0.0, -0.5, 0.0]])).abs().max() < 1e-6


def test_local_scale_is_the_derivative_and_at_a_knot_that_of_the_right_segment(rng: torch.Generator):
    m = MonotoneMap.from_logits(torch.randn(2, 4, generator=rng, dtype=torch.float64))
    x = torch.rand(2, 40, generator=rng, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(m.local_scale(x), torch.autograd.grad(m(x).sum(), x)[0])
    assert torch.equal(m.local_scale(m.knots[:, :-1]), m.slopes)


def test_swapping_knots_and_values_evaluates_the_inverse_where_segments_have_no_width():
    knots, values = torch.tensor([[0.0, 0.5, 0.5, 1.0]]), torch.tensor([[0.0, 0.2, 0.2, 1.0]])
    x = torch.tensor([[0.25, 0.5, 0.75]])
    torch.testing.assert_close(interpolate(x, knots, values), torch.tensor([[0.1, 0.2, 0.6]]))


def test_resampling_keeps_values_at_its_knots_and_ends_in_place(rng: torch.Generator):
    m = MonotoneMap.from_logits(torch.randn(2, 5, generator=rng))
    fitted = m.inverse().resample(4)
    assert fitted.knots.shape == (2, 4)
    torch.testing.assert_close(fitted.values, m.inverse()(fitted.knots), atol=1e-6, rtol=0)
    assert torch.equal(fitted.values[:, [0, -1]], torch.tensor([[0.0, 1.0]]).expand(2, 2))


def test_gradients_of_evaluation_inverse_and_composition(rng: torch.Generator):
    a, b = (torch.randn(1, n, generator=rng, dtype=torch.float64, requires_grad=True) for n in (3, 4))
    x = torch.rand(1, 7, generator=rng, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda a, x: MonotoneMap.from_logits(a)(x), (a, x))
    assert gradcheck(lambda a, x: MonotoneMap.from_logits(a).inverse()(x), (a, x))
    assert gradcheck(lambda a, b, x: (MonotoneMap.from_logits(a) @ MonotoneMap.from_logits(b))(x), (a, b, x))


def test_to_and_detach(rng: torch.Generator):
    m = MonotoneMap.from_logits(torch.randn(1, 3, generator=rng, requires_grad=True))
    assert m.to(dtype=torch.float64).values.dtype == m.to(dtype=torch.float64).knots.dtype == torch.float64
    assert m.values.requires_grad
    assert not m.detach().values.requires_grad
    assert torch.equal(m.detach().values, m.values)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (2, 0)])
def test_wrong_logits_shape_is_named(shape: tuple[int, ...]):
    with pytest.raises(MapError, match=r"logits have shape \(.*\); expected \(batch, knots − 1\) with knots ≥ 2"):
        MonotoneMap.from_logits(torch.zeros(shape))
