"""Things known from masks and boxes: their sizes, what maps do to them, and the loss that teaches them."""

import functools

import pytest
import torch
from host_syncs import HostSyncs
from torch import Tensor

import localscale as ls
from localscale.canonicalizer.thing_loss import thing_loss
from localscale.canonicalizer.things import Things, things_in_boxes, things_in_masks
from localscale.conventions import lattice
from localscale.errors import ConfigError, ShapeError
from localscale.maps.base import FamilyMap

SIDE = 64
pytestmark = pytest.mark.filterwarnings("ignore:some fixed points")


def boxes_of(*sides: float, left: float = 0.3, top: float = 0.4) -> list[Tensor]:
    return [torch.tensor([[left, top, left + side, top + side]]) for side in sides]


def masks_of(boxes: list[Tensor], side: int = SIDE, value: int = 3) -> Tensor:
    masks = torch.zeros(len(boxes), side, side, dtype=torch.long)
    for mask, box in zip(masks, boxes, strict=True):
        left, top, right, bottom = (box[0] * side).round().int().tolist()
        mask[top:bottom, left:right] = value
    return masks


def test_values_are_things_and_their_size_is_the_root_of_their_area():
    mask = torch.zeros(1, 8, 8, dtype=torch.long)
    mask[0, :4, :4], mask[0, 6:, 6:], mask[0, 0, 7], mask[0, 1, 7] = 9, 200, 255, -1
    found = things_in_masks(mask)
    assert found.number[0, [0, 7, 0, 1, 5], [0, 7, 7, 7, 0]].tolist() == [1, 2, -1, -1, 0]
    torch.testing.assert_close(found.size[0, [0, 7], [0, 7]].exp(), torch.tensor([0.5, 0.25]))
    mean, count = found.mean_size()
    assert float(mean) == pytest.approx(torch.tensor([0.5, 0.25]).log().mean().item())
    assert int(count) == 2, "each thing counts once, however large it is"
    assert int(things_in_masks(mask, ignore_index=9).number.max()) == 2


def test_a_mask_without_background_is_one_thing():
    found = things_in_masks(torch.full((1, 5, 5), 4))
    assert (found.number == 1).all()
    assert not found.size.any()


def test_boxes_and_masks_agree_and_large_masks_are_sampled():
    boxes = boxes_of(0.25, 0.5)
    masks = masks_of(boxes, 512)
    by_mask, by_box = things_in_masks(masks), things_in_boxes(boxes)
    assert by_mask.number.shape == (2, 256, 256)
    for one, other in zip(by_mask.on_grid(9, 9)[:2], by_box.on_grid(9, 9)[:2], strict=True):
        assert (one - other).abs().max() < 0.06


def test_the_smallest_box_is_seen_and_bad_ones_are_not():
    boxes = torch.tensor([[0.4, 0.4, 0.6, 0.6], [0.2, 0.2, 0.8, 0.8], [0.9, 0.1, 0.7, 0.3], [-1.0, 0.9, 0.1, 7.0]])
    found = things_in_boxes([boxes, torch.empty(0, 4)])
    size = found.size[0].exp()
    assert size[64, 64] == pytest.approx(0.2)
    assert size[64, 32] == pytest.approx(0.6)
    assert size[124, 4] == pytest.approx(0.1), "a box is cut at the frame"
    assert not found.number[0, 25, 100]
    assert not found.number[1].any()
    assert not len(things_in_boxes([]))


def seen_through(m: FamilyMap, things: Things, side: int = SIDE) -> Things:
    points = lattice(side, side, dtype=torch.float32)[None].flatten(1, 2)
    return things.through(m(points).view(1, side, side, 2), -m.local_scale(points).log().view(1, side, side))


def test_things_move_with_a_map_and_are_measured_again():
    masks = masks_of(boxes_of(0.3))
    m = ls.map_from_scales(torch.full((1, SIDE, SIDE), 0.5), masks / 3.0, knots=5)
    moved = seen_through(m, things_in_masks(masks))
    warped = ls.unscale(masks, m, mode="nearest")
    again = things_in_masks(warped)
    assert torch.equal(moved.number > 0, warped > 0)
    assert moved.size.min() == pytest.approx(float(again.size.min()), abs=0.03)
    assert abs(float(again.size.min()) - torch.tensor(0.3).log()) > 0.1, "the map changed the size"


def test_a_thing_that_a_zoom_cuts_keeps_the_size_of_the_whole():
    things = things_in_masks(masks_of(boxes_of(0.5, left=0.25, top=0.25)))
    points = lattice(33, 33, dtype=torch.float32)[None] / 4 + 0.4  # 0.4 … 0.65 of the image
    zoomed = things.through(points, torch.full((1, 33, 33), 4.0).log())
    assert (zoomed.number == 1).all()
    torch.testing.assert_close(zoomed.size.exp(), torch.full((1, 33, 33), 2.0), atol=0.02, rtol=0)


def test_cells_are_shares_and_the_mean_size_of_their_things():
    mask = torch.zeros(1, 65, 65, dtype=torch.long)
    mask[:, :, :33], mask[:, :8] = 1, 255
    size, covered, counted = things_in_masks(mask).on_grid(9, 9)
    assert covered[0, 5].tolist() == pytest.approx([1, 1, 1, 1, 0.56, 0, 0, 0, 0], abs=0.02)
    assert counted[0, :, 3].tolist() == pytest.approx([0, 0.56, 1, 1, 1, 1, 1, 1, 1], abs=0.03)
    torch.testing.assert_close(size[0, 5, :5].exp(), torch.full((5,), (33 * 57 / 65**2) ** 0.5))


def canonicalizer(**settings) -> ls.Canonicalizer:
    torch.manual_seed(0)
    network = ls.SizeNetwork(**{"width": 16, "blocks": 1, "weight": "learned", "target": 0.0, "sure": 0.1} | settings)
    return ls.Canonicalizer(1, (7, 7), ls.DECConfig(knots=7, network=network, solver=ls.Picard(8, 1e-3)))


def scene(generator: torch.Generator, count: int = 16) -> tuple[Tensor, Tensor]:
    """Images with a white disc and a grey square, of which only the disc is a thing."""
    place = torch.linspace(0, 1, SIDE)
    x, y, square_x, square_y = (0.25 + 0.5 * torch.rand(4, count, 1, 1, generator=generator)).unbind()
    radius = 0.06 + 0.14 * torch.rand(count, 1, 1, generator=generator)
    disc = (place - x).square() + (place[:, None] - y).square() < radius.square()
    square = torch.maximum((place - square_x).abs(), (place[:, None] - square_y).abs()) < 0.1
    return torch.where(disc, 1.0, 0.4 * square).unsqueeze(1), disc.long()


@functools.cache
def taught(steps: int = 80) -> ls.Canonicalizer:
    module, generator = canonicalizer(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(module.parameters(), 5e-3)
    for _ in range(steps):
        images, masks = scene(generator)
        optimizer.zero_grad()
        module.size_loss(images, things=things_in_masks(masks)).loss.backward()
        optimizer.step()
    return module


def test_masks_teach_where_things_are_and_how_large_they_are():
    module = taught()
    images, masks = scene(torch.Generator().manual_seed(1), 32)
    with torch.no_grad():
        report = module(images)
    scores = module.thing_scores(images, things_in_masks(masks), report.map)
    assert scores.error < 0.2
    assert scores.overlap > 0.5
    assert scores.spread < 0.8
    assert module.network.trust > 0.3
    assert float(module.network.things) == 16 * 80
    assert float(module.network.mean_size) == pytest.approx(-1.52, abs=0.15)


def test_nothing_moves_where_nothing_is_sure():
    module = taught()
    with torch.no_grad():
        report = module(torch.zeros(1, 1, SIDE, SIDE))
    assert not report.sizes_before[1].any()
    assert not report.map.displacements.any()


def test_masks_need_no_host_synchronisation():
    module, (images, masks) = canonicalizer(), scene(torch.Generator().manual_seed(0), 4)
    with HostSyncs() as seen:
        module.size_loss(images, things=things_in_masks(masks)).loss.backward()
    assert seen.count == 0, "a training step that learns sizes along is recorded as a CUDA graph"


def test_images_that_are_not_finite_and_images_without_things():
    module = canonicalizer()
    images, masks = scene(torch.Generator().manual_seed(0), 3)
    images[1, 0, 3, 3], masks[2] = torch.nan, 0
    found = module.size_loss(images, things=things_in_masks(masks))
    found.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())
    assert float(module.network.things) == 1
    masks[0] = 0
    found = module.size_loss(images[::2], things=things_in_masks(masks[::2]))
    assert float(found.error) == 0


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: things_in_masks(torch.rand(2, 4, 4)), r"dtype torch.float32; expected integers \(B, H, W\)"),
        (lambda: things_in_masks(torch.zeros(4, 4, dtype=torch.long)), "shape"),
        (lambda: things_in_boxes([torch.rand(3, 5)]), r"shape \(3, 5\)"),
        (
            lambda: thing_loss(canonicalizer().network, torch.rand(2, 1, 64, 64), (33, 33), things_in_boxes([])),
            "0 imag",
        ),
    ],
)
def test_bad_things_are_refused(broken, sentence: str):
    with pytest.raises(ShapeError, match=sentence):
        broken()


def test_weights_from_edges_cannot_be_taught():
    images, masks = scene(torch.Generator().manual_seed(0), 2)
    with pytest.raises(ConfigError, match=r"come from 'edges'; adapt the model with .*weight=\"learned\""):
        canonicalizer(weight="edges").size_loss(images, things=things_in_masks(masks))
