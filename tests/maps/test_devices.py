"""Maps and tensors on different devices, and raw parameters that give no map."""

import pytest
import torch

import localscale as ls
from localscale.errors import MapError

EACH_FAMILY = pytest.mark.parametrize("family", ls.maps.FAMILIES)


@EACH_FAMILY
def test_maps_and_points_on_two_devices(family: str):
    here, there = ls.random_map(2, family=family), ls.identity_map(2, family=family, device="meta")
    for pair in ((here, there), (there, here)):
        with pytest.raises(
            MapError, match=r"^cannot compose a map on .* with one on .*; move one with \.to\(device\)$"
        ):
            pair[0] @ pair[1]
        with pytest.raises(MapError, match="move one with"):
            pair[0].compose_resampled(pair[1])
    points = torch.rand(2, 3, 2, device="meta")
    for call in (here, here.jacobian, here.local_scale, here.inverse()):
        with pytest.raises(MapError, match=r"^the map is on cpu and the points on meta; "):
            call(points)


def test_raw_parameters_on_two_devices_or_of_two_dtypes():
    for other in (torch.zeros(1, 4, 3, device="meta"), torch.zeros(1, 4, 3).double()):
        with pytest.raises(MapError, match=r"expected one dtype and one device: pass logits_y\.to\(logits_x\)$"):
            ls.map_from_logits(torch.zeros(1, 4, 3), other)
    with pytest.raises(MapError, match=r"^scale is on cpu and weight on meta; "):
        ls.map_from_scales(torch.ones(1, 3, 3), torch.ones(1, 3, 3, device="meta"))


@EACH_FAMILY
def test_a_temperature_that_leaves_no_increments(family: str):
    for temperature in (1e-12, 1e-40):
        with pytest.raises(MapError, match=r"^temperature is .*; expected a finite number, at least 0\.001$"):
            ls.random_map(1, family=family, temperature=temperature)
    assert ls.random_map(1, family=family, temperature=1e-3).state().isfinite().all()


@EACH_FAMILY
@pytest.mark.parametrize("size", [(1, 5), (5, 1), (1, 1)])
def test_the_rowwise_inverse_of_a_side_of_one_pixel(family: str, size: tuple[int, int]):
    m, x = ls.random_map(1, family=family, strength=2.0), torch.rand(1, 2, *size)
    torch.testing.assert_close(ls.scale(x, m, inverse="rowwise"), ls.scale(x, m))


@pytest.mark.parametrize("batch", [2.5, True, "2"])
def test_a_batch_that_is_no_integer(batch: object):
    with pytest.raises(MapError, match="expected an integer, at least 1"):
        ls.identity_map(batch)


@pytest.mark.parametrize("name", ["background", "shear"])
@pytest.mark.parametrize("value", [0.0, 1e-40, 1e30, float("inf"), float("nan")])
def test_a_stiffness_for_which_no_system_can_be_solved(name: str, value: float):
    for make in (
        lambda: ls.map_from_scales(*2 * [torch.ones(1, 2, 2)], **{name: value}),
        lambda: ls.SizeNetwork(**{name: value}),
    ):
        with pytest.raises(ValueError, match=rf"^{name} is .*; expected a positive number from 1e-09 to 10000$"):
            make()
