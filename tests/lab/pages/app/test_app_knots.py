"""Knots that are dragged: wherever they are let go, the map is a bijection with an exact inverse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from localscale.errors import DataError
from localscale.lab.pages.app.knots import LEAST, even_knots, move_knot, random_knots, way_back_error

TOGETHER = ("one knot", "its row and column")
MOVES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(-0.5, 1.5), st.floats(-0.5, 1.5)), min_size=1, max_size=6
)


@given(MOVES, st.sampled_from(TOGETHER))
def test_no_drag_folds_the_map_or_leaves_the_border(moves: list, together: str):
    knots = even_knots(4)
    for row, column, x, y in moves:
        knots = move_knot(knots, row, column, (x, y), together)
    m = knots.map(torch.float64)
    assert m.min_determinant().item() >= LEAST - 1e-9
    assert way_back_error(m) < 1e-9
    places = knots.places
    assert (places[0].diff(dim=1) > 0).all()
    assert (places[1].diff(dim=0) > 0).all()
    for axis, side in ((0, places[0][:, [0, -1]]), (1, places[1][[0, -1]].T)):
        assert torch.equal(side, torch.tensor([0.0, 1.0], dtype=torch.float64).expand(4, 2)), axis


def test_a_knot_goes_where_it_can():
    moved = move_knot(even_knots(5), 2, 2, (0.55, 0.45))
    assert moved.places[:, 2, 2].tolist() == [0.55, 0.45]
    other = moved.places.clone()
    other[:, 2, 2] = 0.5
    assert torch.equal(other, even_knots(5).places)


def test_a_knot_stops_before_its_neighbour():
    x, y = move_knot(even_knots(5), 2, 2, (0.95, 0.5)).places[:, 2, 2].tolist()
    assert 0.6 < x < 0.75
    assert y == 0.5


def test_a_knot_at_the_end_of_its_room_slides_along():
    stopped = move_knot(even_knots(5), 2, 2, (0.95, 0.5))
    slid = move_knot(stopped, 2, 2, (0.95, 0.3)).places[:, 2, 2]
    assert slid[1] < 0.45
    torch.testing.assert_close(slid, move_knot(even_knots(5), 2, 2, (0.95, 0.3)).places[:, 2, 2])


def test_a_row_and_a_column_move_together():
    moved = move_knot(even_knots(4), 1, 2, (0.8, 0.2), "its row and column").places
    assert torch.equal(moved[0], moved[0][:1].expand(4, -1))
    assert torch.equal(moved[1], moved[1][:, :1].expand(-1, 4))
    assert moved[:, 1, 2].tolist() == [0.8, 0.2]


def test_knots_on_a_side_slide_and_corners_stay():
    side = move_knot(even_knots(4), 0, 1, (0.45, 0.4)).places
    assert side[:, 0, 1].tolist() == [0.45, 0.0]
    assert torch.equal(move_knot(even_knots(4), 0, 0, (0.3, 0.3)).places, even_knots(4).places)


@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("count", [3, 7])
def test_random_maps_can_be_dragged_on(together: str, count: int):
    for seed in range(20):
        knots = random_knots(count, seed, together)
        assert knots.map().mean_displacement().item() > 0.001
        there = knots.places[:, 1, 1] + torch.tensor([0.004, 0.0])
        assert move_knot(knots, 1, 1, tuple(there.tolist()), together).places[0, 1, 1] != knots.places[0, 1, 1]


def test_a_knot_that_is_not_there_is_refused():
    with pytest.raises(DataError, match="no knot 4, 0 among 4×4"):
        move_knot(even_knots(4), 4, 0, (0.5, 0.5))


def test_a_place_that_is_no_place_is_refused():
    with pytest.raises(DataError, match="cannot go to nan"):
        move_knot(even_knots(4), 1, 1, (float("nan"), 0.5))
