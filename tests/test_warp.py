"""S(x; l) and S⁻¹(x; l) for images, features, tokens and label maps."""

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from shared import SHARED
from torch.autograd import gradcheck, gradgradcheck

from localscale.conventions import lattice
from localscale.errors import MapError, ShapeError
from localscale.layouts import Tokens
from localscale.maps import FAMILIES, identity_map, map_from_logits, random_map
from localscale.sampling import SAMPLERS
from localscale.warp import scale, unscale

PUBLISHED = SHARED / "parity" / "published_warps.npz"
SIZES = [(1, 1), (1, 8), (7, 1), (8, 8), (7, 12), (15, 9)]
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EACH_SAMPLER = pytest.mark.parametrize("sampler", SAMPLERS)
BOTH_WAYS = pytest.mark.parametrize("warp", [scale, unscale])


def smooth_images(batch: int, size: int) -> torch.Tensor:
    x, y = lattice(size, size, dtype=torch.float32).unbind(dim=-1)
    waves = [torch.sin(5 * y + 2) * torch.cos(4 * x), torch.cos(3 * x + 4 * y)]
    return torch.stack(waves).expand(batch, -1, -1, -1)


def sampled_at(warp, m, size: tuple[int, int]) -> torch.Tensor:
    """Return the position that each output pixel samples, in [−1,1] units, by the definition."""
    points = lattice(*size, dtype=m.dtype).reshape(1, -1, 2)
    return 2 * (m.inverse() if warp is scale else m)(points).reshape(m.batch, *size, 2) - 1


# The identity


@EACH_FAMILY
@pytest.mark.parametrize(("warp", "size"), list(zip([scale, unscale] * 3, SIZES, strict=True)))
def test_identity_returns_its_input(family: str, warp, size: tuple[int, int], rng: torch.Generator):
    m = identity_map(2, (5, 3), family=family)
    images = torch.randn(2, 3, *size, generator=rng)
    for sampler in SAMPLERS:
        torch.testing.assert_close(warp(images, m, sampler=sampler), images, atol=1e-6, rtol=0)
    integers = torch.randint(0, 2**40, (2, *size), generator=rng)
    for labels in (integers, integers.to(torch.uint8), images, images.to(torch.bfloat16)):
        same = warp(labels, m, mode="nearest")
        assert same.dtype == labels.dtype
        assert torch.equal(same, labels)


@pytest.mark.parametrize(("family", "warp", "sampler"), [("grid", unscale, "native"), ("separable", scale, "gather")])
def test_identity_in_every_layout(family: str, warp, sampler: str, rng: torch.Generator):
    m = identity_map(2, family=family)
    cases = [((2, 3, 6, 7), "NCHW"), ((2, 6, 7, 3), "NHWC"), ((2, 6, 7), "NHW")]
    cases += [((2, prefix + 42, 3), Tokens(6, 7, prefix)) for prefix in (0, 1, 2, 5)]
    for shape, layout in cases:
        x = torch.randn(shape, generator=rng)
        torch.testing.assert_close(warp(x, m, layout=layout, sampler=sampler), x, atol=1e-6, rtol=0)
        assert torch.equal(warp(x, m, layout=layout, mode="nearest"), x)


@BOTH_WAYS
def test_one_map_serves_the_whole_batch(warp, rng: torch.Generator):
    m = random_map(1, 5, strength=1.0, generator=rng)
    x = torch.rand(3, 2, 12, 10, generator=rng)
    expected = torch.cat([warp(x[b : b + 1], m) for b in range(3)])
    torch.testing.assert_close(warp(x, m), expected, atol=1e-6, rtol=0)


# Layouts


@BOTH_WAYS
@EACH_SAMPLER
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_every_layout_gives_the_nchw_answer(warp, sampler: str, mode: str, rng: torch.Generator):
    m = random_map(2, 5, strength=1.0, generator=rng)
    x = torch.rand(2, 3, 6, 9, generator=rng)
    expected = warp(x, m, mode=mode, sampler=sampler)
    how = {"mode": mode, "sampler": sampler}
    assert torch.equal(warp(x.permute(0, 2, 3, 1), m, layout="NHWC", **how), expected.permute(0, 2, 3, 1))
    assert torch.equal(warp(x[:, 0], m, **how), expected[:, 0])
    for prefix in (0, 1, 2, 5):
        extra = torch.rand(2, prefix, 3, generator=rng)
        warped = warp(torch.cat((extra, x.flatten(2).mT), dim=1), m, layout=Tokens(6, 9, prefix), **how)
        assert torch.equal(warped[:, :prefix], extra), "prefix tokens are untouched"
        assert torch.equal(warped[:, prefix:], expected.flatten(2).mT)


# Against others


def test_unscale_matches_a_loop_over_pixels(rng: torch.Generator):
    m = random_map(2, (4, 5), strength=2.0, generator=rng, dtype=torch.float64)
    x = torch.rand(2, 2, 7, 9, generator=rng, dtype=torch.float64)
    for b in range(2):
        expected = reference.unscale(x[b].numpy(), m.control_points[b].numpy())
        np.testing.assert_allclose(unscale(x, m)[b], expected, atol=1e-12)


@EACH_FAMILY
@BOTH_WAYS
@pytest.mark.parametrize("size", [(64, 48), (33, 64)])
def test_samplers_grid_sample_and_kornia_agree(family: str, warp, size: tuple[int, int], rng: torch.Generator):
    remap = pytest.importorskip("kornia.geometry.transform").remap
    m = random_map(3, 6, strength=2.0, family=family, generator=rng)
    x = torch.rand(3, 2, *size, generator=rng)
    native, gather = (warp(x, m, sampler=sampler) for sampler in ("native", "gather"))
    torch.testing.assert_close(native, gather, atol=1e-5, rtol=0)
    grid = sampled_at(warp, m, size)
    by_torch = F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=True)
    torch.testing.assert_close(native, by_torch, atol=2e-5, rtol=0)
    x_pixels, y_pixels = (grid[..., 0] + 1) / 2 * (size[1] - 1), (grid[..., 1] + 1) / 2 * (size[0] - 1)
    by_kornia = remap(x, x_pixels, y_pixels, mode="bilinear", padding_mode="border", align_corners=True)
    torch.testing.assert_close(native, by_kornia, atol=2e-5, rtol=0)


@EACH_FAMILY
@BOTH_WAYS
def test_nearest_agrees_with_grid_sample(family: str, warp, rng: torch.Generator):
    m = random_map(3, 6, strength=2.0, family=family, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, 100, (3, 33, 40), generator=rng)
    by_torch = F.grid_sample(
        labels[:, None].double(),
        sampled_at(warp, m, (33, 40)),
        mode="nearest",
        padding_mode="border",
        align_corners=True,
    )
    assert torch.equal(warp(labels, m, mode="nearest"), by_torch[:, 0].long())


@pytest.mark.skipif(not PUBLISHED.exists(), reason=f"no published warps at {PUBLISHED}")
@pytest.mark.parametrize("key", ["R4_s0.2", "R4_s1.0", "R8_s0.2", "R8_s1.0"])
def test_published_code_gives_the_same_warps(key: str):
    with np.load(PUBLISHED) as archive:
        names = ("logits_x", "logits_y", "image", "control", "unscaled", "scaled_rowwise")
        logits_x, logits_y, image, control, unscaled, scaled = (torch.from_numpy(archive[f"{key}_{n}"]) for n in names)
    m = map_from_logits(logits_x, logits_y, temperature=1 / 3, guard=None)
    torch.testing.assert_close(m.control_points, control, atol=1e-4, rtol=0)
    torch.testing.assert_close(unscale(image, m), unscaled, atol=1e-4, rtol=0)
    torch.testing.assert_close(scale(image, m, inverse="rowwise"), scaled, atol=1e-2, rtol=0)


# Algebra


@EACH_FAMILY
def test_scaling_twice_is_scaling_by_the_composition(family: str, rng: torch.Generator):
    a, b = (random_map(4, n, strength=1.0, family=family, generator=rng) for n in (5, 6))
    x = smooth_images(4, 96)
    twice = scale(scale(x, b), a)
    right, wrong = ((twice - scale(x, m)).abs().mean() for m in (a @ b, b @ a))
    assert right < 1e-3
    assert wrong > 10 * right


@EACH_FAMILY
def test_unscaling_undoes_scaling(family: str, rng: torch.Generator):
    m = random_map(4, 5, strength=1.0, family=family, generator=rng)
    x = smooth_images(4, 96)
    exact = (unscale(scale(x, m), m) - x).abs()
    assert exact.mean() < 1e-3
    assert exact.max() < 0.03
    assert ((scale(x, m) - x).abs()).mean() > 0.02


def test_the_rowwise_inverse_undoes_it_clearly_worse(rng: torch.Generator):
    m = random_map(4, 5, strength=1.0, generator=rng)
    x = smooth_images(4, 96)
    exact, rowwise = ((unscale(scale(x, m, inverse=how), m) - x).abs().mean() for how in ("exact", "rowwise"))
    assert rowwise > 10 * exact


def test_scaling_makes_things_as_much_larger_as_local_scale_says():
    """A small disc at p becomes a blob at l(p) whose area is det ∂l/∂p times as large."""
    logits = torch.tensor([[1.0, 0.0]])
    m = map_from_logits(logits, logits, family="separable")
    x, y = lattice(201, 201, dtype=torch.float32).unbind(dim=-1)
    disc = (((x - 0.25) ** 2 + (y - 0.25) ** 2).sqrt() < 0.1).float()[None, None]
    at = torch.tensor([[[0.25, 0.25]]])
    grown = scale(disc, m)
    torch.testing.assert_close((grown.sum() / disc.sum()).sqrt(), m.local_scale(at)[0, 0], rtol=0.02, atol=0)
    centre = torch.stack(((grown * x).sum(), (grown * y).sum())) / grown.sum()
    torch.testing.assert_close(centre, m(at)[0, 0], rtol=0, atol=1e-3)


# Labels


@EACH_FAMILY
@BOTH_WAYS
def test_labels_stay_aligned_with_images(family: str, warp, rng: torch.Generator):
    """The nearest of four neighbours weighs at least a quarter in bilinear, so its label must be there."""
    m = random_map(2, 6, strength=2.0, family=family, generator=rng)
    labels = torch.randint(0, 4, (2, 9, 9), generator=rng).repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)
    soft = warp(F.one_hot(labels).permute(0, 3, 1, 2).float(), m)
    hard = warp(labels, m, mode="nearest")
    assert (soft.gather(1, hard[:, None]) >= 0.25 - 1e-4).all()
    unanimous = soft.amax(dim=1) > 1 - 1e-4
    assert unanimous.float().mean() > 0.3
    assert torch.equal(hard[unanimous], soft.argmax(dim=1)[unanimous])
    own_value = warp(labels.float()[:, None], m)[:, 0]
    torch.testing.assert_close(own_value[unanimous], hard[unanimous].float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("family", "warp", "axis"), [("grid", scale, "x"), ("separable", unscale, "y")])
def test_along_one_axis_nearest_is_the_argmax_of_bilinear(family: str, warp, axis: str, rng: torch.Generator):
    shapes = FAMILIES[family].logit_shapes((6, 6))
    logits = [
        2 * torch.rand(2, *shape, generator=rng) * (axis == name) for shape, name in zip(shapes, "xy", strict=True)
    ]
    m = map_from_logits(*logits, family=family)
    labels = torch.randint(0, 5, (2, 40, 37), generator=rng)
    soft = warp(F.one_hot(labels).permute(0, 3, 1, 2).float(), m)
    best, second = soft.topk(2, dim=1).values.unbind(dim=1)
    clear = best - second > 1e-3
    assert clear.float().mean() > 0.9
    assert torch.equal(warp(labels, m, mode="nearest")[clear], soft.argmax(dim=1)[clear])


# Precision


@EACH_SAMPLER
@BOTH_WAYS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_features_give_the_float32_answer_rounded(warp, sampler: str, dtype: torch.dtype, rng: torch.Generator):
    m = random_map(2, 6, strength=1.0, generator=rng)
    x = torch.rand(2, 3, 40, 300, generator=rng).to(dtype)
    half = warp(x, m, sampler=sampler)
    assert half.dtype == dtype
    assert torch.equal(half, warp(x.float(), m, sampler=sampler).to(dtype))
    tokens = x.flatten(2).mT
    assert warp(tokens, m, layout=Tokens(40, 300), sampler=sampler).dtype == dtype


@EACH_SAMPLER
def test_half_features_are_looked_up_at_float32_coordinates(sampler: str, rng: torch.Generator):
    """A ramp of 300 columns: with half coordinates it would be off by a whole pixel."""
    m = random_map(1, 6, strength=1.0, generator=rng, dtype=torch.float64)
    ramp = torch.arange(300).expand(1, 1, 2, 300).to(torch.float16)
    exact = unscale(ramp.double(), m)
    rounding = torch.finfo(torch.float16).eps * exact.clamp_min(1)
    assert ((unscale(ramp, m.to(dtype=torch.float32), sampler=sampler) - exact).abs() <= rounding).all()


# Gradients


@pytest.mark.parametrize(
    ("warp", "family", "sampler"),
    [
        (scale, "grid", "native"),
        (scale, "separable", "gather"),
        (unscale, "grid", "gather"),
        (unscale, "separable", "native"),
    ],
)
def test_gradients_reach_image_and_map(warp, family: str, sampler: str, rng: torch.Generator):
    draw = {"generator": rng, "dtype": torch.float64, "requires_grad": True}
    x = torch.rand(1, 1, 4, 5, **draw)
    logits = [torch.rand(1, *shape, **draw) for shape in FAMILIES[family].logit_shapes((3, 4))]
    assert gradcheck(lambda x, *raw: warp(x, map_from_logits(*raw, family=family), sampler=sampler), (x, *logits))


@pytest.mark.parametrize(("warp", "family"), [(unscale, "grid"), (scale, "separable")])
def test_gather_can_be_differentiated_twice(warp, family: str, rng: torch.Generator):
    draw = {"generator": rng, "dtype": torch.float64, "requires_grad": True}
    x = torch.rand(1, 1, 4, 5, **draw)
    logits = [torch.rand(1, *shape, **draw) for shape in FAMILIES[family].logit_shapes((3, 4))]
    assert gradgradcheck(lambda x, *raw: warp(x, map_from_logits(*raw, family=family), sampler="gather"), (x, *logits))


def test_rowwise_scaling_has_gradients_too(rng: torch.Generator):
    draw = {"generator": rng, "dtype": torch.float64, "requires_grad": True}
    x, logits_x, logits_y = (torch.rand(1, *shape, **draw) for shape in ((1, 5, 6), (3, 2), (3, 2)))
    assert gradcheck(lambda x, *raw: scale(x, map_from_logits(*raw), inverse="rowwise"), (x, logits_x, logits_y))


# Robustness


@pytest.mark.parametrize(("family", "warp"), [("grid", unscale), ("separable", scale)])
@pytest.mark.parametrize(("sampler", "mode"), [("native", "bilinear"), ("gather", "bilinear"), ("native", "nearest")])
def test_nan_in_one_image_stays_there(family: str, warp, sampler: str, mode: str, rng: torch.Generator):
    x = torch.rand(3, 2, 12, 10, generator=rng)
    broken = x.clone()
    broken[1, 0, 3:5] = float("nan")
    moving = random_map(3, 5, strength=1.0, family=family, generator=rng)
    for m in (moving, identity_map(1, 5, family=family)):
        clean, dirty = (warp(images, m, mode=mode, sampler=sampler) for images in (x, broken))
        assert torch.equal(clean[[0, 2]], dirty[[0, 2]])
        assert torch.equal(clean[1, 1], dirty[1, 1]), "nor does it cross channels"
        assert dirty[1, 0].isnan().any()


# Errors


@pytest.mark.parametrize("shape", [(4,), (4, 4), (1, 1, 1, 4, 4)])
def test_wrong_rank_is_named(shape: tuple[int, ...]):
    with pytest.raises(ShapeError) as error:
        unscale(torch.zeros(shape), identity_map())
    assert f"x has shape {shape}; expected (B, C, H, W), or (B, H, W) for label maps" in str(error.value)
    assert "name a layout for anything else" in str(error.value)


@BOTH_WAYS
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_labels_are_not_interpolated(warp, dtype: torch.dtype):
    with pytest.raises(ShapeError, match=f'x has dtype {dtype}, which cannot be interpolated; use mode="nearest"'):
        warp(torch.zeros(1, 4, 4, dtype=dtype), identity_map())


@BOTH_WAYS
def test_unknown_names_name_the_near_miss(warp):
    x, m = torch.zeros(2, 3, 4, 4), identity_map()
    with pytest.raises(ShapeError, match=r"no mode 'bilinaer': did you mean bilinear\?"):
        warp(x, m, mode="bilinaer")
    with pytest.raises(ShapeError, match="no mode 'cubic': known: bilinear, nearest"):
        warp(x, m, mode="cubic")
    with pytest.raises(ShapeError, match=r"no sampler 'nativ': did you mean native\?"):
        warp(x, m, sampler="nativ")
    with pytest.raises(ShapeError, match=r'layout is \'NWHC\'; expected "NCHW", "NHWC", "NHW" or Tokens'):
        warp(x, m, layout="NWHC")
    with pytest.raises(ShapeError, match=r"was given as NHW; expected 3 dimensions"):
        warp(x, m, layout="NHW")


@EACH_FAMILY
@BOTH_WAYS
def test_maps_for_another_batch_are_named(family: str, warp):
    with pytest.raises(MapError, match="3 maps were given for a batch of 2; expected 1 or 2"):
        warp(torch.zeros(2, 3, 4, 4), identity_map(3, family=family))


@BOTH_WAYS
def test_wrong_token_count_is_named(warp):
    with pytest.raises(ShapeError, match=r"expected \(batch, 17, channels\) for 1 prefix tokens and 4×4 patches"):
        warp(torch.zeros(2, 16, 8), identity_map(), layout=Tokens(4, 4, prefix=1))


@BOTH_WAYS
def test_a_map_on_another_device_is_named(warp):
    with pytest.raises(MapError, match="the map is on meta and x on cpu; move one with"):
        warp(torch.zeros(2, 3, 4, 4), identity_map().to(device="meta"))


@EACH_FAMILY
def test_unknown_inverse_is_named(family: str):
    with pytest.raises(MapError, match="inverse method is 'newton'; expected"):
        scale(torch.zeros(2, 3, 4, 4), identity_map(family=family), inverse="newton")
