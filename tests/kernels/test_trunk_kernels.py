"""The convolutions of a trunk in kernels against plain PyTorch."""

import pytest
import torch
from kernel_inputs import DEVICE, use_kernels

from localscale.canonicalizer.trunks import EfficientNetLite0, FoldedConvolution
from localscale.kernels import trunk as kernels_of_trunk

LAYERS = {
    "expand": FoldedConvolution(16, 96),
    "wide": FoldedConvolution(144, 200),
    "reduce": FoldedConvolution(96, 24, linear=True),
    "depthwise": FoldedConvolution(40, 40, 3, groups=40),
    "strided": FoldedConvolution(72, 72, 3, stride=2, groups=72),
    "large": FoldedConvolution(16, 16, 5, groups=16),
    "large strided": FoldedConvolution(16, 16, 5, stride=2, groups=16),
}


@pytest.mark.parametrize("size", [(8, 8), (7, 10), (1, 3)])
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_layers_match(name: str, size: tuple[int, int], monkeypatch):
    layer = LAYERS[name].to(DEVICE)
    x = torch.randn(2, layer.in_channels, *size, generator=torch.Generator().manual_seed(0)).half().to(DEVICE)
    x = x.contiguous(memory_format=torch.channels_last)
    expected = layer.float()(x.float())
    called = []
    for function in ("bounded_pointwise", "bounded_depthwise"):
        monkeypatch.setattr(kernels_of_trunk, function, _counted(getattr(kernels_of_trunk, function), called))
    use_kernels(monkeypatch)
    found = layer(x)
    assert called
    assert found.dtype == torch.float16
    assert found.shape == expected.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.float(), expected, atol=1e-2, rtol=1e-2)


def _counted(function, called: list):
    def call(*arguments, **named):
        called.append(function)
        return function(*arguments, **named)

    return call


@torch.no_grad()
def test_features_match(monkeypatch):
    torch.manual_seed(0)
    trunk = EfficientNetLite0(16, absolute=False).to(DEVICE)
    looks = torch.rand(1, 3, 32, 48).to(DEVICE)
    expected = trunk.features(looks)
    use_kernels(monkeypatch)
    for found, plain in zip(trunk.features(looks.half()), expected, strict=True):
        torch.testing.assert_close(found.float(), plain, atol=5e-3, rtol=5e-2)


def test_gradients_and_full_precision_need_no_kernel(monkeypatch):
    use_kernels(monkeypatch)
    layer = LAYERS["expand"].to(DEVICE)
    half = torch.rand(1, 16, 4, 4).half().to(DEVICE).contiguous(memory_format=torch.channels_last)
    assert layer(half).requires_grad
    with torch.no_grad():
        torch.testing.assert_close(layer(half.float()), layer(half).float(), atol=1e-2, rtol=1e-2)
