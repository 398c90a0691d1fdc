"""Models with size networks, compiled and exported, give the outputs of eager mode."""

from pathlib import Path

import onnxruntime
import pytest
import torch
from backbones import VIT, sized, vit
from torch import Tensor

from localscale import AdaptedModel, SizeNetwork

SITES = ("input", "blocks.0")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def made(**settings) -> AdaptedModel:
    small = {"knots": 3, "network": SizeNetwork(width=8, blocks=0, resolution=16)}
    model = sized(*SITES, base=vit(depth=1), **small | settings)
    with torch.no_grad():
        _, report = model(VIT.images(), return_report=True)
    assert min(site.map.mean_displacement().min() for site in report.values()) > 1e-3, "every model agrees there"
    return model


def run(model: AdaptedModel, compiled) -> tuple[Tensor, Tensor]:
    """Return the output, and all gradients in one vector."""
    model.zero_grad()
    answer = compiled(VIT.images())
    answer.square().sum().backward()
    return answer.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.slow
def test_compiled_with_gradients():
    model = made()
    (expected, gradient), (answer, found) = (
        run(model, call) for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager"))
    )
    torch.testing.assert_close(answer, expected, atol=1e-5, rtol=0)
    assert torch.cosine_similarity(gradient.double(), found.double(), dim=0) > 0.999


@pytest.mark.slow
def test_exported_for_any_batch_size():
    model = made()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (VIT.images(),), dynamic_shapes=(({0: batch},),)).module()
    with torch.no_grad():
        for images in (VIT.images(), VIT.images(3, seed=2)):
            torch.testing.assert_close(program(images), model(images), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_onnx(tmp_path: Path):
    model, path = made(), tmp_path / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(model, (VIT.images(),), dynamo=True, optimize=False, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = (value.name for value in session.get_inputs())
    for seed in (1, 2):
        images = VIT.images(seed=seed)
        (answer,) = session.run(None, {name: images.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(answer), model(images), atol=1e-4, rtol=0)
            with model.disabled():
                assert (torch.from_numpy(answer) - model(images)).abs().max() > 1e-3


# Images larger than the backbone's input


def large(batch: int = 2, seed: int = 1) -> Tensor:
    return torch.randn(batch, 3, 90, 120, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
def test_large_images_compiled():
    model = made(source_size=(90, 120))
    with torch.no_grad():
        expected = model(large())
        found = torch.compile(model, fullgraph=True, backend="aot_eager")(large())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_large_images_exported(tmp_path: Path):
    model, path = made(source_size=(90, 120)), tmp_path / "model.onnx"
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (large(),), dynamic_shapes=(({0: batch},),)).module()
    with torch.no_grad():
        torch.onnx.export(model, (large(),), dynamo=True, optimize=False, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = (value.name for value in session.get_inputs())
    for seed in (1, 2):
        images = large(seed=seed)
        (answer,) = session.run(None, {name: images.numpy()})
        with torch.no_grad():
            expected, more = model(images), large(3, seed=seed)
            torch.testing.assert_close(torch.from_numpy(answer), expected, atol=1e-4, rtol=0)
            torch.testing.assert_close(program(more), model(more), atol=1e-5, rtol=0)
            with model.disabled():
                assert (expected - model(images)).abs().max() > 1e-3
