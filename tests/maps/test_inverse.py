"""Inverses: exact for both families, and the paper's row-and-column approximation."""

import numpy as np
import pytest
import torch
from reference import autograd_jacobian, invert
from torch.autograd import gradcheck

from localscale.conventions import lattice
from localscale.errors import MapError
from localscale.maps import ExactInverse, GridMap, RowwiseInverse, SeparableMap, identity_map, random_map

KNOTS = [(2, 2), (2, 16), (3, 3), (4, 7), (5, 5), (8, 8), (11, 6), (16, 3), (13, 14), (16, 16)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.mark.parametrize("family", ["grid", "separable"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_exact_inverse_undoes_from_both_sides(family: str, dtype: torch.dtype, rng: torch.Generator):
    """250 maps each, 1,000 in all, on scattered points and on the lattice, whose points lie on cell edges."""
    for knots in KNOTS:
        for strength in (0.1, 0.5, 1.0, 1.5, 2.0):
            m = random_map(5, knots, strength=strength, family=family, generator=rng, dtype=dtype)
            scattered = torch.rand(5, 150, 2, generator=rng, dtype=dtype)
            edges = lattice(knots[1], knots[0], dtype=dtype).reshape(1, -1, 2).expand(5, -1, -1)
            points = torch.cat((scattered, edges), dim=1)
            inverse = m.inverse()
            assert (inverse(m(points)) - points).abs().max() <= TOLERANCE[dtype]
            assert (m(inverse(points)) - points).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("knots", [(2, 2), (3, 6), (5, 5), (7, 4)])
def test_exact_inverse_finds_the_only_root(knots: tuple[int, int], rng: torch.Generator):
    m = random_map(2, knots, strength=2.0, generator=rng, dtype=torch.float64)
    points = torch.rand(2, 12, 2, generator=rng, dtype=torch.float64)
    found = m.inverse()(points)
    for b in range(2):
        for point, ours in zip(points[b].numpy(), found[b].numpy(), strict=True):
            (root,) = invert(m.control_points[b].numpy(), point)
            np.testing.assert_allclose(ours, root, atol=1e-10)


def test_inverse_of_a_folding_map_is_finite(rng: torch.Generator):
    m = random_map(20, 8, strength=5.0, guard=None, generator=rng)
    assert (m.min_determinant() < 0).any()
    assert m.inverse()(torch.rand(20, 500, 2, generator=rng)).isfinite().all()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("knots", [(2, 3), (8, 8)])
def test_inverse_of_the_identity_is_exactly_the_identity(knots: tuple[int, int], dtype: torch.dtype):
    inverse = identity_map(2, knots, dtype=dtype).inverse()
    points = lattice(17, 23, dtype=dtype).reshape(1, -1, 2)
    assert torch.equal(inverse(points), points.expand(2, -1, -1))
    assert not inverse.displacement_field(14, 9).any()


def test_sides_of_the_square_stay_on_themselves(rng: torch.Generator):
    inverse = random_map(20, (6, 9), strength=2.0, generator=rng).inverse()
    displacement = inverse.displacement_field(33, 21)
    for side in (
        displacement[:, :, 0, 0],
        displacement[:, :, -1, 0],
        displacement[:, 0, :, 1],
        displacement[:, -1, :, 1],
    ):
        assert side.abs().max() <= 1e-7


def test_exact_inverse_gradients_by_the_implicit_function_theorem(rng: torch.Generator):
    displacements = random_map(
        1, (4, 3), strength=2.0, generator=rng, dtype=torch.float64
    ).displacements.requires_grad_()
    points = torch.rand(1, 6, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda o, p: GridMap(o).inverse()(p), (displacements, points))
    assert gradcheck(lambda o: GridMap(o).inverse().displacement_field(4, 5), (displacements,))
    assert gradcheck(lambda o, p: (GridMap(o) @ GridMap(o).inverse() @ GridMap(o))(p), (displacements, points))


def test_rowwise_inverse_gradients(rng: torch.Generator):
    displacements = random_map(
        1, (4, 3), strength=1.0, generator=rng, dtype=torch.float64
    ).displacements.requires_grad_()
    points = torch.rand(1, 6, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda o, p: GridMap(o).inverse("rowwise")(p), (displacements, points))
    assert gradcheck(lambda o: GridMap(o).inverse("rowwise").displacement_field(5, 6), (displacements,))


@pytest.mark.parametrize("method", ["exact", "rowwise"])
def test_jacobian_is_that_of_autograd(method: str, rng: torch.Generator):
    inverse = random_map(2, (4, 5), strength=1.0, generator=rng, dtype=torch.float64).inverse(method)
    points = torch.rand(2, 50, 2, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(inverse.jacobian(points), autograd_jacobian(inverse, points))


def test_inverse_scales_by_the_reciprocal(rng: torch.Generator):
    m = random_map(3, 5, strength=2.0, generator=rng, dtype=torch.float64)
    points = torch.rand(3, 100, 2, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(m.inverse().local_scale(m(points)), 1 / m.local_scale(points))
    determinants = torch.linalg.det(m.inverse().jacobian(torch.rand(3, 20000, 2, generator=rng, dtype=torch.float64)))
    smallest, bound = determinants.amin(dim=1), m.inverse().min_determinant()
    assert (smallest >= bound).all()
    torch.testing.assert_close(smallest, bound, rtol=0.2, atol=0)


def test_rowwise_inverse_inverts_the_row_and_the_column_through_a_point(rng: torch.Generator):
    m = random_map(1, (5, 4), strength=1.0, generator=rng, dtype=torch.float64)
    point = torch.tensor([[[0.37, 0.81]]], dtype=torch.float64)
    line = torch.linspace(0, 1, 5, dtype=torch.float64), torch.linspace(0, 1, 4, dtype=torch.float64)
    row = m(torch.stack((line[0], torch.full_like(line[0], 0.81)), dim=-1)[None])[0, :, 0]
    column = m(torch.stack((torch.full_like(line[1], 0.37), line[1]), dim=-1)[None])[0, :, 1]
    expected = [np.interp(0.37, row, line[0]), np.interp(0.81, column, line[1])]
    np.testing.assert_allclose(m.inverse("rowwise")(point)[0, 0], expected, atol=1e-12)


def test_rowwise_inverse_is_exact_for_maps_with_equal_rows_and_columns_only(rng: torch.Generator):
    separable = random_map(1, 5, strength=1.0, family="separable", generator=rng)
    aligned = separable.resample((5, 5)).state().split(5, dim=-1)
    x, y = aligned[0][:, None, :].expand(1, 5, 5), aligned[1][:, :, None].expand(1, 5, 5)
    same = GridMap.from_state(torch.stack((x, y), dim=1).flatten(1), (5, 5))
    points = torch.rand(1, 200, 2, generator=rng)
    torch.testing.assert_close(same.inverse("rowwise")(points), same.inverse()(points), atol=1e-6, rtol=0)
    m = random_map(1, 5, strength=1.0, generator=rng)
    assert (m(m.inverse("rowwise")(points)) - points).abs().max() > 1e-2


def test_rowwise_min_determinant_is_that_of_its_own_jacobian(rng: torch.Generator):
    inverse = random_map(2, 4, strength=1.0, generator=rng, dtype=torch.float64).inverse("rowwise")
    points = torch.rand(2, 20000, 2, generator=rng, dtype=torch.float64)
    sampled = torch.linalg.det(autograd_jacobian(inverse, points)).amin(dim=1)
    torch.testing.assert_close(inverse.min_determinant(), sampled, rtol=0.1, atol=0.02)


def test_types_and_inverses_of_inverses(rng: torch.Generator):
    m = random_map(2, 4, generator=rng)
    assert isinstance(m.inverse(), ExactInverse)
    assert isinstance(m.inverse("rowwise"), RowwiseInverse)
    assert m.inverse().inverse() is m
    assert m.inverse("rowwise").inverse() is m
    assert isinstance(random_map(2, 4, family="separable").inverse(), SeparableMap)


def test_unknown_method_is_refused():
    with pytest.raises(MapError, match=r"inverse method is 'newton'; expected \"exact\" or \"rowwise\""):
        random_map().inverse("newton")
