"""The one-pass warp against its plain twin, in Triton's interpreter where there is no GPU."""

import pytest
import timm
import torch
from dec_configs import dec_config
from torch import Tensor

import localscale as ls
from localscale import kernels
from localscale.kernels.warp import fused_unscale
from localscale.layouts import Layout, Tokens, pixels_of
from localscale.maps.base import Map

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYOUTS: dict[str, tuple[Layout, tuple[int, ...]]] = {
    "images": ("NCHW", (2, 3, 17, 23)),
    "one row": ("NCHW", (2, 5, 1, 9)),
    "features": ("NCHW", (2, 11, 6, 7)),
    "channels last": ("NHWC", (2, 9, 7, 12)),
    "few channels last": ("NHWC", (2, 5, 6, 3)),
    "tokens": (Tokens(5, 6, prefix=1), (2, 31, 20)),
    "tokens without prefix": (Tokens(4, 3), (2, 12, 9)),
    "registers": (Tokens(3, 4, prefix=5), (2, 17, 300)),
}
every_layout = pytest.mark.parametrize("name", LAYOUTS)


def features(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(LAYOUTS[name][1], generator=torch.Generator().manual_seed(0), dtype=dtype).to(DEVICE)


def some_map(kind: str, batch: int = 2, dtype: torch.dtype = torch.float32) -> Map:
    settings = {"strength": 2.0, "generator": torch.Generator().manual_seed(1), "dtype": dtype, "device": DEVICE}
    family = "separable" if kind == "separable" else "grid"
    m = ls.random_map(batch, (5, 4), family=family, **settings)
    return m.inverse() if kind == "inverse" else m


def fused(x: Tensor, m: Map, layout: Layout) -> Tensor:
    height, width = pixels_of(x, layout)
    return fused_unscale(x, m.displacement_lattices(height, width), layout)


@every_layout
@pytest.mark.parametrize("kind", ["grid", "separable", "inverse"])
def test_it_is_the_twin(name: str, kind: str):
    x, layout, m = features(name), LAYOUTS[name][0], some_map(kind)
    y, twin = fused(x, m, layout), ls.unscale(x, m, layout=layout, sampler="gather")
    assert y.shape == x.shape
    assert (y - twin).abs().max() < 1e-5
    assert not torch.allclose(y, x), "something moves"


@every_layout
def test_the_identity_changes_no_bit(name: str):
    x = features(name)
    assert torch.equal(fused(x, ls.identity_map(1, 6, device=DEVICE), LAYOUTS[name][0]), x)


@every_layout
def test_tables_may_lie_in_memory_as_they_like(name: str):
    x, layout, m = features(name), LAYOUTS[name][0], some_map("grid")
    along_x, along_y = m.displacements.unbind(1)
    turned = along_y.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(fused_unscale(x, (along_x, turned), layout), fused(x, m, layout))


@pytest.mark.parametrize("create_graph", [False, True])
def test_tables_may_come_as_one_or_as_two(create_graph: bool):
    x, layout = features("tokens").requires_grad_(), LAYOUTS["tokens"][0]
    displacements, answers = some_map("grid").displacements.requires_grad_(), []
    for tables in ((displacements,), displacements.unbind(1)):
        y = fused_unscale(x, tables, layout)
        answers.append((y, *torch.autograd.grad(y.square().sum(), (x, displacements), create_graph=create_graph)))
    assert all((one - other).abs().max() < 1e-5 for one, other in zip(*answers, strict=True))


def raw_parameters(family: str, batch: int = 2) -> list[Tensor]:
    """Of which maps are made: their borders stay where they are, so a gradient there is nobody's."""
    rng = torch.Generator().manual_seed(1)
    shapes = ((4, 4), (5, 3)) if family == "grid" else ((4,), (3,))
    return [torch.rand(batch, *s, generator=rng, dtype=torch.float64).to(DEVICE).requires_grad_() for s in shapes]


@every_layout
@pytest.mark.parametrize("family", ["grid", "separable"])
@pytest.mark.parametrize("maps", [2, 1])
def test_gradients_are_the_twins(name: str, family: str, maps: int):
    layout = LAYOUTS[name][0]
    gradients = []
    for warp in (fused, lambda x, m, layout: ls.unscale(x, m, layout=layout, sampler="gather")):
        x, raw = features(name, torch.float64).requires_grad_(), raw_parameters(family, maps)
        y = warp(x, ls.map_from_logits(*raw, family=family), layout)
        weights = torch.rand(y.shape, generator=torch.Generator().manual_seed(2), dtype=y.dtype).to(DEVICE)
        gradients.append(torch.autograd.grad((y * weights).sum(), (x, *raw)))
    for ours, twins in zip(*gradients, strict=True):
        assert (ours - twins).abs().max() < 1e-9 * (1 + twins.abs().max())


def test_gradcheck():
    x, raw = (
        features("features", torch.float64)[:1, :2, :3, :3].contiguous().requires_grad_(),
        raw_parameters("grid", 1),
    )
    assert torch.autograd.gradcheck(
        lambda x, *raw: fused(x, ls.map_from_logits(*raw), "NCHW"), (x, *raw), nondet_tol=1e-10, fast_mode=True
    )


@pytest.mark.parametrize("wanted", ["features", "map"])
def test_only_what_is_wanted(wanted: str):
    x, m = features("tokens").requires_grad_(wanted == "features"), some_map("grid")
    m.displacements.requires_grad_(wanted == "map")
    fused(x, m, Tokens(5, 6, prefix=1)).sum().backward()
    assert (x.grad is not None) == (wanted == "features")
    assert (m.displacements.grad is not None) == (wanted == "map")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_kept_and_coordinates_are_not(dtype: torch.dtype):
    x, m = features("tokens"), some_map("grid")
    y = fused(x.to(dtype), m, Tokens(5, 6, prefix=1))
    assert y.dtype == dtype
    assert (y.float() - fused(x.to(dtype).float(), m, Tokens(5, 6, prefix=1))).abs().max() < 1e-2 * x.abs().max()
    given = x.to(dtype).requires_grad_()
    fused(given, m, Tokens(5, 6, prefix=1)).sum().backward()
    assert given.grad.dtype == dtype


def test_double_features_keep_their_precision_under_single_maps():
    x, m = features("images", torch.float64), some_map("grid")
    y, twin = fused(x, m, "NCHW"), ls.unscale(x, m, sampler="gather")
    assert y.dtype == torch.float64
    assert torch.equal(fused(x, ls.identity_map(1, 6, device=DEVICE), "NCHW"), x)
    assert (y - twin).abs().max() < 1e-5


def test_strided_features_are_read_where_they_lie():
    x, m = features("images"), some_map("grid")
    for view in (x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        assert not view.is_contiguous()
        assert (fused(view, m, "NCHW") - fused(x, m, "NCHW")).abs().max() < 1e-6
        moved = view.detach().requires_grad_()
        fused(moved, m, "NCHW").square().sum().backward()
        plain = x.detach().requires_grad_()
        fused(plain, m, "NCHW").square().sum().backward()
        assert torch.allclose(moved.grad, plain.grad, atol=1e-5)


@pytest.mark.parametrize("part", [lambda x: x[:, :2], lambda x: x[..., ::2], lambda x: x[:1].expand(2, -1, -1, -1)])
def test_parts_of_larger_tensors_get_their_gradient(part):
    x, m = features("images"), some_map("grid")
    grads = []
    for warp in (lambda y: fused(y, m, "NCHW"), lambda y: ls.unscale(y, m, sampler="gather")):
        leaf = x.detach().requires_grad_()
        warp(part(leaf)).square().sum().backward()
        grads.append(leaf.grad)
    assert (grads[0] - grads[1]).abs().max() < 1e-5 * grads[1].abs().max()


def test_a_lost_map_gives_nan_and_reads_nothing_outside():
    x, m = features("images"), some_map("grid")
    displacements = m.displacements.clone()
    displacements[0] = torch.nan
    y = fused_unscale(x, (displacements[:, 0], displacements[:, 1]), "NCHW")
    assert y[0].isnan().all()
    assert y[1].isfinite().all()


def test_compiled_it_is_the_same():
    x, m = features("tokens"), some_map("grid")
    layout = Tokens(5, 6, prefix=1)

    def twice(x: Tensor, displacements: Tensor) -> Tensor:
        return 2 * fused_unscale(x, (displacements[:, 0], displacements[:, 1]), layout)

    displacements = m.displacements.clone().requires_grad_()
    y = torch.compile(twice, backend="aot_eager", fullgraph=True)(x, displacements)
    assert torch.equal(y, twice(x, displacements))
    y.sum().backward()
    assert displacements.grad is not None


@pytest.mark.parametrize("update", ["direct", "compose"])
def test_an_adapted_model_answers_and_learns_as_with_the_twin(update: str, monkeypatch: pytest.MonkeyPatch):
    settings = {
        "update": update,
        "knots": 4,
        "channels": (8, 8),
        "max_steps": 3,
        "fixed_steps": True,
        "solver": "picard",
    }
    found = []
    for fast in (True, False):
        monkeypatch.setattr(kernels, "available", lambda *_, fast=fast: fast)
        torch.manual_seed(0)
        base = timm.create_model("test_vit", num_classes=4, img_size=32)
        model = ls.adapt(base, dec_config(sites=("input", "blocks.1"), **settings)).to(DEVICE)
        for name, parameter in model.named_parameters():
            if ".to_x." in name or ".to_y." in name:
                torch.nn.init.normal_(parameter, std=0.3)
        logits, report = model(
            torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE), return_report=True
        )
        logits.square().sum().backward()
        found.append(
            [logits, *(site.map.displacements for site in report.values()), *(p.grad for p in model.parameters())]
        )
    for ours, twins in zip(*found, strict=True):
        assert (ours - twins).abs().max() <= 2e-4 * (0.1 + twins.abs().max())


@pytest.mark.parametrize("kind", ["grid", "separable", "inverse", "composition"])
def test_scale_and_unscale_use_it(kind: str, monkeypatch: pytest.MonkeyPatch):
    m = some_map("grid") @ some_map("separable") if kind == "composition" else some_map(kind)
    x = features("images")
    twins = [warp(x, m) for warp in (ls.scale, ls.unscale)]
    monkeypatch.setattr(kernels, "available", lambda *_: True)
    monkeypatch.setattr("localscale.sampling.SAMPLERS", {})  # nothing else is asked
    monkeypatch.setattr("localscale.warp.SAMPLERS", {"native": None})
    for warp, twin in zip((ls.scale, ls.unscale), twins, strict=True):
        assert (warp(x, m) - twin).abs().max() < 2e-5


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the kernels are used")
def test_without_a_gpu_the_twin_is_used():
    assert not kernels.available(torch.rand(1))
