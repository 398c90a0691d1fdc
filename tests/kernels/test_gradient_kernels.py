"""A solve's gradients by kernels against autograd on the plain twin."""

import copy

import pytest
import torch
from dec_configs import dec_config
from kernel_inputs import DEVICE, canonicalizer_for, features_for
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import localscale as ls
from localscale import kernels
from localscale.canonicalizer import kernel_solver
from localscale.kernels import warp
from localscale.kernels.warp import fused_unscale, unscale_with_separate_gradients

pytestmark = pytest.mark.filterwarnings("ignore:some fixed points")
ASKED = torch.randn(2, 2, 4, 5, generator=torch.Generator().manual_seed(1)).to(DEVICE)


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def by_kernels(monkeypatch: pytest.MonkeyPatch, on: bool = True) -> None:
    monkeypatch.setattr(kernels, "available", lambda *_: on)


def slopes(canonicalizer: ls.Canonicalizer, features: Tensor, upstream: Tensor = ASKED) -> list[Tensor]:
    """Gradients to the features and every weight, where that to the displacements is ``upstream``."""
    features = features.detach().requires_grad_()
    displacements = canonicalizer(features).map.displacements
    return list(torch.autograd.grad(displacements, [features, *canonicalizer.parameters()], upstream))


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-4) -> None:
    for ours, twins in zip(found, expected, strict=True):
        assert (ours - twins).abs().max() <= tolerance * twins.abs().max() + 1e-6


@pytest.mark.parametrize(
    ("update", "gradient", "in_channels", "fixed"),
    [
        ("direct", "implicit", 3, True),
        ("direct", "implicit", 6, False),
        ("direct", "phantom(2)", 6, True),
        ("compose", "implicit", 6, True),
        ("compose", "phantom(2)", 6, True),
        ("compose", "unrolled", 6, True),
    ],
)
def test_gradients_are_the_twins(update, gradient, in_channels, fixed, monkeypatch: pytest.MonkeyPatch):
    spread = 1.0 if update == "direct" else 0.3
    canonicalizer = canonicalizer_for(in_channels, update, fixed, (16, 16), spread, gradient=gradient)
    solved: list[bool] = []
    solve_with_kernels = kernel_solver.solve_with_kernels

    def count(*arguments, **settings):
        solved.append(True)
        return solve_with_kernels(*arguments, **settings)

    monkeypatch.setattr(kernel_solver, "solve_with_kernels", count)
    features, answers = features_for(in_channels), []
    for on in (False, True):
        by_kernels(monkeypatch, on)
        answers.append(slopes(canonicalizer, features))
    assert len(solved) == (gradient != "unrolled"), "found by kernels, where not every step is recorded"
    assert_close(answers[1], answers[0])
    assert min(slope.abs().max() for slope in answers[0]) > 1e-4


def test_a_gradient_may_come_in_any_layout(monkeypatch: pytest.MonkeyPatch):
    by_kernels(monkeypatch)
    canonicalizer, features = canonicalizer_for(6, "direct", True, (16, 16), max_steps=2), features_for(6)
    turned = ASKED.flatten(1).T.contiguous().T.unflatten(1, ASKED.shape[1:])
    assert not turned.is_contiguous()
    assert_close(slopes(canonicalizer, features, turned), slopes(canonicalizer, features), 1e-6)


def test_a_gradient_that_is_lost_stays_lost(monkeypatch: pytest.MonkeyPatch):
    by_kernels(monkeypatch)
    upstream = ASKED.clone()
    upstream[0, 0, 1, 1] = torch.nan
    found = slopes(canonicalizer_for(6, "direct", True, (16, 16), max_steps=2), features_for(6), upstream)
    assert not found[0].isfinite().all()
    assert not found[1].isfinite().all(), "or nobody would skip the step"


@pytest.mark.parametrize("on", [False, True])
def test_a_replica_learns_though_it_has_no_parameters(on: bool, monkeypatch: pytest.MonkeyPatch):
    """As in ``nn.DataParallel``."""
    by_kernels(monkeypatch, on)
    canonicalizer, features = canonicalizer_for(6, "direct", True, (16, 16), max_steps=2), features_for(6)
    replica = copy.deepcopy(canonicalizer)
    for module in replica.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                setattr(module, name, parameter.detach().clone().requires_grad_())
    assert not list(replica.parameters())
    found, expected = replica(features).map.displacements, canonicalizer(features).map.displacements
    assert torch.equal(found, expected)
    assert found.requires_grad
    with torch.no_grad():
        assert torch.equal(replica(features).map.displacements, canonicalizer(features).map.displacements)


@pytest.mark.parametrize("on", [False, True])
def test_checkpointing_solves_twice_and_no_more(on: bool, monkeypatch: pytest.MonkeyPatch):
    by_kernels(monkeypatch, on)
    canonicalizer = canonicalizer_for(6, "direct", True, (16, 16), max_steps=2)
    features, solved = features_for(6), []
    expected = slopes(canonicalizer, features)
    canonicalizer.register_forward_pre_hook(lambda *_: solved.append(True))
    features.requires_grad_()
    displacements = checkpoint(lambda x: canonicalizer(x).map.displacements, features, use_reentrant=False)
    found = torch.autograd.grad(displacements, [features, *canonicalizer.parameters()], ASKED)
    assert len(solved) == 2
    assert_close(list(found), expected, 1e-6)


def test_more_knots_than_a_program_holds_are_left_to_the_twin(monkeypatch: pytest.MonkeyPatch):
    by_kernels(monkeypatch)
    monkeypatch.setattr("localscale.canonicalizer.module.KernelEvaluation", None)
    canonicalizer = ls.Canonicalizer(3, (kernel_solver.MOST_KNOTS + 1, 4), dec_config(channels=(4,), max_steps=1)).to(
        DEVICE
    )
    assert canonicalizer(torch.rand(1, 3, 16, 16, device=DEVICE)).map.displacements.requires_grad


def test_apart_the_map_s_gradient_is_worked_out_alone(monkeypatch: pytest.MonkeyPatch):
    x = features_for(6).requires_grad_()
    displacements = ls.random_map(2, (5, 4), generator=torch.Generator().manual_seed(0), device=DEVICE).displacements
    displacements.requires_grad_()
    done, launch_backward = [], warp._launch_backward

    def count(*inputs):
        done.append(inputs[-2:])
        return launch_backward(*inputs)

    monkeypatch.setattr(warp, "_launch_backward", count)
    y, weights = unscale_with_separate_gradients(x, displacements), torch.rand(x.shape).to(DEVICE)
    torch.autograd.grad(y, displacements, weights, retain_graph=True)
    assert done == [(False, True)]
    found = torch.autograd.grad(y, [x, displacements], weights)
    twin = fused_unscale(x, (displacements,), "NCHW")
    assert torch.equal(y, twin)
    assert_close(list(found), list(torch.autograd.grad(twin, [x, displacements], weights)), 1e-6)
