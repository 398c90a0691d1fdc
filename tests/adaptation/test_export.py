"""Compiled and exported models give the outputs of eager mode."""

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from backbones import SMALL, randomise_heads, vit
from dec_configs import dec_config
from torch import Tensor, nn

from localscale import AdaptedModel, adapt
from localscale.errors import ConfigError

TINY = {**SMALL, "knots": 3, "channels": (4,), "fixed_steps": True}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def made(*sites: str, **settings) -> AdaptedModel:
    model = adapt(vit(depth=1), dec_config(sites=sites, **TINY | settings)).eval()
    return randomise_heads(model, std=0.1)


def images(seed: int = 1) -> Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


def run(model: AdaptedModel, compiled) -> tuple[Tensor, Tensor]:
    """Return the output, and all gradients in one vector."""
    model.zero_grad()
    answer = compiled(images())
    answer.square().sum().backward()
    return answer.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def check_moved(model: AdaptedModel) -> None:
    """Raise unless the maps differ from the identity, where every model would agree."""
    _, report = model(images(), return_report=True)
    assert min(site.map.mean_displacement().min() for site in report.values()) > 1e-5


def check_compiled(model: AdaptedModel, **how) -> None:
    check_moved(model)
    expected, gradient = run(model, model)
    answer, compiled = run(model, torch.compile(model, fullgraph=True, **how))
    torch.testing.assert_close(answer, expected, atol=1e-5, rtol=0)
    cosine = torch.cosine_similarity(gradient.double(), compiled.double(), dim=0)
    assert cosine >= 0.999
    for one in (compiled, gradient):
        assert one.isfinite().all()


# Compiling


def test_compiled_in_eval():
    """Inside a graph the loop cannot stop early; converged samples keep their values, so the outputs are equal."""
    model = made("input", "blocks.0", max_steps=2, tolerance=0.1, fixed_steps=False, family="separable")
    check_moved(model)
    assert (model(images(), return_report=True)[1]["blocks.0"].steps < 2).any()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for seed in (1, 2):
        with torch.no_grad():
            answer, report = compiled(images(seed), return_report=True)
            expected, sites = model(images(seed), return_report=True)
        torch.testing.assert_close(answer, expected, atol=1e-5, rtol=0)
        assert list(report) == ["input", "blocks.0"]
        for path, site in sites.items():
            torch.testing.assert_close(report[path].map.state(), site.map.state(), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_compiled_with_gradients():
    model = made("blocks.0", max_steps=3)
    _, report = model(images(), return_report=True)
    assert report["blocks.0"].converged.all(), "gradients of what has not converged may differ"
    check_compiled(model, backend="aot_eager")


@pytest.mark.slow
def test_compiled_before_it_ever_ran():
    """The first call must not leave state behind that breaks the second."""
    base, pictures = nn.Sequential(nn.Conv2d(3, 4, 1)), images()[..., :16, :16]
    model = adapt(base, dec_config(sites=("input",), max_steps=2, **TINY), input_size=(3, 16, 16))
    compiled = torch.compile(randomise_heads(model), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        answers = [compiled(pictures) for _ in range(3)]
        for answer in answers:
            torch.testing.assert_close(answer, model(pictures), atol=1e-5, rtol=0)
        with model.disabled():
            torch.testing.assert_close(compiled(pictures), base(pictures), atol=1e-6, rtol=0)
        torch.testing.assert_close(compiled(pictures), answers[0], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_compiled_by_inductor():
    check_compiled(made("input", "blocks.0", max_steps=3))


# Exporting


def test_exported_for_any_batch_size():
    model = made("blocks.0", max_steps=2, fixed_steps=False, source="image", tolerance=1e-2)
    check_moved(model)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (images(),), dynamic_shapes=(({0: batch},),)).module()
    with torch.no_grad():
        for seen in (images(), torch.cat((images(2), images(3)))):
            torch.testing.assert_close(program(seen), model(seen), atol=1e-5, rtol=0)


def test_descent_cannot_be_exported():
    with pytest.raises(ConfigError, match=r"^Descent differentiates inside forward, which an exported program cannot"):
        torch.export.export(made("blocks.0", max_steps=2, update="descent"), (images(),))


@pytest.mark.parametrize(
    ("site", "settings"),
    [
        ("input", {}),
        pytest.param("blocks.0", {"update": "compose", "family": "separable"}, marks=pytest.mark.slow),
    ],
)
def test_onnx(site: str, settings: dict[str, str], tmp_path: Path):
    model, path = made(site, max_steps=2, **settings), tmp_path / "model.onnx"
    check_moved(model)
    torch.onnx.export(model, (images(),), dynamo=True, verbose=False).save(path)
    onnx.checker.check_model(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = (value.name for value in session.get_inputs())
    for seed in (1, 2):
        (answer,) = session.run(None, {name: images(seed).numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(answer), model(images(seed)), atol=1e-4, rtol=0)
            with model.disabled():
                assert (torch.from_numpy(answer) - model(images(seed))).abs().max() > 1e-6
