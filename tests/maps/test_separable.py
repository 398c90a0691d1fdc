"""Separable maps form a group: one increasing map per axis."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import autograd_jacobian
from torch.autograd import gradcheck

from localscale.conventions import lattice
from localscale.errors import MapError
from localscale.maps import Composition, SeparableMap, identity_map, map_from_logits, random_map

SQUARE = lattice(21, 23, dtype=torch.float32).reshape(1, -1, 2)


@st.composite
def separable_maps(draw, strength: float = 1.0) -> SeparableMap:
    axis = st.lists(st.floats(0, strength, width=32), min_size=1, max_size=7)
    return SeparableMap.from_logits(*(torch.tensor([draw(axis)], dtype=torch.float32) for _ in range(2)))


def distance(a, b) -> float:
    return (a - b).abs().max().item()


@given(a=separable_maps(), b=separable_maps())
def test_composition_is_closed_and_exact(a: SeparableMap, b: SeparableMap):
    c = a @ b
    assert isinstance(c, SeparableMap)
    assert distance(c(SQUARE), a(b(SQUARE))) <= 1e-6


@given(a=separable_maps(), b=separable_maps(), c=separable_maps())
def test_composition_is_associative(a: SeparableMap, b: SeparableMap, c: SeparableMap):
    assert distance(((a @ b) @ c)(SQUARE), (a @ (b @ c))(SQUARE)) <= 1e-6


@given(a=separable_maps())
def test_identity_is_neutral(a: SeparableMap):
    one = identity_map(knots=(3, 5), family="separable")
    assert distance((one @ a)(SQUARE), a(SQUARE)) <= 1e-6
    assert distance((a @ one)(SQUARE), a(SQUARE)) <= 1e-6


@given(a=separable_maps(strength=2.0))
def test_inverse_stays_in_the_family_and_undoes_from_both_sides(a: SeparableMap):
    assert isinstance(a.inverse(), SeparableMap)
    assert distance((a @ a.inverse())(SQUARE), SQUARE) <= 1e-6
    assert distance((a.inverse() @ a)(SQUARE), SQUARE) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_min_determinant_survives_knots_that_coincide_up_to_rounding(dtype: torch.dtype, rng: torch.Generator):
    """(m∘m)⁻¹∘m is m⁻¹, but each of its knots occurs twice, one rounding error apart."""
    m = random_map(200, 8, strength=1.0, family="separable", generator=rng, dtype=dtype)
    expected = m.inverse().min_determinant()
    torch.testing.assert_close(((m @ m).inverse() @ m).min_determinant(), expected, rtol=1e-3, atol=0)


def test_rowwise_inverse_is_the_exact_one(rng: torch.Generator):
    m = random_map(2, 5, strength=1.0, family="separable", generator=rng)
    assert torch.equal(m.inverse("rowwise")(SQUARE), m.inverse("exact")(SQUARE))


def test_axes_are_independent_and_in_xy_order(rng: torch.Generator):
    logits_x, logits_y = torch.randn(2, 3, generator=rng), torch.randn(2, 5, generator=rng)
    moved = SeparableMap.from_logits(logits_x, torch.zeros(2, 5))(SQUARE)
    assert torch.equal(moved[..., 1], SQUARE[..., 1].expand(2, -1))
    assert distance(moved[..., 0], SQUARE[..., 0]) > 0.01
    m = SeparableMap.from_logits(logits_x, logits_y)
    assert torch.equal(m(SQUARE)[..., 0], moved[..., 0])
    assert torch.equal(m(SQUARE)[..., 1], m.y(SQUARE[..., 1].expand(2, -1)))


def test_jacobian_is_diagonal_and_that_of_autograd(rng: torch.Generator):
    m = random_map(2, (4, 6), strength=2.0, family="separable", generator=rng, dtype=torch.float64)
    points = torch.rand(2, 30, 2, generator=rng, dtype=torch.float64)
    for f in (m, m.inverse(), m @ m):
        jacobian = f.jacobian(points)
        torch.testing.assert_close(jacobian, autograd_jacobian(f, points))
        assert not jacobian[..., 0, 1].any()
        assert not jacobian[..., 1, 0].any()
        torch.testing.assert_close(f.local_scale(points), torch.linalg.det(jacobian).sqrt())


def test_min_determinant_is_the_smallest_over_all_segments(rng: torch.Generator):
    m = random_map(3, (4, 6), strength=2.0, family="separable", generator=rng, dtype=torch.float64)
    middles = [(axis.knots[:, 1:] + axis.knots[:, :-1]) / 2 for axis in (m.x, m.y)]
    grid = torch.stack([torch.cartesian_prod(x, y) for x, y in zip(*middles, strict=True)])
    torch.testing.assert_close(m.min_determinant(), torch.linalg.det(m.jacobian(grid)).amin(dim=1))


def test_gradients(rng: torch.Generator):
    draw = {"generator": rng, "dtype": torch.float64, "requires_grad": True}
    ax, ay, bx, by = (torch.randn(1, n, **draw) for n in (3, 2, 2, 4))
    points = torch.rand(1, 6, 2, **draw)

    def build(x, y):
        return map_from_logits(x, y, family="separable")

    assert gradcheck(lambda x, y, p: build(x, y)(p), (ax, ay, points))
    assert gradcheck(lambda x, y, p: build(x, y).inverse()(p), (ax, ay, points))
    assert gradcheck(lambda x, y, z, w, p: (build(x, y) @ build(z, w))(p), (ax, ay, bx, by, points))
    assert gradcheck(lambda x, y, p: build(x, y).local_scale(p), (ax, ay, points))


def test_state_and_logits_round_trip(rng: torch.Generator):
    m = random_map(3, (4, 6), strength=2.0, family="separable", generator=rng, dtype=torch.float64)
    assert m.state().shape == (3, 10)
    again = SeparableMap.from_state(m.state(), (4, 6))
    torch.testing.assert_close(again.state(), m.state(), atol=1e-15, rtol=0)
    torch.testing.assert_close(SeparableMap.from_logits(*m.logits()).state(), m.state(), atol=1e-14, rtol=0)


def test_resampling_makes_an_inverse_even_again(rng: torch.Generator):
    m = random_map(2, 5, strength=1.0, family="separable", generator=rng)
    fitted = m.inverse().resample((9, 7))
    assert fitted.state().shape == (2, 16)
    knots = lattice(7, 9, dtype=torch.float32).reshape(1, -1, 2)
    assert distance(fitted(knots), m.inverse()(knots)) <= 1e-6
    assert distance(SeparableMap.from_logits(*fitted.logits())(SQUARE), fitted(SQUARE)) <= 1e-6


def test_compose_is_the_chain_on_its_own_knots(rng: torch.Generator):
    a, b = (random_map(2, n, strength=1.0, family="separable", generator=rng) for n in ((6, 4), (5, 7)))
    fitted = a.compose_resampled(b)
    knots = lattice(4, 6, dtype=torch.float32).reshape(1, -1, 2)
    assert [axis.knots.shape[1] for axis in (fitted.x, fitted.y)] == [6, 4]
    assert distance(fitted(knots), a(b(knots))) <= 1e-6
    assert distance(fitted(SQUARE), (a @ b).resample((6, 4))(SQUARE)) <= 1e-6
    one = identity_map(2, (6, 4), family="separable")
    assert torch.equal(one.compose_resampled(one).state(), one.state())
    assert distance(a.compose_resampled(one).state(), a.state()) <= 1e-7


def test_composing_with_another_family_chains(rng: torch.Generator):
    a = random_map(2, family="separable", generator=rng)
    b = random_map(2, family="grid", generator=rng)
    for outer, inner in ((a, b), (b, a)):
        assert isinstance(outer @ inner, Composition)
        assert distance((outer @ inner)(SQUARE), outer(inner(SQUARE))) <= 1e-6


@pytest.mark.parametrize(("x", "y"), [((2, 3), (3, 3)), ((2, 4, 3), (2, 4, 3)), ((3,), (3,))])
def test_wrong_logits_shapes_are_named(x: tuple[int, ...], y: tuple[int, ...]):
    with pytest.raises(MapError, match=r"a separable map needs \(batch, knots_x − 1\) and \(batch, knots_y − 1\)"):
        SeparableMap.from_logits(torch.zeros(x), torch.zeros(y))


@pytest.mark.parametrize("method", ["exact", "rowwise"])
def test_no_map_of_the_family_folds_without_a_guard(method: str, rng: torch.Generator):
    m = random_map(50, (3, 12), strength=2.0, family="separable", guard=None, generator=rng)
    assert (m.min_determinant() > 0).all()
    assert (m.inverse(method).min_determinant() > 0).all()
