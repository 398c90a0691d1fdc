"""Coordinates of pixels, and resizing."""

import pytest
import torch
from reference import bilinear, filtered_cubic

from localscale.conventions import (
    compute_dtype,
    coordinates,
    lattice,
    pixel_positions,
    resize,
    resize_cubic,
    to_grid_sample,
)

EACH_FILTER = pytest.mark.parametrize("resize", [resize, resize_cubic])


def test_pixels_sit_on_the_corners_of_the_square():
    grid = lattice(3, 5, dtype=torch.float64)
    assert grid.shape == (3, 5, 2)
    for i in range(3):
        for j in range(5):
            assert grid[i, j].tolist() == [j / 4, i / 2]


def test_a_single_sample_sits_at_zero():
    assert coordinates(1, dtype=torch.float32).tolist() == [0.0]
    assert lattice(1, 2, dtype=torch.float32).tolist() == [[[0.0, 0.0], [1.0, 0.0]]]


def test_coordinates_are_never_half_precision():
    expected = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float32}
    expected |= {torch.float64: torch.float64, torch.uint8: torch.float32, torch.int64: torch.float32}
    assert {dtype: compute_dtype(dtype) for dtype in expected} == expected


@pytest.mark.parametrize("size", [(1, 1), (7, 224), (1000, 3)])
def test_zero_displacement_gives_whole_pixels_exactly(size: tuple[int, int]):
    pixels = pixel_positions(torch.zeros(1, *size, 2))[0]
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in size), indexing="ij")
    assert torch.equal(pixels, torch.stack((columns, rows), dim=-1).float())


def test_flow_counts_in_image_sides_and_stops_at_the_border():
    displacement = torch.zeros(1, 3, 5, 2)
    displacement[..., 0], displacement[..., 1] = 0.25, -1.0
    pixels = pixel_positions(displacement)
    assert pixels[0, :, :, 0].tolist() == [[1, 2, 3, 4, 4]] * 3
    assert not pixels[..., 1].any()


def test_grid_sample_units():
    pixels = torch.tensor([[[0.0, 0.0], [2.0, 1.0]], [[4.0, 2.0], [1.0, 0.5]]])
    grid = to_grid_sample(pixels.reshape(1, 2, 2, 2))
    assert grid.tolist() == [[[[-1, -1], [3, 1]], [[7, 3], [1, 0]]]], "a 2×2 grid has one pixel between its sides"


@EACH_FILTER
@pytest.mark.parametrize("new", [(4, 4), (5, 11), (23, 29), (1, 3)])
def test_resize_keeps_a_constant(resize, new: tuple[int, int]):
    resized = resize(torch.full((2, 3, 12, 17), 0.7), *new)
    assert resized.shape == (2, 3, *new)
    torch.testing.assert_close(resized, torch.full((2, 3, *new), 0.7), atol=1e-6, rtol=0)


@EACH_FILTER
def test_resize_to_the_same_size_is_the_input_itself(resize, rng: torch.Generator):
    x = torch.rand(2, 3, 5, 6, generator=rng)
    assert resize(x, 5, 6) is x


def test_enlarging_is_bilinear_with_corners_on_corners(rng: torch.Generator):
    x = torch.rand(1, 2, 4, 5, generator=rng, dtype=torch.float64)
    resized = resize(x, 9, 12)
    assert torch.equal(resized[..., [0, 0, -1, -1], [0, -1, 0, -1]], x[..., [0, 0, -1, -1], [0, -1, 0, -1]])
    for i in range(9):
        for j in range(12):
            expected = bilinear(x[0].numpy(), j * 4 / 11, i * 3 / 8)
            torch.testing.assert_close(resized[0, :, i, j], torch.from_numpy(expected))


@EACH_FILTER
@pytest.mark.parametrize("new", [7, 11, 15, 40])
def test_enlarging_keeps_a_ramp_linear(resize, new: int):
    ramp = lattice(7, 7, dtype=torch.float64).permute(2, 0, 1)[None]
    torch.testing.assert_close(resize(ramp, new, new)[0], lattice(new, new, dtype=torch.float64).permute(2, 0, 1))


@EACH_FILTER
@pytest.mark.parametrize(("size", "new"), [(10, 4), (10, 5), (56, 8), (224, 56)])
def test_shrinking_keeps_a_ramp_linear_and_corners_on_corners(resize, size: int, new: int):
    ramp = lattice(size, size, dtype=torch.float64).permute(2, 0, 1)[None]
    torch.testing.assert_close(resize(ramp, new, new)[0], lattice(new, new, dtype=torch.float64).permute(2, 0, 1))


def test_shrinking_skips_no_pixel():
    """Every input pixel contributes, and inner pixels contribute equally."""
    x = torch.eye(25, dtype=torch.float64)[:, None, None, :].expand(-1, 1, 25, 25)
    weights = resize(x, 7, 7)[:, 0, 0].sum(dim=-1)
    assert (weights > 0).all()
    torch.testing.assert_close(weights[5:-5], torch.full((15,), 1 / 4, dtype=torch.float64))


@EACH_FILTER
def test_resize_is_symmetric(resize, rng: torch.Generator):
    x = torch.rand(1, 1, 12, 17, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(resize(x.flip(-1, -2), 5, 6), resize(x, 5, 6).flip(-1, -2))
    torch.testing.assert_close(resize(x.mT, 6, 5), resize(x, 5, 6).mT)


@EACH_FILTER
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_resize_positions_are_not_rounded_to_the_features_dtype(resize, dtype: torch.dtype):
    """Beyond 256 bfloat16 has no odd integers, so weights must be computed in float32."""
    x = torch.zeros(1, 1, 2, 1001)
    x[..., 901] = 1
    expected, resized = resize(x, 2, 101), resize(x.to(dtype), 2, 101)
    assert resized.dtype == dtype
    torch.testing.assert_close(resized.float(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "new"), [(9, 5), (23, 10), (10, 4), (7, 23), (5, 2), (3, 2), (2, 7), (12, 11), (9, 1), (1, 4)]
)
def test_resize_cubic_matches_a_sum_over_pixels(size: int, new: int, rng: torch.Generator):
    x = torch.rand(2, size, generator=rng, dtype=torch.float64)
    expected = torch.from_numpy(filtered_cubic(x.numpy().T, new)).T
    torch.testing.assert_close(resize_cubic(x[None, :, None], 1, new)[0, :, 0], expected)
    torch.testing.assert_close(resize_cubic(x[None, :, :, None], new, 3)[0, :, :, 1], expected)


def test_resize_cubic_is_sharper_than_resize_and_does_not_alias():
    """Of waves below half a cycle per output pixel it keeps more, and of waves above that little."""
    kept = {}
    for cycles in (56, 300):
        wave = torch.cos(2 * torch.pi * cycles * coordinates(1024, dtype=torch.float64))[None, None, None]
        kept[cycles] = [filter(wave, 1, 256)[..., 16:-16].std() / wave.std() for filter in (resize, resize_cubic)]
    assert kept[56][1] > 0.93 > 0.9 > kept[56][0]
    assert kept[300][1] < 0.05


@pytest.mark.parametrize("new", [(16, 16), (16, 7), (1, 1)])
def test_resize_cubic_has_gradients_and_ignores_autocast(new: tuple[int, int], rng: torch.Generator):
    x = torch.rand(1, 2, 16, 12, generator=rng, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: resize_cubic(x, *new), x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(resize_cubic(x.float(), *new), resize_cubic(x.detach().float(), *new))
