"""Adapted models with size networks: policies, modes, sources, copies, saving and precision, at every kind of site."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from backbones import RESNET, VIT, Backbone, sized
from torch import Tensor, nn

from localscale import AdaptedModel, Picard
from localscale.errors import ConvergenceError, ConvergenceWarning
from localscale.warp import scale, unscale

SITES = ("input", "blocks.0")
IMAGES = VIT.images(3)


def answer(model: nn.Module, images: Tensor = IMAGES) -> Tensor:
    with torch.no_grad():
        return model(images)


@pytest.mark.parametrize("site", SITES)
def test_policies(site: str):
    solver = Picard(max_steps=2, tolerance=1e-4)
    with pytest.warns(ConvergenceWarning, match="stopped above the tolerance 0.0001 after 2 steps"):
        warned = answer(sized(site, solver=solver))
    assert not torch.equal(warned, answer(VIT.build()))
    with pytest.raises(ConvergenceError, match="3 of 3 fixed points stopped above the tolerance"):
        answer(sized(site, solver=solver, on_failure="raise"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        still = answer(sized(site, solver=solver, on_failure="identity"))
    torch.testing.assert_close(still, answer(VIT.build()), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("backbone", "site"), [(VIT, "input"), (VIT, "blocks.0"), (RESNET, "layer2")], ids=["input", "tokens", "NCHW"]
)
def test_the_report_has_sizes_and_every_parameter_a_gradient(backbone: Backbone, site: str):
    model = sized(site, backbone=backbone)
    found, report = model(backbone.images(), return_report=True)
    assert report[site].map.mean_displacement().min() > 1e-3
    for size, weight in (report[site].sizes_before, report[site].sizes_after):
        assert size.shape == weight.shape
        assert size.abs().max() < 2
        assert 0 <= weight.min() <= weight.max() <= 1
    found.square().sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()} == set()


def test_maps_from_the_image_at_a_latent_site():
    model = sized("blocks.0", source="image")
    canonicalizer = model.canonicalizers["blocks.0"]
    assert canonicalizer.in_channels == 3
    _, report = model(IMAGES, return_report=True)
    assert torch.equal(report["blocks.0"].map.state(), canonicalizer(IMAGES).map.state())


def test_a_dense_model_is_scaled_back():
    torch.manual_seed(0)
    base = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 4, 1)).eval()
    model = sized("input", base=base, mode="equivariant")
    with torch.no_grad():
        found, report = model(IMAGES, return_report=True)
        m = report["input"].map
        torch.testing.assert_close(found, scale(base(unscale(IMAGES, m)), m), atol=1e-6, rtol=0)
        assert (found - base(IMAGES)).abs().max() > 1e-2


def test_saved_and_loaded(tmp_path: Path):
    model = sized(*SITES)
    model.save_pretrained(tmp_path)
    loaded = AdaptedModel.from_pretrained(tmp_path, VIT.build())
    assert loaded.dec_config == model.dec_config
    assert [float(c.network.trust) for c in loaded.canonicalizers.values()] == [0.5, 0.5]
    assert torch.equal(answer(loaded), answer(model))


def test_disabled_copied_and_unwrapped():
    base = VIT.build()
    expected, model = answer(base), sized(*SITES, base=base)
    moved = answer(model)
    assert not torch.equal(moved, expected)
    with model.disabled():
        assert torch.equal(answer(model), expected)
    other = copy.deepcopy(model)
    assert torch.equal(answer(other), moved)
    for canonicalizer in other.canonicalizers.values():
        canonicalizer.network.trust.zero_()
    torch.testing.assert_close(answer(other), expected, atol=1e-5, rtol=0)
    assert torch.equal(answer(model), moved), "the copy has weights of its own"
    assert torch.equal(answer(model.unwrap()), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype):
    images = IMAGES.to(dtype)
    model = sized(*SITES).to(dtype)
    found, report = model(images, return_report=True)
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    assert found.dtype == dtype
    assert {site.map.dtype for site in report.values()} == {precise}
    assert min(site.map.mean_displacement().min() for site in report.values()) > 1e-3
    found.square().sum().backward()
    assert all(p.grad.dtype == p.dtype and p.grad.isfinite().all() for p in model.parameters())


def test_autocast_keeps_the_map_in_full_precision():
    model = sized(*SITES)
    _, full = model(IMAGES, return_report=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, report = model(IMAGES, return_report=True)
        loss = model.size_loss(IMAGES)
        sizes = report["input"].sizes_after
    torch.testing.assert_close(sizes, full["input"].sizes_after)
    assert (found.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(report["input"].map.state(), full["input"].map.state())
    (found.float().square().sum() + loss).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
