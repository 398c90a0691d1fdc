"""The kernel that warps and resizes against plain PyTorch, in Triton's interpreter where there is no GPU."""

import pytest
import torch
from kernel_inputs import DEVICE, use_kernels
from torch import Tensor

import localscale as ls
from localscale.conventions import resize_cubic
from localscale.kernels.warp_to_size import can_unscale_to, fused_unscale_to
from localscale.maps.base import Map

SIZES = {
    "halved": ((90, 97), (45, 48)),
    "a little smaller": ((20, 61), (17, 60)),
    "a fifth": ((70, 101), (14, 20)),
    "larger": ((9, 12), (40, 37)),
    "one axis": ((8, 30), (8, 11)),
}


def some_map(kind: str, batch: int = 2) -> Map:
    settings = {"strength": 1.5, "generator": torch.Generator().manual_seed(1), "device": DEVICE}
    m = ls.random_map(batch, (5, 4), family="separable" if kind == "separable" else "grid", **settings)
    return m.inverse() if kind == "inverse" else m


def image(size: tuple[int, int], channels: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)


def fused(x: Tensor, m: Map, size: tuple[int, int]) -> Tensor:
    assert can_unscale_to(x, size)
    return fused_unscale_to(x, m.displacement_lattices(x.shape[2], x.shape[3]), size)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("halved", "grid"),
        ("one axis", "one map"),
        pytest.param("a little smaller", "inverse", marks=pytest.mark.slow),
        pytest.param("a fifth", "separable", marks=pytest.mark.slow),
        pytest.param("larger", "grid", marks=pytest.mark.slow),
    ],
)
def test_values_match_plain_pytorch(name: str, kind: str):
    (old, new), m = SIZES[name], some_map(kind, 1 if kind == "one map" else 2)
    x = image(old)
    found, expected = fused(x, m, new), ls.unscale(x, m, size=new, sampler="gather")
    assert (found - expected).abs().max() < 1e-4
    assert (found - resize_cubic(x, *new)).abs().max() > 0.1, "something moves"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_the_identity_is_the_filter(dtype: torch.dtype):
    x = image((40, 50), dtype=dtype)
    found, expected = fused(x, ls.identity_map(1, 6, device=DEVICE), (20, 25)), resize_cubic(x, 20, 25)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, atol=max(2e-5, 4 * torch.finfo(dtype).eps), rtol=torch.finfo(dtype).eps)


def test_images_may_have_any_strides():
    x, m = image((33, 41)), some_map("grid")
    assert torch.equal(fused(x.to(memory_format=torch.channels_last), m, (16, 20)), fused(x, m, (16, 20)))


def test_a_nan_map_gives_nan_and_reads_nothing_outside():
    x, m = image((33, 41)), some_map("grid")
    displacements = m.displacements.clone()
    displacements[0] = torch.nan
    found = fused_unscale_to(x, (displacements[:, 0], displacements[:, 1]), (16, 20))
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


@pytest.mark.parametrize(("old", "new"), [((3, 40), (2, 20)), ((400, 400), (20, 20)), ((12, 12), (2, 2))])
def test_what_the_kernel_cannot_do_is_left_to_plain_pytorch(old, new, monkeypatch: pytest.MonkeyPatch):
    x, m = image(old), some_map("grid")
    assert not can_unscale_to(x, new)
    expected = ls.unscale(x, m, size=new)
    use_kernels(monkeypatch)
    assert torch.equal(ls.unscale(x, m, size=new), expected)


def test_it_is_used_where_no_gradient_is_wanted(monkeypatch: pytest.MonkeyPatch):
    x, m = image((33, 41)), some_map("grid")
    plain = ls.unscale(x, m, size=(16, 20), sampler="gather")
    use_kernels(monkeypatch)
    wanted = ls.unscale(x.clone().requires_grad_(), m, size=(16, 20))
    assert wanted.requires_grad
    monkeypatch.setattr("localscale.warp.SAMPLERS", {"native": None})  # so that plain PyTorch would fail
    assert (ls.unscale(x, m, size=(16, 20)) - plain).abs().max() < 1e-4
    last = ls.unscale(x.permute(0, 2, 3, 1), m, size=(16, 20), layout="NHWC")
    assert (last.movedim(3, 1) - plain).abs().max() < 1e-4


def test_compiled_equals_eager():
    x, m = image((33, 41)), some_map("grid")

    def twice(x: Tensor, displacements: Tensor) -> Tensor:
        return 2 * fused_unscale_to(x, (displacements,), (16, 20))

    found = torch.compile(twice, backend="aot_eager", fullgraph=True)(x, m.displacements)
    assert torch.equal(found, twice(x, m.displacements))
