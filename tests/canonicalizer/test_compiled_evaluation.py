import copy
import functools

import pytest
import torch
from torch import Tensor

from localscale.canonicalizer import Canonicalizer, DECConfig

# The compiler looks at the gradients of what it is given, and the solver gives it what has none.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

UPDATES = [("compose", "unrolled"), ("direct", "implicit")]


def moving(update: str, gradient: str) -> Canonicalizer:
    torch.manual_seed(0)
    config = DECConfig(knots=5, update=update, gradient=gradient, solver="plain", max_steps=3, fixed_steps=True)
    found = Canonicalizer(1, (5, 5), config)
    for head in (found.network.to_x, found.network.to_y):
        torch.nn.init.normal_(head.weight, std=0.05)
    return found


def solve(canonicalizer: Canonicalizer, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    canonicalizer.zero_grad()
    state = canonicalizer(images).map.state()
    state.square().sum().backward()
    return state.detach(), [p.grad.clone() for p in canonicalizer.parameters() if p.grad is not None]


def assert_compiled_agrees(update: str, gradient: str) -> None:
    canonicalizer = moving(update, gradient)
    images = torch.rand(2, 1, 28, 28)
    state, gradients = solve(canonicalizer, images)
    canonicalizer.compile_evaluation()
    compiled_state, compiled_gradients = solve(canonicalizer, images)
    torch.testing.assert_close(compiled_state, state, rtol=0, atol=1e-5)
    for compiled, plain in zip(compiled_gradients, gradients, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("update", "gradient"), UPDATES)
def test_compiled_and_plain_agree(update, gradient, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    assert_compiled_agrees(update, gradient)


@pytest.mark.slow
@pytest.mark.parametrize(("update", "gradient"), UPDATES)
def test_compiled_by_the_default_backend_and_plain_agree(update, gradient):
    assert_compiled_agrees(update, gradient)


def test_an_update_that_differentiates_is_left_alone():
    config = DECConfig(update="gradient", gradient="unrolled", max_steps=2, fixed_steps=True)
    canonicalizer = Canonicalizer(1, (6, 6), config)
    canonicalizer.compile_evaluation()
    assert canonicalizer(torch.rand(1, 1, 28, 28)).map.displacement().item() == 0


def test_a_canonicalizer_can_be_copied():
    images = torch.rand(1, 1, 28, 28)
    original = moving("direct", "implicit")
    twin = copy.deepcopy(original)
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.zero_()
        assert twin(images).map.displacement().item() > 0
        assert original(images).map.displacement().item() == 0
