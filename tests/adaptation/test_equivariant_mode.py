"""Scale back the output of a site, or of the whole model."""

import pytest
import timm
import torch
from backbones import SMALL, TIMM_SWIN, VIT, gradients, randomise_heads
from dec_configs import dec_config
from torch import Tensor, nn

from localscale import adapt
from localscale.errors import SiteError
from localscale.warp import scale, unscale


def answer(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model(images)


# Equivariant at the input


def segmenter() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 4, 1)).eval()


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_logits_are_scaled_back(size: tuple[int, int]):
    base, images = segmenter(), torch.randn(2, 3, *size) * torch.linspace(0, 5, size[1])
    expected = answer(base, images)
    config = dec_config(sites=("input",), mode="equivariant", fixed_steps=True, **SMALL)
    model = adapt(base, config, input_size=(3, 32, 32))
    torch.testing.assert_close(answer(model, images), expected, atol=1e-5, rtol=0)
    randomise_heads(model, std=3.0)
    with torch.no_grad():
        found, report = model(images, return_report=True)
        m = report["input"].map
        assert m.mean_displacement().min() > 0.01
        torch.testing.assert_close(found, scale(base(unscale(images, m)), m), atol=1e-6, rtol=0)
        assert (found - base(unscale(images, m))).abs().max() > 1e-2
        with model.disabled():
            assert torch.equal(model(images), expected)
    assert all(gradient.any() for gradient in gradients(model, images).values())


def test_an_output_without_pixels_cannot_be_scaled_back():
    model = VIT.adapted(mode="equivariant")
    with pytest.raises(SiteError) as error:
        model(VIT.images())
    assert str(error.value) == (
        'mode="equivariant" at the input scales the answer back, but the model returned (2, 5); '
        "expected (batch, classes, height, width), or for each image a dictionary with boxes; "
        'use mode="invariant" for other answers'
    )
    assert model.channel.current is None


@pytest.mark.parametrize("width", [24, 16])
def test_a_module_that_changes_the_layout_is_not_scaled_back_wrongly(width: int):
    """timm's Swin takes NCHW images into patch_embed and gets NHWC features out of it, 16×16 of them here."""
    base = timm.create_model("swin_tiny_patch4_window7_224", **{**TIMM_SWIN, "embed_dim": width}).eval()
    images = VIT.images()
    config = dec_config(sites=("patch_embed",), mode="equivariant", fixed_steps=True, **SMALL)
    model = randomise_heads(adapt(base, config), std=3.0)
    entered = []
    base.layers[0].register_forward_pre_hook(lambda _, args: entered.append(args[0].detach()))
    try:
        _, report = model(images, return_report=True)
    except SiteError:
        return  # an error that names the limit is correct, too
    m = report["patch_embed"].map
    with torch.no_grad():
        expected = scale(base.patch_embed.wrapped(unscale(images, m)), m, layout="NHWC")
    torch.testing.assert_close(entered[0], expected, atol=1e-5, rtol=0)
