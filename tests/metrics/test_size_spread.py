"""``size_spread``: known maps give known spreads."""

import pytest
import torch
from torch import Tensor

import localscale as ls
from localscale.errors import ShapeError
from localscale.metrics import size_spread


def boxes(half: Tensor, centre: tuple[float, float] = (0.5, 0.5)) -> Tensor:
    """Square boxes of each half side about one centre, ``(B, 1, 4)``."""
    middle = torch.tensor(centre).expand(len(half), 2)
    return torch.cat((middle - half[:, None], middle + half[:, None]), dim=1)[:, None]


def test_maps_that_undo_the_sizes_leave_no_spread():
    half = torch.tensor([0.05, 0.08, 0.12])
    scale = (half / 0.1)[:, None, None].expand(-1, 14, 14)
    weight = torch.zeros(3, 14, 14)
    weight[:, 4:10, 4:10] = 1
    m = ls.map_from_scales(scale.contiguous(), weight)
    found = size_spread(m, boxes(half))
    assert found.spread < 0.15
    assert abs(found.slope) < 0.15
    assert found.size == pytest.approx(0.2, rel=0.1)
    assert found.distortion < 0.1


def test_the_identity_keeps_sizes_and_shapes():
    found = size_spread(ls.identity_map(3), boxes(torch.tensor([0.05, 0.1, 0.2])))
    assert (found.spread, found.slope) == (pytest.approx(1.0), pytest.approx(1.0))
    assert found.distortion < 1e-4


def test_what_a_box_has_outside_the_image_is_cut_off():
    inside = torch.tensor([[[0.0, 0.2, 0.3, 0.5]], [[0.6, 0.0, 1.0, 0.2]]])
    beyond = torch.tensor([[[-0.4, 0.2, 0.3, 0.5]], [[0.6, -1.0, 1.7, 0.2]]])
    assert size_spread(ls.identity_map(2), beyond).spread == pytest.approx(1.0)
    m = ls.random_map(2, strength=2.0, generator=torch.Generator().manual_seed(0))
    assert size_spread(m, beyond) == size_spread(m, inside)


def test_a_stretch_of_one_axis_is_a_distortion():
    logits = torch.tensor([[1.0, -1.0, 1.0]]).repeat(2, 1)
    m = ls.map_from_logits(logits, torch.zeros(2, 3), family="separable")
    assert size_spread(m, boxes(torch.tensor([0.05, 0.1]))).distortion > 0.2


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (torch.rand(2, 3), "expected"),
        (torch.rand(3, 1, 4), "expected"),
        (torch.tensor([[[0.5, 0.5, 0.5, 0.7]]]).repeat(2, 1, 1), "no area"),
        (torch.tensor([[[0.5, 0.5, 0.6, 0.7]], [[1.1, 0.5, 1.3, 0.7]]]), "no area in the image"),
        (torch.tensor([[[0.1, 0.2, 0.4, 0.5]], [[0.6, 0.55, 0.9, 0.85]]]), "all 2 boxes are equally large"),
        (torch.tensor([[[10.0, 20.0, 30.0, 40.0]]]).repeat(2, 1, 1), "boxes reach from 10 to 40; expected finite frac"),
        (torch.tensor([[[0.5, torch.nan, 0.6, 0.7]]]).repeat(2, 1, 1), "expected finite fractions"),
        ([torch.rand(1, 4), torch.rand(3, 4)], "boxes are list"),
    ],
)
def test_bad_boxes_are_refused(given: Tensor | list[Tensor], sentence: str):
    with pytest.raises(ShapeError, match=sentence):
        size_spread(ls.identity_map(2), given)
    with pytest.raises(ShapeError, match="at least two"):
        size_spread(ls.identity_map(1), boxes(torch.tensor([0.1])))
