"""Samplers against a loop over pixels, PyTorch and each other."""

import pytest
import torch
import torch.nn.functional as F
from reference import bilinear, sampled_bicubic
from torch.autograd import gradcheck, gradgradcheck

import localscale as ls
from localscale.conventions import compute_dtype, pixel_positions
from localscale.sampling import SAMPLERS, sample_displaced, sample_gather, sample_native, sample_nearest

EACH_SAMPLER = pytest.mark.parametrize("sampler", SAMPLERS)
EACH_MODE = pytest.mark.parametrize("mode", ["bilinear", "bicubic"])


def positions(batch: int, height: int, width: int, rng: torch.Generator, dtype=torch.float64) -> torch.Tensor:
    return torch.rand(batch, height, width, 2, generator=rng, dtype=dtype) * torch.tensor((width - 1, height - 1))


@EACH_MODE
@EACH_SAMPLER
@pytest.mark.parametrize("size", [(4, 5), (1, 6), (5, 1), (1, 1)])
def test_values_match_a_loop_over_pixels(sampler: str, mode: str, size: tuple[int, int], rng: torch.Generator):
    x = torch.rand(2, 3, *size, generator=rng, dtype=torch.float64)
    pixels = positions(2, *size, rng)
    sampled = SAMPLERS[sampler](x, pixels, mode)
    oracle = {"bilinear": bilinear, "bicubic": sampled_bicubic}[mode]
    for b in range(2):
        for i in range(size[0]):
            for j in range(size[1]):
                expected = torch.from_numpy(oracle(x[b].numpy(), *pixels[b, i, j].tolist()))
                torch.testing.assert_close(sampled[b, :, i, j], expected)


@EACH_MODE
@pytest.mark.parametrize("size", [(64, 64), (37, 50), (5, 64)])
def test_native_and_gather_agree(size: tuple[int, int], mode: str, rng: torch.Generator):
    x = torch.rand(4, 3, *size, generator=rng)
    pixels = positions(4, *size, rng, dtype=torch.float32)
    torch.testing.assert_close(sample_native(x, pixels, mode), sample_gather(x, pixels, mode), atol=1e-5, rtol=0)


def test_nearest_takes_ties_to_the_even_pixel_as_pytorch_does():
    x = torch.arange(5.0).reshape(1, 1, 1, 5)
    pixels = torch.stack((torch.tensor([0.5, 1.5, 2.5, 3.5, 2.51]), torch.zeros(5)), dim=-1).reshape(1, 1, 5, 2)
    sampled = sample_nearest(x, pixels)
    assert sampled.flatten().tolist() == [0, 2, 2, 4, 3]
    grid = torch.stack((pixels[..., 0] / 2 - 1, torch.zeros(1, 1, 5)), dim=-1)
    assert torch.equal(sampled, F.grid_sample(x, grid, mode="nearest", padding_mode="border", align_corners=True))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.bfloat16, torch.float64])
def test_nearest_copies_values_of_any_dtype(dtype: torch.dtype, rng: torch.Generator):
    x = torch.randint(0, 2**24 + 3, (2, 2, 6, 7), generator=rng).to(dtype)
    pixels = positions(2, 6, 7, rng, dtype=torch.float32)
    sampled = sample_nearest(x, pixels)
    assert sampled.dtype == dtype
    for b in range(2):
        column, row = pixels[b].round().long().unbind(dim=-1)
        assert torch.equal(sampled[b], x[b][:, row, column])


@EACH_MODE
@EACH_SAMPLER
def test_first_derivatives(sampler: str, mode: str, rng: torch.Generator):
    x = torch.rand(1, 2, 4, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    pixels = positions(1, 4, 5, rng).requires_grad_()
    assert gradcheck(lambda x, pixels: SAMPLERS[sampler](x, pixels, mode), (x, pixels))


@EACH_MODE
def test_second_derivatives_of_gather(mode: str, rng: torch.Generator):
    x = torch.rand(1, 2, 3, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    pixels = positions(1, 3, 4, rng).requires_grad_()
    assert gradgradcheck(lambda x, pixels: sample_gather(x, pixels, mode), (x, pixels))


def own_pixels(height: int, width: int) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack((columns, rows), dim=-1).float()[None]


@EACH_MODE
@EACH_SAMPLER
def test_sampling_its_own_pixels_gives_the_input_exactly(sampler: str, mode: str, rng: torch.Generator):
    """Also where neighbours differ by orders of magnitude, as activations do."""
    x = torch.randn(2, 3, 56, 56, generator=rng)
    x = x * 10 ** (-6 * torch.rand(x.shape, generator=rng))
    assert torch.equal(SAMPLERS[sampler](x, own_pixels(56, 56).expand(2, -1, -1, -1), mode), x)


@EACH_SAMPLER
def test_sampling_its_own_pixels_still_has_gradients(sampler: str, rng: torch.Generator):
    x = torch.rand(1, 1, 6, 7, generator=rng, requires_grad=True)
    pixels = own_pixels(6, 7).requires_grad_()
    weights = torch.rand(1, 1, 6, 7, generator=rng)
    by_x, by_pixels = torch.autograd.grad((SAMPLERS[sampler](x, pixels) * weights).sum(), (x, pixels))
    torch.testing.assert_close(by_x, weights, atol=1e-5, rtol=0)
    assert by_pixels.isfinite().all()
    assert (by_pixels[:, 1:-1, 1:-1] != 0).all()


def test_one_still_entry_does_not_change_the_others(rng: torch.Generator):
    x = torch.rand(2, 1, 6, 7, generator=rng)
    moving = positions(1, 6, 7, rng, dtype=torch.float32)
    both = sample_native(x, torch.cat((own_pixels(6, 7), moving)))
    assert torch.equal(both[:1], x[:1])
    assert torch.equal(both[1:], sample_native(x[1:], moving))


@EACH_MODE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_without_gradients_the_shorter_path_gives_the_same(dtype: torch.dtype, mode: str, rng: torch.Generator):
    x = torch.rand(3, 2, 9, 14, generator=rng).to(dtype)
    m = ls.random_map(3, (5, 4), strength=2.0, generator=rng, dtype=compute_dtype(dtype))
    m.displacements[1] = 0
    displacement = m.displacement_field(9, 14)
    moves = torch.tensor([True, False, True])
    short, expected = (
        sample_displaced(x, displacement, moves, mode),
        sample_native(x, pixel_positions(displacement), mode),
    )
    assert short.dtype == dtype
    assert (short - expected).abs().max() < {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2}[dtype]
    assert torch.equal(short[1], x[1]), "a map that moves nothing changes no bit"
    assert torch.equal(sample_displaced(x, 0 * displacement[:1], moves[1:2], mode), x), "one map for all"


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_layout_of_samples_does_not_depend_on_which_images_move(channels_last: bool, rng: torch.Generator):
    """Convolutions round differently in another layout, so a single still image would change all others."""
    x = torch.rand(3, 4, 9, 14, generator=rng)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    displacement = ls.random_map(3, (5, 4), generator=rng).displacement_field(9, 14)
    kinds = ([True, True, True], [True, False, True], [False, False, False])
    found = [sample_displaced(x, displacement, torch.tensor(moves)) for moves in kinds]
    assert len({samples.stride() for samples in found}) == 1
