"""Move points and boxes by the maps that scale images."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import localscale as ls
from localscale.errors import MapError, ShapeError
from localscale.maps.base import Map

SIZE = (48, 80)
seeds = st.integers(0, 10_000)
sizes = st.sampled_from([None, SIZE, (1, 30), (7, 7)])


def random_map(seed: int, kind: str = "grid", batch: int = 2) -> Map:
    generator = torch.Generator().manual_seed(seed)
    family = "separable" if kind == "separable" else "grid"
    m = ls.random_map(batch, knots=6, strength=3.0, family=family, dtype=torch.float64, generator=generator)
    if kind == "inverse":
        return m.inverse()
    return m @ m if kind == "composition" else m


def random_boxes(seed: int, size: tuple[int, int] | None, batch: int = 2, count: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    corners = torch.rand(batch, count, 2, 2, dtype=torch.float64, generator=generator).sort(dim=2).values
    height, width = size or (1, 1)
    return (corners * torch.tensor([width, height])).flatten(2)


@settings(deadline=None, max_examples=20)
@given(seeds, sizes)
def test_the_identity_moves_nothing(seed: int, size: tuple[int, int] | None):
    boxes = random_boxes(seed, size)
    m = ls.identity_map(2, dtype=torch.float64)
    assert torch.equal(ls.scale_boxes(boxes, m, size=size), boxes)
    assert torch.equal(ls.scale_points(boxes[..., :2], m, size=size), boxes[..., :2])


@settings(deadline=None, max_examples=20)
@given(seeds, sizes)
def test_a_separable_map_is_inverted_exactly(seed: int, size: tuple[int, int] | None):
    boxes, m = random_boxes(seed, size), random_map(seed, "separable")
    there = ls.scale_boxes(boxes, m, size=size)
    torch.testing.assert_close(ls.scale_boxes(there, m.inverse(), size=size), boxes, atol=1e-9, rtol=0)


@settings(deadline=None, max_examples=30)
@given(seeds, sizes, st.sampled_from(["grid", "separable", "inverse", "composition"]))
def test_a_box_contains_what_was_in_it(seed: int, size: tuple[int, int] | None, kind: str):
    boxes, m = random_boxes(seed, size), random_map(seed, kind)
    near, far = boxes[..., None, :2], boxes[..., None, 2:]
    inner = near + (far - near) * torch.rand(2, 7, 200, 2, dtype=torch.float64)
    found = ls.scale_points(inner.flatten(1, 2), m, size=size).view_as(inner)
    moved = ls.scale_boxes(boxes, m, size=size)[:, :, None]
    slack = 1e-9 if kind in ("grid", "separable") else 5e-3 * max(size or (1,))
    assert (found >= moved[..., :2] - slack).all()
    assert (found <= moved[..., 2:] + slack).all()


@settings(deadline=None, max_examples=20)
@given(seeds, sizes, st.sampled_from(["grid", "separable", "inverse", "composition"]))
def test_a_box_is_the_smallest(seed: int, size: tuple[int, int] | None, kind: str):
    """Every side of the result is touched by the image of the boundary."""
    boxes, m = random_boxes(seed, size), random_map(seed, kind)
    fractions = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    left, top, right, bottom = boxes[:, :, None].unbind(-1)
    x, y = left + (right - left) * fractions.mT, top + (bottom - top) * fractions.mT
    sides = ((x, top.expand_as(x)), (x, bottom.expand_as(x)), (left.expand_as(y), y), (right.expand_as(y), y))
    points = torch.cat([torch.stack(side, dim=-1) for side in sides], dim=2)
    found = ls.scale_points(points.flatten(1, 2), m, size=size).view_as(points)
    expected = torch.cat((found.amin(2), found.amax(2)), dim=-1)
    torch.testing.assert_close(ls.scale_boxes(boxes, m, size=size), expected, atol=5e-3 * max(size or (1,)), rtol=0)


def test_the_image_keeps_its_box():
    whole = torch.tensor([[0.0, 0.0, 80.0, 48.0]], dtype=torch.float64)
    assert torch.equal(ls.scale_boxes(whole, random_map(0, batch=1), size=SIZE), whole)


def test_points_without_a_size_are_those_of_the_map():
    m, points = random_map(3), torch.rand(2, 50, 2, dtype=torch.float64)
    torch.testing.assert_close(ls.scale_points(points, m), m(points))


@pytest.mark.parametrize("seed", range(5))
def test_a_box_goes_where_the_picture_of_it_goes(seed: int):
    """Draw a box, scale the picture, and compare the box around it with the scaled box."""
    m = ls.random_map(1, knots=5, strength=1.0, generator=torch.Generator().manual_seed(seed))
    picture = torch.zeros(1, 1, 200, 300)
    picture[..., 60:120, 90:210] = 1  # rows 60 to 119 and columns 90 to 209: the box (90, 60, 210, 120)
    rows, columns = (ls.scale(picture, m)[0, 0] > 0.5).nonzero(as_tuple=True)
    drawn = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()
    box = ls.scale_boxes(torch.tensor([[90.0, 60.0, 210.0, 120.0]]), m, size=(200, 300))[0]
    assert (box - drawn).abs().max() <= 1.0
    assert (box - torch.tensor([90.0, 60.0, 210.0, 120.0])).abs().max() > 3


def test_one_map_serves_all_images_and_one_image_needs_no_batch():
    boxes, m = random_boxes(0, SIZE, batch=3), random_map(0, batch=1)
    together = ls.scale_boxes(boxes, m, size=SIZE)
    for alone, found in zip(boxes, together, strict=True):
        torch.testing.assert_close(ls.scale_boxes(alone, m, size=SIZE), found)


@pytest.mark.parametrize("kind", ["grid", "separable", "inverse", "composition"])
def test_no_boxes_stay_no_boxes(kind: str):
    assert ls.scale_boxes(torch.zeros(0, 4), random_map(0, kind, batch=1), size=SIZE).shape == (0, 4)
    assert ls.scale_points(torch.zeros(2, 0, 2), random_map(0, kind)).shape == (2, 0, 2)


def test_half_precision_boxes_keep_their_dtype():
    boxes = random_boxes(0, None).half()
    assert ls.scale_boxes(boxes, random_map(0)).dtype == torch.float16


def test_gradients_are_exact():
    m = ls.random_map(2, knots=4, strength=2.0, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def move(displacements: Tensor, boxes: Tensor) -> Tensor:
        return ls.scale_boxes(boxes, type(m)(displacements), size=SIZE)

    inputs = m.displacements.clone().requires_grad_(), random_boxes(0, SIZE, count=2).requires_grad_()
    assert torch.autograd.gradcheck(move, inputs)


def test_what_cannot_be_moved():
    m = random_map(0, batch=2)
    with pytest.raises(ShapeError, match=r"boxes have shape \(3, 5\).*expected floating point, \(batch, boxes, 4\)"):
        ls.scale_boxes(torch.zeros(3, 5), m)
    with pytest.raises(ShapeError, match="int64"):
        ls.scale_points(torch.zeros(2, 3, 2, dtype=torch.long), m)
    with pytest.raises(MapError, match="2 maps were given for 3 images with boxes"):
        ls.scale_boxes(torch.zeros(3, 1, 4), m)
    with pytest.raises(ShapeError, match=r"size is \(0, 4\)"):
        ls.scale_boxes(torch.zeros(2, 1, 4), m, size=(0, 4))


@pytest.mark.parametrize("kind", ["grid", "separable", "inverse", "composition"])
def test_a_map_of_a_batch_can_be_chosen(kind: str):
    m, points = random_map(0, kind, batch=3), torch.rand(3, 9, 2, dtype=torch.float64)
    whole = m(points)
    for index, one in enumerate(m):
        torch.testing.assert_close(one(points[index : index + 1])[0], whole[index])
    torch.testing.assert_close(m[1:](points[1:]), whole[1:])
    torch.testing.assert_close(m[-1](points[2:]), whole[2:])
    with pytest.raises(IndexError):
        m[3]
