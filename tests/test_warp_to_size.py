"""S⁻¹(x; l) at another size: large images, small canonical forms."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck

from localscale.conventions import lattice, pixel_positions, resize_cubic
from localscale.errors import ShapeError
from localscale.layouts import Tokens
from localscale.maps import FAMILIES, identity_map, map_from_logits, map_from_scales, random_map
from localscale.sampling import SAMPLERS
from localscale.warp import scale_points, unscale

CENTRE, RADIUS = (0.3, 0.4), 0.04


def disc(points: Tensor) -> Tensor:
    """A disc with a soft rim, at points ``(…, 2)`` of [0,1]²."""
    distance = (points - torch.tensor(CENTRE, dtype=points.dtype)).norm(dim=-1)
    return torch.sigmoid((RADIUS - distance) / 0.0015)


def rendered(size: int, m=None, samples: int = 4) -> Tensor:
    """The disc seen through ``m``, averaged over the area of each pixel."""
    fine = lattice(samples * size, samples * size, dtype=torch.float64).reshape(1, -1, 2)
    seen = disc(fine if m is None else m(fine)).view(1, 1, samples * size, samples * size)
    return F.avg_pool2d(seen, samples)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("needs", [True, False])
def test_the_identity_is_exactly_the_filter(family: str, dtype: torch.dtype, needs: bool, rng: torch.Generator):
    m = identity_map(2, (5, 3), family=family)
    x = torch.randn(2, 3, 45, 64, generator=rng).to(dtype).requires_grad_(needs)
    for size in ((22, 32), (45, 20), (60, 80), (45, 64), (1, 1)):
        assert torch.equal(unscale(x, m, size=size), resize_cubic(x, *size))


def test_every_layout_and_labels(rng: torch.Generator):
    m = random_map(2, 5, strength=1.0, generator=rng)
    x = torch.rand(2, 3, 8, 12, generator=rng)
    expected = unscale(x, m, size=(4, 6))
    warped = SAMPLERS["gather"](x, pixel_positions(m.displacement_field(8, 12)), "bicubic")
    torch.testing.assert_close(expected, resize_cubic(warped, 4, 6))
    torch.testing.assert_close(unscale(x, m, size=(4, 6), sampler="gather"), expected)
    torch.testing.assert_close(unscale(x.permute(0, 2, 3, 1), m, size=(4, 6), layout="NHWC").movedim(3, 1), expected)
    torch.testing.assert_close(unscale(x[:, 0], m, size=(4, 6)), expected[:, 0])
    extra = torch.rand(2, 1, 3, generator=rng)
    tokens = unscale(torch.cat((extra, x.flatten(2).mT), dim=1), m, size=(4, 6), layout=Tokens(8, 12, prefix=1))
    torch.testing.assert_close(tokens, torch.cat((extra, expected.flatten(2).mT), dim=1))
    labels = torch.randint(0, 2**40, (2, 8, 12), generator=rng)
    found = unscale(labels, m, size=(4, 6), mode="nearest")
    points = lattice(4, 6, dtype=torch.float32) + m.displacement_field(4, 6)
    column, row = (points * torch.tensor([11, 7])).round().long().unbind(dim=-1)
    assert torch.equal(found, labels[torch.arange(2)[:, None, None], row, column])
    assert unscale(labels == 3, identity_map(), size=(8, 12), mode="nearest").equal(labels == 3)


def test_magnified_things_gain_the_detail_of_the_large_image():
    m = scaled_around(CENTRE, -1.2)
    large, expected = rendered(448), rendered(224, m)
    errors = [
        (found - expected).square().mean().sqrt()
        for found in (unscale(large, m, size=(224, 224)), unscale(resize_cubic(large, 224, 224), m))
    ]
    assert (expected > 0.5).sum() > 2 * (rendered(224) > 0.5).sum(), "the map magnifies the disc"
    assert errors[0] < 0.5 * errors[1]


def scaled_around(point: tuple[float, float], log_size: float):
    """A map that divides sizes by exp(``log_size``) near ``point``."""
    points = lattice(9, 9, dtype=torch.float64)
    near = torch.exp(-(points - torch.tensor(point)).square().sum(-1) / 0.04)
    return map_from_scales(torch.exp(log_size * near)[None], (near + 1e-3)[None], knots=14)


def test_stripes_do_not_alias_where_the_map_shrinks_them():
    """Stripes of 4 large pixels become stripes of about 1.2 small pixels in the middle: their mean remains."""
    x = lattice(448, 448, dtype=torch.float64)[..., 0]
    stripes = 0.5 + 0.5 * torch.cos(2 * math.pi * 112 * x)[None, None]
    m = scaled_around((0.5, 0.5), 0.5)
    found, skipped = (
        image[..., 96:128, 96:128]
        for image in (unscale(stripes, m, size=(224, 224)), unscale(stripes[..., ::2], m, size=(224, 224)))
    )
    assert skipped.std() > 0.15, "every second pixel shows stripes that are not there"
    assert found.std() < 0.25 * skipped.std()
    assert abs(found.mean() - 0.5) < 0.01


@pytest.mark.parametrize("size", [(3, 4), (9, 12)])
def test_gradients_reach_image_and_map(size: tuple[int, int], rng: torch.Generator):
    draw = {"generator": rng, "dtype": torch.float64, "requires_grad": True}
    x = torch.rand(1, 1, 6, 7, **draw)
    logits = [torch.rand(1, *shape, **draw) for shape in FAMILIES["grid"].logit_shapes((3, 4))]
    assert gradcheck(lambda x, *raw: unscale(x, map_from_logits(*raw), size=size), (x, *logits))


def test_autocast_keeps_full_precision(rng: torch.Generator):
    x, m = torch.rand(1, 3, 32, 32, generator=rng), random_map(1, 5, generator=rng)
    with torch.autocast("cpu", torch.bfloat16):
        found = unscale(x, m, size=(16, 16))
    assert torch.equal(found, unscale(x, m, size=(16, 16)))


@pytest.mark.slow
def test_compiled_equals_eager(rng: torch.Generator):
    x, m = torch.rand(2, 3, 32, 32, generator=rng), random_map(2, 5, generator=rng)
    call = lambda x, state: unscale(x, type(m).from_state(state, m.knots), size=(14, 18))  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, m.state()), call(x, m.state()), atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [(0, 4), (4,), (4, 4, 4)])
def test_a_size_that_cannot_be_is_named(size):
    with pytest.raises(ShapeError, match="expected \\(height, width\\) in pixels"):
        unscale(torch.rand(1, 3, 8, 8), identity_map(), size=size)


@pytest.mark.parametrize("size", ["ab", (2.5, 3), (3,), 3, (0, 3), ("a", "b")])
def test_a_size_that_is_none(size: object):
    with pytest.raises(ShapeError, match=r"^size is .*; expected \(height, width\) in pixels, two positive integers$"):
        unscale(torch.rand(1, 3, 4, 4), identity_map(), size=size)
    with pytest.raises(ShapeError, match=r"^size is "):
        scale_points(torch.rand(2, 2), identity_map(), size=size)
