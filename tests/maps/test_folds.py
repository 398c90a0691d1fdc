"""Folds of grid maps, and the guard that prevents them."""

import numpy as np
import pytest
import torch
from reference import cell_determinants
from torch.autograd import gradcheck

from localscale.errors import MapError
from localscale.maps import GridMap, identity_map, map_from_logits, random_map
from localscale.maps.folds import corner_determinants, guard_factor


@pytest.mark.parametrize(("knots", "guard"), [((2, 2), 0.5), ((3, 9), 0.1), ((8, 8), 0.01), ((16, 16), 0.1)])
def test_no_guarded_map_folds(knots: tuple[int, int], guard: float, rng: torch.Generator):
    m = random_map(25, knots, strength=2.0, guard=guard, generator=rng)
    assert (m.min_determinant() >= guard - 1e-5).all()
    determinants = torch.linalg.det(m.jacobian(torch.rand(25, 2000, 2, generator=rng)))
    assert (determinants >= guard - 1e-4).all()


def test_guard_holds_for_any_logits(rng: torch.Generator):
    logits = 8 * torch.randn(2, 50, 8, 7, generator=rng)
    assert (map_from_logits(*logits, guard=0.1).min_determinant() >= 0.1 - 1e-5).all()


def test_guard_shrinks_no_more_than_needed(rng: torch.Generator):
    """Maps that the guard shrinks end at the guard, not above it."""
    free = random_map(50, 8, strength=3.0, guard=None, generator=rng, dtype=torch.float64)
    assert (free.min_determinant() < 0).all()
    torch.testing.assert_close(free.guarded(0.1).min_determinant(), torch.full((50,), 0.1, dtype=torch.float64))


def test_guard_does_not_change_a_map_without_folds(rng: torch.Generator):
    m = random_map(50, 6, strength=0.1, guard=None, generator=rng)
    assert (m.min_determinant() > 0.1).all()
    assert torch.equal(m.guarded(0.1).displacements, m.displacements)
    assert m.guarded(None) is m


def test_guard_shrinks_each_map_separately(rng: torch.Generator):
    fine, folding = (random_map(1, 8, strength=s, guard=None, generator=rng).displacements for s in (0.05, 2.0))
    both = GridMap(torch.cat((fine, folding))).guarded(0.1).displacements
    assert torch.equal(both[:1], fine)
    assert torch.equal(both[1:], GridMap(folding).guarded(0.1).displacements)
    factor = (both[1] / folding[0])[:, 1:-1, 1:-1]
    torch.testing.assert_close(factor, factor.mean().expand_as(factor), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("strength", "knots"), [(2.0, (12, 10)), (4.0, (4, 6)), (4.0, (8, 8))])
def test_folds_are_where_the_determinant_is_not_positive(strength: float, knots: tuple[int, int], rng: torch.Generator):
    m = random_map(4, knots, strength=strength, guard=None, generator=rng, dtype=torch.float64)
    for b in range(4):
        smallest = cell_determinants(m.control_points[b].numpy()).min(axis=-1)
        clear = np.abs(smallest) > 1e-2
        np.testing.assert_array_equal(m.folds()[b].numpy()[clear], (smallest <= 0)[clear])
        assert m.folds()[b].any()
        assert not m.folds()[b].all()
    assert not m.guarded(0.1).folds().any()


@pytest.mark.parametrize("guard", [None, 0.1])
def test_extreme_determinants_match_dense_sampling(guard: float | None, rng: torch.Generator):
    m = random_map(4, (5, 7), strength=2.0, guard=guard, generator=rng, dtype=torch.float64)
    for b in range(4):
        dense = cell_determinants(m.control_points[b].numpy())
        np.testing.assert_allclose(m.min_determinant()[b], dense.min(), atol=5e-3)
        np.testing.assert_allclose(m.max_determinant()[b], dense.max(), atol=5e-3)
        assert m.min_determinant()[b] <= dense.min() + 1e-9
        assert m.max_determinant()[b] >= dense.max() - 1e-9


def test_corner_determinants_of_the_identity_are_one():
    determinants = corner_determinants(identity_map(2, (4, 3)).displacements)
    assert torch.equal(determinants, torch.ones(2, 4, 2, 3))


def test_gradient_through_the_guard(rng: torch.Generator):
    draw = {"generator": rng, "dtype": torch.float64}
    logits = [(4 * torch.rand(1, 4, 3, **draw)).requires_grad_() for _ in range(2)]
    assert guard_factor(map_from_logits(*logits, guard=None).displacements, 0.1) < 1
    assert gradcheck(lambda x, y: map_from_logits(x, y, guard=0.1).displacements, logits)


def test_gradient_through_an_idle_guard_is_that_without(rng: torch.Generator):
    logits = [(0.05 * torch.rand(1, 4, 3, generator=rng)).requires_grad_() for _ in range(2)]
    weights = torch.rand(1, 2, 4, 4, generator=rng)
    gradients = [
        torch.autograd.grad((map_from_logits(*logits, guard=g).displacements * weights).sum(), logits)
        for g in (0.1, None)
    ]
    for guarded, free in zip(*gradients, strict=True):
        assert torch.equal(guarded, free)


@pytest.mark.parametrize("guard", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_bad_guard_is_named(guard: float):
    with pytest.raises(
        MapError, match=rf"guard is {guard}; expected a determinant strictly between 0 and 1, or None for no guard"
    ):
        random_map(guard=guard)
