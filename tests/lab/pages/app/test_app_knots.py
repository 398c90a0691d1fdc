"""Wherever a knot is dragged, the map stays a bijection with an exact inverse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from localscale.errors import DataError
from localscale.lab.pages.app.knots import LEAST_DETERMINANT, even_knots, inverse_error, move_knot, random_knots

MOVING = ("one knot", "its row and column")
MOVES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(-0.5, 1.5), st.floats(-0.5, 1.5)), min_size=1, max_size=6
)


@given(MOVES, st.sampled_from(MOVING))
def test_no_drag_folds_the_map_or_moves_the_border(moves: list, moving: str):
    knots = even_knots(4)
    for row, column, x, y in moves:
        knots = move_knot(knots, row, column, (x, y), moving)
    m = knots.map(torch.float64)
    assert m.min_determinant().item() >= LEAST_DETERMINANT - 1e-9
    assert inverse_error(m) < 1e-9
    x, y = knots.positions
    assert (x.diff(dim=1) > 0).all()
    assert (y.diff(dim=0) > 0).all()
    for border in (x[:, [0, -1]], y[[0, -1]].T):
        assert torch.equal(border, torch.tensor([0.0, 1.0], dtype=torch.float64).expand(4, 2))


def test_one_knot_moves_alone():
    moved = move_knot(even_knots(5), 2, 2, (0.55, 0.45)).positions
    assert moved[:, 2, 2].tolist() == [0.55, 0.45]
    moved[:, 2, 2] = 0.5
    assert torch.equal(moved, even_knots(5).positions)


def test_a_knot_stops_before_its_neighbour_and_slides_along_the_limit():
    stopped = move_knot(even_knots(5), 2, 2, (0.95, 0.5))
    x, y = stopped.positions[:, 2, 2].tolist()
    assert 0.6 < x < 0.75
    assert y == 0.5
    slid = move_knot(stopped, 2, 2, (0.95, 0.3)).positions[:, 2, 2]
    assert slid[1] < 0.45
    torch.testing.assert_close(slid, move_knot(even_knots(5), 2, 2, (0.95, 0.3)).positions[:, 2, 2])


def test_a_row_and_a_column_move_together():
    x, y = move_knot(even_knots(4), 1, 2, (0.8, 0.2), "its row and column").positions
    assert torch.equal(x, x[:1].expand(4, -1))
    assert torch.equal(y, y[:, :1].expand(-1, 4))
    assert (x[1, 2].item(), y[1, 2].item()) == (0.8, 0.2)


def test_a_knot_on_a_side_slides_along_it_and_a_corner_stays():
    side = move_knot(even_knots(4), 0, 1, (0.45, 0.4)).positions
    assert side[:, 0, 1].tolist() == [0.45, 0.0]
    assert torch.equal(move_knot(even_knots(4), 0, 0, (0.3, 0.3)).positions, even_knots(4).positions)


@pytest.mark.parametrize(("moving", "count"), [(MOVING[0], 7), (MOVING[1], 3)])
def test_the_knots_of_a_random_map_can_be_dragged(moving: str, count: int):
    for seed in range(10):
        knots = random_knots(count, seed, moving)
        assert knots.map().mean_displacement().item() > 0.001
        x, y = knots.positions[:, 1, 1].tolist()
        assert move_knot(knots, 1, 1, (x + 0.004, y), moving).positions[0, 1, 1] != x


def test_a_missing_knot_and_a_position_that_is_not_finite_are_refused():
    with pytest.raises(DataError, match="no knot 4, 0 among 4×4"):
        move_knot(even_knots(4), 4, 0, (0.5, 0.5))
    with pytest.raises(DataError, match="cannot go to nan"):
        move_knot(even_knots(4), 1, 1, (float("nan"), 0.5))
