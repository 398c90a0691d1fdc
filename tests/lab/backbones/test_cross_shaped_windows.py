"""HRViT's attention against a slow one that computes every pixel separately."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from localscale.errors import ConfigError
from localscale.lab.backbones.hrvit_attention import DiversityShortcut, HRViTAttention, cross_shaped_attention

SIZES = st.integers(1, 9)


def slow_cross_shaped_attention(queries: Tensor, values: Tensor, heads: int, window: int) -> Tensor:
    """Let each pixel attend to its stripe: a horizontal one in the first heads, a vertical one in the others."""
    _, channels, height, width = queries.shape
    each = channels // (2 * heads)
    out = torch.empty_like(queries)
    for head in range(2 * heads):
        part = slice(head * each, (head + 1) * each)
        for y in range(height):
            for x in range(width):
                rows, columns = slice(None), slice(None)
                if head < heads:
                    rows = slice(y // window * window, y // window * window + window)
                else:
                    columns = slice(x // window * window, x // window * window + window)
                seen = values[:, part, rows, columns].flatten(2)
                likeness = torch.einsum("bc,bcn->bn", queries[:, part, y, x], seen) / each**0.5
                out[:, part, y, x] = torch.einsum("bn,bcn->bc", likeness.softmax(1), seen)
    return out


@given(height=SIZES, width=SIZES, heads=st.integers(1, 2), window=st.integers(1, 4), seed=st.integers(0, 99))
def test_attention_matches_the_slow_one(height: int, width: int, heads: int, window: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    queries, values = torch.randn(2, 2, 8, height, width, generator=generator, dtype=torch.float64)
    expected = slow_cross_shaped_attention(queries, values, heads, window)
    torch.testing.assert_close(cross_shaped_attention(queries, values, heads=heads, window=window), expected)


def test_attention_has_gradients():
    queries, values = torch.randn(2, 1, 4, 3, 5, dtype=torch.float64).requires_grad_()
    attend = lambda q, v: cross_shaped_attention(q, v, heads=1, window=2)  # noqa: E731
    assert torch.autograd.gradcheck(attend, (queries, values))


def test_attention_matches_the_papers_equation(rng: torch.Generator):
    attention = HRViTAttention(8, heads=2, window=3).double().eval()
    attention.norm.running_mean.normal_(generator=rng)
    attention.norm.running_var.uniform_(0.5, 2, generator=rng)
    x = torch.randn(2, 8, 7, 5, generator=rng, dtype=torch.float64)
    queries, values = F.conv2d(x, attention.query_value.weight, attention.query_value.bias).split(8, dim=1)
    seen = slow_cross_shaped_attention(queries, values, heads=2, window=3)
    local = F.conv2d(F.hardswish(values), attention.local.weight, attention.local.bias, padding=1, groups=8)
    projected = F.conv2d(seen + local, attention.project.weight, attention.project.bias)
    torch.testing.assert_close(attention(x), attention.norm(F.hardswish(projected)))


def test_shortcut_is_a_kronecker_product(rng: torch.Generator):
    shortcut = DiversityShortcut(32).double()
    x = torch.randn(2, 32, 3, 4, generator=rng, dtype=torch.float64)
    (a, a_bias), (b, b_bias) = ((m.weight[:, :, 0, 0], m.bias) for m in (shortcut.rows, shortcut.columns))
    expected = torch.empty_like(x)
    for image in range(2):
        for row in range(3):
            for column in range(4):
                matrix = x[image, :, row, column].reshape(4, 8)
                mixed = a @ F.hardswish(matrix @ b.T + b_bias) + a_bias[:, None]
                expected[image, :, row, column] = mixed.reshape(32)
    torch.testing.assert_close(shortcut(x), expected)


@pytest.mark.parametrize(("channels", "columns"), [(32, 8), (64, 8), (128, 16), (256, 16)])
def test_shortcut_folds_channels_into_a_power_of_two(channels: int, columns: int):
    assert DiversityShortcut(channels).columns.in_channels == columns


@pytest.mark.parametrize("settings", [{"heads": 3, "window": 1}, {"heads": 2, "window": 0}])
def test_attention_refuses_indivisible_channels_and_empty_windows(settings: dict[str, int]):
    with pytest.raises(ConfigError, match=r"channels is 8, heads . and window .; expected channels divisible"):
        HRViTAttention(8, **settings)


def test_shortcut_refuses_indivisible_channels():
    with pytest.raises(ConfigError, match="36 channels cannot be folded into 8 columns"):
        DiversityShortcut(36)
