"""The warp kernel against plain PyTorch, in Triton's interpreter where there is no GPU."""

import itertools

import pytest
import timm
import torch
from dec_configs import dec_config
from kernel_inputs import DEVICE, use_kernels
from torch import Tensor

import localscale as ls
from localscale import kernels
from localscale.kernels.warp import fused_unscale
from localscale.layouts import Layout, Tokens, pixels_of
from localscale.maps.base import Map

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
QUICK = ("images", "tokens")


def cases(*others: object) -> list[object]:
    """Return every layout once, each with the next of the other parameters; most of them are slow."""
    chosen = zip(LAYOUTS, itertools.cycle(others), strict=False)
    return [pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.slow) for case in chosen]


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


@pytest.mark.parametrize(("name", "kind"), cases("grid", "separable", "inverse"))
def test_values_match_plain_pytorch(name: str, kind: str):
    x, layout, m = features(name), LAYOUTS[name][0], some_map(kind)
    y, expected = fused(x, m, layout), ls.unscale(x, m, layout=layout, sampler="gather")
    assert y.shape == x.shape
    assert (y - expected).abs().max() < 1e-5
    assert not torch.allclose(y, x), "something moves"
    assert torch.equal(fused(x, ls.identity_map(1, 6, device=DEVICE), layout), x), "the identity changes no bit"


def test_lattices_may_have_any_strides():
    x, layout, m = features("tokens"), LAYOUTS["tokens"][0], some_map("grid")
    along_x, along_y = m.displacements.unbind(1)
    turned = along_y.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(fused_unscale(x, (along_x, turned), layout), fused(x, m, layout))


@pytest.mark.parametrize("create_graph", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_lattices_may_be_one_tensor_or_two(create_graph: bool):
    x, layout = features("tokens").requires_grad_(), LAYOUTS["tokens"][0]
    displacements, answers = some_map("grid").displacements.requires_grad_(), []
    for lattices in ((displacements,), displacements.unbind(1)):
        y = fused_unscale(x, lattices, layout)
        answers.append((y, *torch.autograd.grad(y.square().sum(), (x, displacements), create_graph=create_graph)))
    assert all((one - other).abs().max() < 1e-5 for one, other in zip(*answers, strict=True))


def raw_parameters(family: str, batch: int = 2) -> list[Tensor]:
    """Return parameters of random maps; unlike displacements, they have no entries for the fixed borders."""
    rng = torch.Generator().manual_seed(1)
    shapes = ((4, 4), (5, 3)) if family == "grid" else ((4,), (3,))
    return [torch.rand(batch, *s, generator=rng, dtype=torch.float64).to(DEVICE).requires_grad_() for s in shapes]


@pytest.mark.parametrize(("name", "options"), cases(("grid", 2), ("separable", 1), ("grid", 1), ("separable", 2)))
def test_gradients_match_plain_pytorch(name: str, options: tuple[str, int]):
    layout, (family, maps) = LAYOUTS[name][0], options
    gradients = []
    for warp in (fused, lambda x, m, layout: ls.unscale(x, m, layout=layout, sampler="gather")):
        x, raw = features(name, torch.float64).requires_grad_(), raw_parameters(family, maps)
        y = warp(x, ls.map_from_logits(*raw, family=family), layout)
        weights = torch.rand(y.shape, generator=torch.Generator().manual_seed(2), dtype=y.dtype).to(DEVICE)
        gradients.append(torch.autograd.grad((y * weights).sum(), (x, *raw)))
    for ours, expected in zip(*gradients, strict=True):
        assert (ours - expected).abs().max() < 1e-9 * (1 + expected.abs().max())


@pytest.mark.parametrize("wanted", ["features", "map"])
def test_only_needed_gradients_are_computed(wanted: str):
    x, m = features("tokens").requires_grad_(wanted == "features"), some_map("grid")
    m.displacements.requires_grad_(wanted == "map")
    fused(x, m, Tokens(5, 6, prefix=1)).sum().backward()
    assert (x.grad is not None) == (wanted == "features")
    assert (m.displacements.grad is not None) == (wanted == "map")


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_half_precision_features_keep_full_precision_coordinates(dtype: torch.dtype):
    x, m = features("tokens"), some_map("grid")
    y = fused(x.to(dtype), m, Tokens(5, 6, prefix=1))
    assert y.dtype == dtype
    assert (y.float() - fused(x.to(dtype).float(), m, Tokens(5, 6, prefix=1))).abs().max() < 1e-2 * x.abs().max()
    given = x.to(dtype).requires_grad_()
    fused(given, m, Tokens(5, 6, prefix=1)).sum().backward()
    assert given.grad.dtype == dtype


def test_float64_features_keep_their_precision_under_float32_maps():
    x, m = features("images", torch.float64), some_map("grid")
    y, expected = fused(x, m, "NCHW"), ls.unscale(x, m, sampler="gather")
    assert y.dtype == torch.float64
    assert torch.equal(fused(x, ls.identity_map(1, 6, device=DEVICE), "NCHW"), x)
    assert (y - expected).abs().max() < 1e-5


@pytest.mark.slow
def test_features_may_have_any_strides():
    x, m = features("images"), some_map("grid")
    for view in (x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        assert not view.is_contiguous()
        assert (fused(view, m, "NCHW") - fused(x, m, "NCHW")).abs().max() < 1e-6
        moved = view.detach().requires_grad_()
        fused(moved, m, "NCHW").square().sum().backward()
        plain = x.detach().requires_grad_()
        fused(plain, m, "NCHW").square().sum().backward()
        assert torch.allclose(moved.grad, plain.grad, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("part", [lambda x: x[:, :2], lambda x: x[..., ::2], lambda x: x[:1].expand(2, -1, -1, -1)])
def test_slices_of_larger_tensors_get_their_gradient(part):
    x, m = features("images"), some_map("grid")
    grads = []
    for warp in (lambda y: fused(y, m, "NCHW"), lambda y: ls.unscale(y, m, sampler="gather")):
        leaf = x.detach().requires_grad_()
        warp(part(leaf)).square().sum().backward()
        grads.append(leaf.grad)
    assert (grads[0] - grads[1]).abs().max() < 1e-5 * grads[1].abs().max()


def test_a_nan_map_gives_nan_and_reads_nothing_outside():
    x, m = features("images"), some_map("grid")
    displacements = m.displacements.clone()
    displacements[0] = torch.nan
    y = fused_unscale(x, (displacements[:, 0], displacements[:, 1]), "NCHW")
    assert y[0].isnan().all()
    assert y[1].isfinite().all()


def test_compiled_equals_eager():
    x, m = features("tokens"), some_map("grid")
    layout = Tokens(5, 6, prefix=1)

    def twice(x: Tensor, displacements: Tensor) -> Tensor:
        return 2 * fused_unscale(x, (displacements[:, 0], displacements[:, 1]), layout)

    displacements = m.displacements.clone().requires_grad_()
    y = torch.compile(twice, backend="aot_eager", fullgraph=True)(x, displacements)
    assert torch.equal(y, twice(x, displacements))
    y.sum().backward()
    assert displacements.grad is not None


@pytest.mark.slow
@pytest.mark.parametrize("update", ["direct", "compose"])
def test_an_adapted_model_matches_plain_pytorch(update: str, monkeypatch: pytest.MonkeyPatch):
    settings = {"knots": 4, "channels": (8, 8), "max_steps": 3, "fixed_steps": True, "solver": "picard"}
    found = []
    for on in (True, False):
        use_kernels(monkeypatch, on)
        torch.manual_seed(0)
        base = timm.create_model("test_vit", num_classes=4, img_size=32)
        model = ls.adapt(base, dec_config(sites=("input", "blocks.1"), update=update, **settings)).to(DEVICE)
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
    for ours, expected in zip(*found, strict=True):
        assert (ours - expected).abs().max() <= 2e-4 * (0.1 + expected.abs().max())


@pytest.mark.parametrize(
    "kind", ["composition", *[pytest.param(kind, marks=pytest.mark.slow) for kind in ("grid", "separable", "inverse")]]
)
def test_scale_and_unscale_use_the_kernel(kind: str, monkeypatch: pytest.MonkeyPatch):
    m = some_map("grid") @ some_map("separable") if kind == "composition" else some_map(kind)
    x = features("images")
    plain = [warp(x, m) for warp in (ls.scale, ls.unscale)]
    use_kernels(monkeypatch)
    monkeypatch.setattr("localscale.sampling.SAMPLERS", {})  # so that plain PyTorch would fail
    monkeypatch.setattr("localscale.warp.SAMPLERS", {"native": None})
    for warp, expected in zip((ls.scale, ls.unscale), plain, strict=True):
        assert (warp(x, m) - expected).abs().max() < 2e-5


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the kernels are used")
def test_kernels_are_not_available_without_a_gpu():
    assert not kernels.available(torch.rand(1))
