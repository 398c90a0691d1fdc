"""The controls: a fixed zoom of the centre, and random warps in training alone."""

import pytest
import torch
import torch.nn.functional as F
from baseline_inputs import LABELS, cnn, cross_entropy, draws, images
from torch import nn

from localscale.conventions import resize_cubic
from localscale.errors import ConfigError
from localscale.lab.methods import CentreZoom, RandomScaling, RandomWarp
from localscale.lab.methods.controls import centre_map
from localscale.warp import scale, unscale


def test_the_middle_is_enlarged_by_the_factor_and_the_sides_stay():
    m = centre_map(2.0, dtype=torch.float64)
    points = torch.tensor([[[0.3, 0.5], [0.7, 0.26], [0.0, 1.0], [0.1, 0.9]]], dtype=torch.float64)
    expected = torch.tensor([[0.4, 0.5], [0.6, 0.38], [0.0, 1.0], [0.15, 0.85]], dtype=torch.float64)
    torch.testing.assert_close(m(points)[0], expected)
    factor = 1 / m.local_scale(points)[0]
    torch.testing.assert_close(factor[:2], torch.full((2,), 2.0, dtype=torch.float64))
    assert m.min_determinant() > 0


def test_a_magnification_of_one_is_the_backbone():
    backbone = cnn()
    assert torch.equal(CentreZoom(magnification=1.0).build(backbone)(images()), backbone(images()))
    assert not torch.allclose(CentreZoom().build(backbone)(images()), backbone(images()), atol=1e-4)


def test_masks_are_scaled_back():
    """A pointwise segmenter of a smooth image gives nearly the mask that it gives without the zoom."""
    segmenter = nn.Conv2d(3, 5, 1)
    zoomed = CentreZoom(magnification=1.3, mode="equivariant").build(segmenter)
    shown = images(2, 64)
    m = centre_map(1.3, dtype=torch.float32)
    torch.testing.assert_close(zoomed(shown), scale(segmenter(unscale(shown, m)), m))
    assert (zoomed(shown) - segmenter(shown)).abs().mean() < 0.02


@pytest.mark.parametrize("mode", ["invariant", "equivariant"])
def test_large_images_are_zoomed_to_the_backbones_size(mode: str):
    base = cnn() if mode == "invariant" else nn.Conv2d(3, 4, 3, padding=1)
    model = CentreZoom(magnification=1.0, mode=mode).build(base, input_size=(3, 24, 16), source_size=(48, 32))
    large = images(2, 48)[:, :, :, :32]
    assert model(large).shape == ((2, 4) if mode == "invariant" else (2, 4, 48, 32))
    if mode == "invariant":
        torch.testing.assert_close(model(large), base(resize_cubic(large, 24, 16)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("magnification", [0.5, 0.0, float("nan"), float("inf")])
def test_a_magnification_that_folds_or_is_none_is_refused(magnification: float):
    CentreZoom(magnification=0.6).check()
    with pytest.raises(ConfigError, match=r"--method\.magnification"):
        CentreZoom(magnification=magnification).check()


def test_modes_fit_their_answers():
    CentreZoom().check_answers(dense=False)
    with pytest.raises(ConfigError, match="use equivariant"):
        CentreZoom().check_answers(dense=True)


def test_a_random_warp_scales_images_and_masks_in_training_alone():
    method = RandomWarp(RandomScaling(strength=2.0, family="separable"))
    backbone = cnn()
    assert method.build(backbone) is backbone, "at test time there is no warp"
    u = method.scaling.maps(draws(), "warp")
    found = method.losses(backbone, images(), LABELS, cross_entropy, draws())
    assert torch.equal(found["loss"], F.cross_entropy(backbone(unscale(images(), u)), LABELS))
    assert float(found["displacement"]) == pytest.approx(float(u.mean_displacement().mean()))
    segmenter, masks = nn.Conv2d(3, 4, 1), torch.randint(0, 4, (3, 32, 32))
    found = method.losses(segmenter, images(), masks, cross_entropy, draws())
    expected = F.cross_entropy(segmenter(unscale(images(), u)), unscale(masks, u, mode="nearest"))
    assert torch.equal(found["loss"], expected)
    assert (unscale(masks, u, mode="nearest") != masks).any()


def test_settings_of_the_warp_are_checked():
    with pytest.raises(ConfigError, match="strength is -1"):
        RandomWarp(RandomScaling(strength=-1.0)).check()
