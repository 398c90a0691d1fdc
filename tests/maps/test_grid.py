"""Bilinear lattice maps (paper, App. A2.2)."""

import numpy as np
import pytest
import torch
from reference import autograd_jacobian, control_points, evaluate
from torch.autograd import gradcheck

from localscale.conventions import lattice
from localscale.errors import MapError, ShapeError
from localscale.maps import Composition, GridMap, identity_map, map_from_logits, random_map, resampling_error

KNOTS = [(2, 2), (2, 5), (6, 3), (7, 7)]


@pytest.mark.parametrize("knots", KNOTS)
def test_control_points_and_evaluation_match_the_oracle(knots: tuple[int, int], rng: torch.Generator):
    shape_x, shape_y = GridMap.logit_shapes(knots)
    logits_x, logits_y = (torch.randn(2, *s, generator=rng, dtype=torch.float64) for s in (shape_x, shape_y))
    m = GridMap.from_logits(logits_x, logits_y)
    points = torch.rand(2, 60, 2, generator=rng, dtype=torch.float64)
    assert m.knots == knots
    for b in range(2):
        increments = [np.exp(raw[b].numpy()) for raw in (logits_x, logits_y)]
        control = control_points(*(i / i.sum(axis=1, keepdims=True) for i in increments))
        np.testing.assert_allclose(m.control_points[b], control, atol=1e-14)
        np.testing.assert_allclose(m(points)[b], evaluate(control, points[b].numpy()), atol=1e-14)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (8, 1), (7, 7), (32, 45)])
def test_displacement_field_is_the_displacement_at_every_pixel(size: tuple[int, int], rng: torch.Generator):
    m = random_map(2, (5, 4), strength=1.0, generator=rng)
    points = lattice(*size, dtype=torch.float32).reshape(1, -1, 2).expand(2, -1, -1)
    torch.testing.assert_close(m.displacement_field(*size).reshape(2, -1, 2), m.displacement(points), atol=1e-6, rtol=0)


@pytest.mark.parametrize("guard", [None, 0.1])
def test_sides_of_the_square_stay_on_themselves_exactly(guard: float | None, rng: torch.Generator):
    m = random_map(20, (6, 9), strength=2.0, guard=guard, generator=rng)
    free = torch.rand(20, 50, generator=rng)
    for axis, side in [(0, 0.0), (0, 1.0), (1, 0.0), (1, 1.0)]:
        points = torch.stack((free, free), dim=-1)
        points[..., axis] = side
        assert (m(points)[..., axis] == side).all()


def test_points_outside_move_onto_the_border_first(rng: torch.Generator):
    m = random_map(1, 5, strength=1.0, generator=rng)
    outside, border = torch.tensor([[[-0.5, 0.3], [0.4, 7.0]]]), torch.tensor([[[0.0, 0.3], [0.4, 1.0]]])
    assert torch.equal(m(outside), m(border))


def test_jacobian_and_local_scale(rng: torch.Generator):
    m = random_map(3, (5, 4), strength=5.0, guard=None, generator=rng, dtype=torch.float64)
    points = torch.rand(3, 200, 2, generator=rng, dtype=torch.float64)
    jacobian = m.jacobian(points)
    torch.testing.assert_close(jacobian, autograd_jacobian(m, points))
    determinant = torch.linalg.det(jacobian)
    assert (determinant < 0).any(), "the sample should fold somewhere, or the sign is not tested"
    local_scale = m.local_scale(points)
    torch.testing.assert_close(local_scale.square() * local_scale.sign(), determinant)


def test_displacement_is_the_mean_distance_from_the_identity(rng: torch.Generator):
    m = random_map(2, 5, strength=1.0, generator=rng)
    points = lattice(10, 10, dtype=torch.float32).reshape(1, -1, 2)
    expected = (m(points) - points).square().sum(dim=-1).sqrt().mean(dim=1)
    torch.testing.assert_close(m.mean_displacement(10), expected, atol=1e-6, rtol=0)


def test_gradients(rng: torch.Generator):
    displacements = random_map(
        1, (3, 4), strength=1.0, generator=rng, dtype=torch.float64
    ).displacements.requires_grad_()
    points = torch.rand(1, 6, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda o, p: GridMap(o)(p), (displacements, points))
    assert gradcheck(lambda o, p: GridMap(o).jacobian(p), (displacements, points))
    assert gradcheck(lambda o, p: GridMap(o).local_scale(p), (displacements, points))
    assert gradcheck(lambda o: GridMap(o).displacement_field(5, 6), (displacements,))
    assert gradcheck(lambda o: GridMap(o).min_determinant(), (displacements,))
    assert gradcheck(lambda o: GridMap(o).logits(), (displacements,))


@pytest.mark.parametrize("guard", [None, 0.5])
def test_gradients_of_compose(guard: float | None, rng: torch.Generator):
    """Raw parameters keep the sides in place; free displacements would move them, and compose has a kink there."""
    logits = [torch.rand(1, 4, 3, generator=rng, dtype=torch.float64, requires_grad=True) for _ in range(4)]

    def composed(*raw):
        return GridMap.from_logits(*raw[:2]).compose_resampled(GridMap.from_logits(*raw[2:]), guard=guard).state()

    assert gradcheck(composed, logits)


@pytest.mark.parametrize("knots", KNOTS)
def test_state_and_logits_round_trip(knots: tuple[int, int], rng: torch.Generator):
    m = random_map(3, knots, strength=2.0, generator=rng, dtype=torch.float64)
    assert m.state().shape == (3, 2 * knots[0] * knots[1])
    torch.testing.assert_close(GridMap.from_state(m.state(), knots).displacements, m.displacements, atol=1e-15, rtol=0)
    torch.testing.assert_close(GridMap.from_logits(*m.logits()).displacements, m.displacements, atol=1e-14, rtol=0)


def test_composition_is_the_exact_chain(rng: torch.Generator):
    a, b, c = (random_map(2, n, strength=1.0, generator=rng) for n in (4, 5, 6))
    points = torch.rand(2, 500, 2, generator=rng)
    assert isinstance(a @ b, Composition)
    torch.testing.assert_close((a @ b)(points), a(b(points)), atol=3e-7, rtol=0)
    torch.testing.assert_close(((a @ b) @ c)(points), (a @ (b @ c))(points), atol=1e-6, rtol=0)
    torch.testing.assert_close((a @ b).inverse()((a @ b)(points)), points, atol=1e-5, rtol=0)


def test_composition_jacobian_and_determinant_bound(rng: torch.Generator):
    a, b = (random_map(2, n, strength=2.0, generator=rng, dtype=torch.float64) for n in (4, 5))
    points = torch.rand(2, 300, 2, generator=rng, dtype=torch.float64)
    jacobian = (a @ b).jacobian(points)
    torch.testing.assert_close(jacobian, autograd_jacobian(a @ b, points))
    assert ((a @ b).min_determinant() <= torch.linalg.det(jacobian).amin(dim=1)).all()


def test_different_batches_do_not_compose():
    with pytest.raises(MapError, match="cannot compose 2 maps with 3; expected equal batches"):
        random_map(2) @ random_map(3)


def test_resampling_error_of_a_composition_decreases_on_finer_lattices(rng: torch.Generator):
    m = random_map(4, 5, strength=1.0, generator=rng) @ random_map(4, 5, strength=1.0, generator=rng)
    errors = torch.stack([resampling_error(m, n) for n in (5, 9, 17, 33)])
    assert (errors > 0).all()
    assert (errors.diff(dim=0) < 0).all()
    assert (errors[-1] < 0.5 * errors[0]).all()


def test_resampling_error_is_the_largest_distance_from_the_fit(rng: torch.Generator):
    a, b = (random_map(1, 4, strength=1.0, generator=rng, dtype=torch.float64) for _ in range(2))
    outer, inner = a.control_points[0].numpy(), b.control_points[0].numpy()

    def chain(points):
        return evaluate(outer, evaluate(inner, points).clip(0, 1))

    def pixels(rows: int, columns: int):
        y, x = np.meshgrid(np.linspace(0, 1, rows), np.linspace(0, 1, columns), indexing="ij")
        return np.stack((x, y), axis=-1).reshape(-1, 2)

    fitted = chain(pixels(6, 7)).reshape(6, 7, 2).transpose(2, 0, 1)
    dense = pixels(65, 65)
    expected = np.linalg.norm(chain(dense) - evaluate(fitted, dense), axis=1).max()
    np.testing.assert_allclose(resampling_error(a @ b, (7, 6), size=65), [expected], atol=1e-12)


def test_resampling_on_its_own_lattice_is_exact_and_keeps_the_sides(rng: torch.Generator):
    m = random_map(2, (5, 4), strength=2.0, generator=rng)
    torch.testing.assert_close(m.resample((5, 4)).displacements, m.displacements, atol=1e-6, rtol=0)
    assert (resampling_error(m, (9, 7)) < 1e-6).all(), "a finer lattice that contains the knots represents the map"
    displacements = m.inverse().forward.resample((8, 3)).displacements
    assert not displacements[:, 0, :, [0, -1]].any()
    assert not displacements[:, 1, [0, -1], :].any()


def test_compose_is_the_chain_on_its_own_lattice(rng: torch.Generator):
    a, b = (random_map(2, n, strength=1.0, generator=rng) for n in ((6, 4), (5, 7)))
    points = lattice(4, 6, dtype=torch.float32).reshape(1, -1, 2)
    for inner in (b, b.inverse(), random_map(2, 5, family="separable", generator=rng)):
        fitted = a.compose_resampled(inner)
        assert fitted.knots == (6, 4)
        torch.testing.assert_close(fitted(points), a(inner(points)), atol=1e-6, rtol=0)
    one = identity_map(2, (6, 4))
    assert not one.compose_resampled(one).displacements.any()
    torch.testing.assert_close(a.compose_resampled(one).displacements, a.displacements, atol=1e-7, rtol=0)


def test_compose_can_be_guarded(rng: torch.Generator):
    maps = [random_map(50, 8, strength=2.0, generator=rng) for _ in range(2)]
    assert (maps[0].compose_resampled(maps[1]).min_determinant() < 0.1).any()
    assert (maps[0].compose_resampled(maps[1], guard=0.1).min_determinant() >= 0.1 - 1e-5).all()


def test_to_and_detach_reach_every_part(rng: torch.Generator):
    displacements = random_map(2, 4, strength=1.0, generator=rng).displacements.requires_grad_()
    m = GridMap(displacements)
    for f in (m, m.inverse(), m.inverse("rowwise"), m @ m.inverse()):
        points = torch.rand(2, 5, 2, generator=rng)
        assert f.dtype == torch.float32
        double = f.to(dtype=torch.float64)
        assert double.dtype == torch.float64
        assert f.dtype == torch.float32, "to() returns a copy"
        torch.testing.assert_close(double(points.double()), f(points).double(), atol=1e-6, rtol=0)
        assert f(points).requires_grad
        assert not f.detach()(points).requires_grad
        assert torch.equal(f.detach()(points), f(points))


@pytest.mark.parametrize(("x", "y"), [((1, 4, 3), (1, 4, 4)), ((1, 4, 3), (2, 4, 3)), ((4, 3), (4, 3))])
def test_wrong_logits_shapes_are_named(x: tuple[int, ...], y: tuple[int, ...]):
    with pytest.raises(MapError) as error:
        map_from_logits(torch.zeros(x), torch.zeros(y))
    assert f"logits have shapes {x} and {y}; a grid map needs" in str(error.value)
    assert "(batch, knots_y, knots_x − 1) and (batch, knots_x, knots_y − 1)" in str(error.value)


@pytest.mark.parametrize("shape", [(2, 4, 4), (1, 3, 4, 4), (1, 2, 1, 4), (1, 2, 4, 1)])
def test_wrong_displacement_shapes_are_named(shape: tuple[int, ...]):
    with pytest.raises(MapError, match=r"expected \(batch, 2, knots_y ≥ 2, knots_x ≥ 2\)"):
        GridMap(torch.zeros(shape))


@pytest.mark.parametrize(("family", "use"), [("grid", "__call__"), ("separable", "jacobian"), ("grid", "local_scale")])
def test_wrong_points_are_named(family: str, use: str):
    m = random_map(2, family=family)
    for shape in [(5, 2), (2, 5, 3), (2, 5, 5, 2)]:
        with pytest.raises(ShapeError, match=r"points have shape .*; expected \(batch, points, 2\) in \(x, y\) order"):
            getattr(m, use)(torch.zeros(shape))
    with pytest.raises(ShapeError, match=r"points have dtype torch\.int64; expected a floating dtype"):
        getattr(m, use)(torch.zeros(2, 5, 2, dtype=torch.int64))
    with pytest.raises(MapError, match="a batch of 3 for 2 maps; expected 1 or 2"):
        getattr(m, use)(torch.zeros(3, 5, 2))
