"""Views of every layout as NCHW, and back."""

import pytest
import torch

from localscale.errors import ShapeError
from localscale.layouts import Layout, Tokens, as_nchw, pixels_of

CASES = [
    ((2, 3, 4, 5), "NCHW", (2, 3, 4, 5)),
    ((2, 4, 5, 3), "NHWC", (2, 3, 4, 5)),
    ((2, 4, 5), "NHW", (2, 1, 4, 5)),
    ((2, 20, 3), Tokens(4, 5), (2, 3, 4, 5)),
    ((2, 25, 3), Tokens(4, 5, prefix=5), (2, 3, 4, 5)),
]


@pytest.mark.parametrize(("shape", "layout", "expected"), CASES)
def test_round_trip_without_a_copy(shape: tuple[int, ...], layout, expected: tuple[int, ...], rng: torch.Generator):
    x = torch.rand(shape, generator=rng)
    view, back = as_nchw(x, layout)
    assert view.shape == expected
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(back(view), x)


@pytest.mark.parametrize(("shape", "layout", "expected"), CASES)
def test_pixels_land_in_their_row_and_column(shape, layout, expected, rng: torch.Generator):
    x = torch.rand(shape, generator=rng)
    view, _ = as_nchw(x, layout)
    i, j = 2, 3
    pixel = {"NCHW": lambda: x[:, :, i, j], "NHWC": lambda: x[:, i, j], "NHW": lambda: x[:, i, j, None]}
    direct = x[:, layout.prefix + i * 5 + j] if isinstance(layout, Tokens) else pixel[layout]()
    assert torch.equal(view[:, :, i, j], direct)


def test_prefix_tokens_come_back_as_they_were(rng: torch.Generator):
    x = torch.rand(2, 2 + 6, 4, generator=rng)
    view, back = as_nchw(x, Tokens(2, 3, prefix=2))
    changed = back(view * 0 - 1)
    assert torch.equal(changed[:, :2], x[:, :2])
    assert (changed[:, 2:] == -1).all()


def test_length_counts_prefix_and_patches():
    assert Tokens(14, 14, prefix=1).length == 197
    assert Tokens(7, 9).length == 63


@pytest.mark.parametrize("shape", [(2, 196, 8), (2, 198, 8), (2, 197), (2, 197, 8, 1)])
def test_wrong_token_count_is_named(shape: tuple[int, ...]):
    with pytest.raises(ShapeError) as error:
        as_nchw(torch.zeros(shape), Tokens(14, 14, prefix=1))
    expected = "expected (batch, 197, channels) for 1 prefix tokens and 14×14 patches"
    assert str(error.value) == f"tokens have shape {shape}; {expected}"


@pytest.mark.parametrize(("layout", "rank"), [("NCHW", 4), ("NHWC", 4), ("NHW", 3)])
def test_wrong_rank_is_named(layout: str, rank: int):
    for shape in [(2, 3), (2, 3, 4, 5, 6), (2,) * (7 - rank)]:
        with pytest.raises(ShapeError) as error:
            as_nchw(torch.zeros(shape), layout)
        assert str(error.value) == f"a tensor of shape {shape} was given as {layout}; expected {rank} dimensions"


@pytest.mark.parametrize("layout", ["nchw", "BCHW", "tokens"])
def test_unknown_layout_is_named(layout: str):
    with pytest.raises(ShapeError, match=f'layout is \'{layout}\'; expected "NCHW", "NHWC", "NHW" or Tokens'):
        as_nchw(torch.zeros(1, 1, 4, 4), layout)


@pytest.mark.parametrize(
    ("shape", "layout"), [((2, 3, 0, 5), "NCHW"), ((2, 4, 0, 3), "NHWC"), ((2, 1, 8), Tokens(0, 3, prefix=1))]
)
def test_a_feature_without_pixels_is_refused(shape: tuple[int, ...], layout: Layout):
    with pytest.raises(ShapeError, match=r"×\d pixels; expected at least 1×1"):
        pixels_of(torch.zeros(shape), layout)
    with pytest.raises(ShapeError, match="expected at least 1×1"):
        as_nchw(torch.zeros(shape), layout)
