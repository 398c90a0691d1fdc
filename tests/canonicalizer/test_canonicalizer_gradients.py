"""Gradients of the maps a canonicalizer finds, to its weights and to its features."""

import pytest
import torch
from canonicalizer_inputs import canonicalizer, noise, smooth
from torch import Tensor

from localscale.canonicalizer import UPDATES, Canonicalizer
from localscale.maps import FAMILIES

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EACH_UPDATE = pytest.mark.parametrize("update", UPDATES)


def loss(module: Canonicalizer, features: Tensor) -> Tensor:
    """Return a linear functional of the maps."""
    state = module(features).map.state()
    return (state * noise(*state.shape, seed=9, dtype=state.dtype)).sum()


def difference_quotient(module: Canonicalizer, features: Tensor, place: Tensor, step: float = 1e-6) -> tuple:
    """The loss's derivative along a random direction of ``place`` by central differences, and that direction."""
    direction = noise(*place.shape, seed=5, dtype=torch.float64)
    ends = []
    with torch.no_grad():
        for shift in (step, -2 * step):
            place += shift * direction
            ends.append(float(loss(module, features)))
        place += step * direction
    return (ends[0] - ends[1]) / (2 * step), direction


@EACH_FAMILY
def test_implicit_gradients_are_those_of_finite_differences(family: str):
    """All parameters and the features are tested, to a relative error of a thousandth."""
    module = canonicalizer(
        3, (4, 5), std=0.5, family=family, dtype=torch.float64, tolerance=1e-12, max_steps=60, channels=(6, 8)
    )
    features = smooth(2, 3, 32)
    with torch.no_grad():
        report = module(features)
    assert report.converged.all()
    assert (report.map.mean_displacement() > 0.004).all()
    places = {"features": features.requires_grad_()} | dict(module.named_parameters())
    slopes = torch.autograd.grad(loss(module, features), list(places.values()))
    for (name, place), slope in zip(places.items(), slopes, strict=True):
        expected, direction = difference_quotient(module, features, place.detach())
        assert abs(expected) > 1e-4, f"{name} matters"
        assert float((slope * direction).sum()) == pytest.approx(expected, rel=1e-3), name


def test_rules_agree_at_the_equilibrium_and_one_phantom_step_does_not():
    features = smooth(2, 3, 24)

    def slopes(gradient: str) -> Tensor:
        module = canonicalizer(
            3,
            (4, 4),
            std=2.0,
            dtype=torch.float64,
            solver="picard",
            tolerance=1e-13,
            max_steps=300,
            channels=(6, 8),
            gradient=gradient,
        )
        return torch.cat([p.flatten() for p in torch.autograd.grad(loss(module, features), list(module.parameters()))])

    exact = slopes("implicit")
    assert (slopes("unrolled") - exact).norm() <= 1e-6 * exact.norm()
    assert (slopes("phantom(60)") - exact).norm() <= 1e-6 * exact.norm()
    assert (slopes("phantom(1)") - exact).norm() > 0.02 * exact.norm()


@pytest.mark.parametrize(
    ("gradient", "update", "family"),
    [
        ("implicit", "direct", "grid"),
        ("implicit", "compose", "separable"),
        ("implicit", "descent", "grid"),
        ("phantom(2)", "direct", "separable"),
        ("phantom(2)", "descent", "separable"),
        ("unrolled", "compose", "grid"),
        ("unrolled", "descent", "separable"),
    ],
)
@pytest.mark.parametrize("std", [0.0, 0.5])
def test_every_parameter_gets_a_gradient(gradient: str, update: str, family: str, std: float):
    """At initialisation only the last layers have a gradient; afterwards all layers do."""
    module = canonicalizer(
        8, (4, 4), std=std, update=update, family=family, gradient=gradient, max_steps=4, fixed_steps=True
    )
    loss(module, noise(2, 8, 14, 14)).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        if std or (name.startswith("network.to_") and name.endswith("weight")):
            assert parameter.grad.any(), name
        elif "trunk" in name:
            assert not parameter.grad.any(), "a last layer of zeros stops the gradient"


@EACH_UPDATE
def test_a_step_of_training_leaves_the_identity(update: str):
    module = canonicalizer(3, (4, 4), update=update, channels=(8, 8), max_steps=3, fixed_steps=True)
    features = noise(2, 3, 24, 24)
    loss(module, features).backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= parameter.grad
        assert (module(features).map.mean_displacement() > 0).all()


@EACH_FAMILY
def test_gradients_reach_the_features(family: str):
    features = noise(2, 192, 14, 14).requires_grad_()
    loss(canonicalizer(192, std=0.5, family=family), features).backward()
    assert features.grad.shape == features.shape
    assert features.grad.flatten(1).any(dim=1).all()


@EACH_FAMILY
def test_half_precision_features_and_weights_take_gradients_too(family: str):
    module = canonicalizer(8, std=0.5, family=family, dtype=torch.bfloat16)
    features = noise(2, 8, 14, 14).to(torch.bfloat16).requires_grad_()
    loss(module, features).backward()
    assert features.grad.dtype == torch.bfloat16
    assert {p.grad.dtype for p in module.parameters()} == {torch.bfloat16}
    assert features.grad.any()


@EACH_UPDATE
def test_a_frozen_canonicalizer_is_evaluated_once_a_step(update: str):
    module = canonicalizer(3, (4, 4), std=0.3, update=update, max_steps=4, fixed_steps=True, channels=(6, 8))
    features = smooth(2, 3, 24, dtype=torch.float32)
    trained = module(features)
    module.requires_grad_(False)
    counts = []
    module.network.register_forward_hook(lambda *_: counts.append(1))
    frozen = module(features)
    assert torch.allclose(frozen.map.state(), trained.map.state(), atol=1e-6)
    assert trained.map.state().requires_grad
    assert not frozen.map.state().requires_grad
    assert len(counts) == int(frozen.steps.max())
