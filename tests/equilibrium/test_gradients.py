"""Gradient rules of fixed points: their values, their graphs and their memory."""

import itertools
import logging

import pytest
import torch
from known_problems import contraction_matrix
from live_bytes import LiveBytes
from torch import Tensor
from torchdeq import get_deq

from localscale.equilibrium import (
    GRADIENTS,
    Anderson,
    Implicit,
    Phantom,
    Picard,
    Solution,
    Unrolled,
    fixed_point,
)
from localscale.errors import ConfigError, GradientError
from localscale.registry import choose

EXACT = Anderson(200, 1e-13)
COTANGENT = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def leaves() -> tuple[Tensor, Tensor]:
    """Return a weight that all samples share, and one input per sample."""
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    return contraction_matrix(1, 4, norm=0.9)[0].requires_grad_(), inputs.requires_grad_()


def solve(weight: Tensor, inputs: Tensor, gradient="implicit", solver=EXACT) -> Solution:
    start = torch.zeros_like(inputs)
    return fixed_point(lambda z: torch.tanh(z @ weight + inputs), start, solver=solver, gradient=gradient)


def gradients(gradient="implicit", solver=EXACT) -> tuple[Tensor, ...]:
    weight, inputs = leaves()
    value = solve(weight, inputs, gradient, solver).value
    return torch.autograd.grad((value * COTANGENT).sum(), (weight, inputs))


def distance(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The larger of the two relative errors."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


def central_differences(step: float = 1e-5) -> tuple[Tensor, ...]:
    results = []
    for index in (0, 1):
        parts = [leaf.detach() for leaf in leaves()]
        slope = torch.zeros_like(parts[index])
        for place in range(slope.numel()):
            ends = []
            for sign in (1, -1):
                moved = [part.clone() for part in parts]
                moved[index].view(-1)[place] += sign * step
                with torch.no_grad():
                    ends.append((solve(*moved).value * COTANGENT).sum())
            slope.view(-1)[place] = (ends[0] - ends[1]) / (2 * step)
        results.append(slope)
    return tuple(results)


# Values.


def test_implicit_is_the_gradient_of_the_equilibrium():
    """Both with respect to a weight and to an input that f closes over."""
    assert distance(gradients("implicit"), central_differences()) <= 1e-6


@pytest.mark.parametrize(
    "adjoint", [None, Anderson(200, 1e-13), Picard(400, 1e-13), Anderson(60, 0.0, fixed_steps=True)]
)
def test_implicit_whatever_solves_the_adjoint(adjoint: Anderson | Picard | None):
    assert distance(gradients(Implicit(adjoint)), gradients()) <= 1e-10


def test_implicit_in_closed_form():
    """z = az + b has dz/da = b/(1 − a)², dz/db = 1/(1 − a); also for |a| > 1, where iterating f diverges."""
    a = torch.tensor([[0.5], [-3.0]], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([[2.0], [1.0]], dtype=torch.float64, requires_grad=True)
    value = fixed_point(lambda z: a * z + b, torch.zeros(2, 1, dtype=torch.float64), solver=Anderson(50, 1e-13)).value
    by_a, by_b = torch.autograd.grad(value.sum(), (a, b))
    torch.testing.assert_close(by_a, (b / (1 - a) ** 2).detach(), rtol=1e-9, atol=0)
    torch.testing.assert_close(by_b, (1 / (1 - a)).detach(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("solver", [Picard(400, 1e-14), Anderson(200, 1e-12)])
def test_implicit_equals_unrolling_to_convergence(solver: Anderson | Picard):
    assert distance(gradients("unrolled", solver), gradients("implicit")) <= 1e-6


def test_implicit_agrees_with_torchdeq():
    deq = get_deq(
        f_solver="anderson",
        b_solver="anderson",
        f_max_iter=200,
        b_max_iter=200,
        f_tol=1e-12,
        b_tol=1e-12,
        f_stop_mode="rel",
        b_stop_mode="rel",
        ift=True,
    ).train()
    weight, inputs = leaves()
    value = deq(lambda z: torch.tanh(z @ weight + inputs), torch.zeros(3, 4, dtype=torch.float64))[0][-1]
    theirs = torch.autograd.grad((value * COTANGENT).sum(), (weight, inputs))
    assert distance(gradients("implicit"), theirs) <= 1e-8


def test_phantom_comes_closer_with_more_steps_and_one_is_not_enough():
    exact = gradients("implicit")
    errors = [distance(gradients(f"phantom({k})"), exact) for k in (1, 3, 9, 27, 81)]
    assert errors[0] > 0.2, "one phantom step is clearly another gradient"
    assert all(after < before for before, after in itertools.pairwise(errors))
    assert errors[-1] < 1e-6


def test_one_phantom_step_is_the_vector_jacobian_product_of_f():
    """No (1 − J)⁻¹: the vector–Jacobian product of f at the equilibrium."""
    weight, inputs = leaves()
    point = solve(weight, inputs).value.detach()
    image = torch.tanh(point @ weight + inputs)
    expected = torch.autograd.grad((image * COTANGENT).sum(), (weight, inputs))
    assert distance(gradients("phantom"), expected) <= 1e-10


def test_damped_phantom_by_hand():
    """Two steps of z ← z + d·(f(z) − z) on z = az + b give dz/db = d + (1 − d + da)·d."""
    a, d = 0.5, 0.3
    b = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    rule = Phantom(2, damping=d)
    value = fixed_point(lambda z: a * z + b, torch.zeros_like(b).detach(), solver=EXACT, gradient=rule).value
    value.backward()
    assert b.grad.item() == pytest.approx(d + (1 - d + d * a) * d, rel=1e-12)


def test_default_tolerance_gives_gradients_to_about_that_tolerance():
    assert distance(gradients("implicit", Anderson()), gradients()) <= 2e-3


def test_unrolled_stays_finite_where_a_sample_starts_on_its_fixed_point():
    """Residuals of exactly zero are normalised in the mixing; their gradient must not be 0/0."""
    start = torch.zeros(2, 3, dtype=torch.float64)
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    offset = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    value = fixed_point(lambda z: torch.sin(weight * z) + offset, start, gradient="unrolled").value
    value.sum().backward()
    assert torch.isfinite(weight.grad)
    assert weight.grad.abs() > 0.1


def test_float32_features_get_float32_gradients():
    weight, inputs = (leaf.detach().float().requires_grad_() for leaf in leaves())
    value = solve(weight, inputs, solver=Anderson(60, 1e-6)).value
    found = torch.autograd.grad((value * COTANGENT.float()).sum(), (weight, inputs))
    assert [part.dtype for part in found] == [torch.float32, torch.float32]
    assert distance(tuple(part.double() for part in found), gradients()) <= 1e-4


def test_second_derivatives_are_refused_by_implicit_and_right_unrolled():
    """The backward pass holds z* fixed, so differentiating it again would give a wrong result."""
    a = torch.tensor([[0.8]], dtype=torch.float64, requires_grad=True)

    def value(gradient: str) -> Tensor:
        start = torch.zeros_like(a).detach()
        return fixed_point(lambda z: torch.cos(a * z), start, solver=EXACT, gradient=gradient).value

    with pytest.raises(GradientError, match=r'^gradient="implicit" gives first derivatives only; use gradient="unroll'):
        torch.autograd.grad(value("implicit"), a, create_graph=True)

    (slope,) = torch.autograd.grad(value("unrolled"), a, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, a)
    step, sides = 1e-4, []
    for shift in (step, -step):
        moved = (a + shift).detach().requires_grad_()
        solution = fixed_point(lambda z, m=moved: torch.cos(m * z), torch.zeros_like(moved).detach(), solver=EXACT)
        sides.append(torch.autograd.grad(solution.value, moved)[0])
    torch.testing.assert_close(curvature, (sides[0] - sides[1]) / (2 * step), rtol=1e-6, atol=0)


# Graphs.


def nodes(value: Tensor) -> list[str]:
    """Return the name of every node of the graph of ``value``."""
    found, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(parent for parent, _ in node.next_functions)
    return [node.name() for node in found]


def evaluations(value: Tensor) -> int:
    return sum(name == "TanhBackward0" for name in nodes(value))


def of_length(gradient, steps: int, solver=Anderson) -> Tensor:
    """Return the value after exactly ``steps`` steps."""
    return solve(*leaves(), gradient, solver(steps, 0.0, fixed_steps=True)).value


def test_implicit_graph_is_one_evaluation_and_its_adjoint_however_many_steps():
    graphs = [nodes(of_length("implicit", steps)) for steps in (3, 30)]
    for graph in graphs:
        assert graph.count("ImplicitAdjointBackward") == 1
        assert graph.count("TanhBackward0") == 1
    assert len(graphs[0]) == len(graphs[1])


@pytest.mark.parametrize("k", [1, 2, 7])
def test_phantom_graph_is_k_evaluations(k: int):
    for steps in (3, 30):
        value = of_length(f"phantom({k})", steps)
        assert evaluations(value) == k
        assert "ImplicitAdjointBackward" not in nodes(value)


@pytest.mark.parametrize("solver", [Anderson, Picard])
def test_unrolled_graph_grows_with_the_steps(solver):
    short, long = (of_length("unrolled", steps, solver) for steps in (3, 12))
    assert (evaluations(short), evaluations(long)) == (3, 12)
    assert len(nodes(long)) > 3 * len(nodes(short))


@pytest.mark.parametrize("gradient", ["implicit", "phantom(2)", "unrolled"])
def test_no_graph_without_gradients(gradient: str):
    with torch.no_grad():
        assert solve(*leaves(), gradient).value.grad_fn is None
    plain = [leaf.detach() for leaf in leaves()]
    assert not solve(*plain, gradient).value.requires_grad, "nothing to differentiate"


@pytest.mark.parametrize("gradient", ["implicit", "phantom(1)", "unrolled"])
def test_the_value_with_a_graph_is_the_image_of_the_best_point_long_before_convergence(gradient: str):
    early = Anderson(3, 0.0, fixed_steps=True)
    with torch.no_grad():
        without = solve(*leaves(), gradient, early)
    assert (without.residual > 1e-3).all()
    torch.testing.assert_close(solve(*leaves(), gradient, early).value.detach(), without.value, atol=1e-14, rtol=0)


def test_the_equilibrium_does_not_depend_on_the_start():
    """The start of an implicit solve takes no gradient; the equilibrium does not depend on it."""
    start = torch.zeros(2, 3, requires_grad=True)
    weight = torch.tensor(0.5, requires_grad=True)
    value = fixed_point(lambda z: torch.cos(weight * z), start).value
    by_start, by_weight = torch.autograd.grad(value.sum(), (start, weight), allow_unused=True)
    assert by_start is None or not by_start.any()
    assert by_weight.abs() > 0


# Adjoints that do not converge.


def test_an_adjoint_that_does_not_converge_is_logged(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "localscale"):
        gradients(Implicit(adjoint=Picard(3, 1e-9)))
    (message,) = [record.getMessage() for record in caplog.records if "adjoint" in record.getMessage()]
    assert message.startswith("adjoint: 3 of 3 samples above tolerance, worst residual ")
    assert caplog.records[-1].name == "localscale.equilibrium.gradients"


@pytest.mark.parametrize("adjoint", [Anderson(100, 1e-9), Picard(3, 1e-9, fixed_steps=True)])
def test_an_adjoint_that_converges_or_has_fixed_steps_is_not_logged(adjoint, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, "localscale"):
        gradients(Implicit(adjoint))
    assert not caplog.records


# Memory.


def peak_bytes(gradient, steps: int) -> int:
    """Return the peak memory of one forward pass of ``steps`` steps on a 64 × 512 state, and its backward pass."""
    weight = torch.full((512, 512), 1e-4, requires_grad=True)
    inputs = torch.linspace(-1, 1, 64 * 512).view(64, 512).requires_grad_()
    with LiveBytes() as meter:
        value = solve(weight, inputs, gradient, Anderson(steps, 0.0, fixed_steps=True)).value
        value.square().sum().backward()
    return meter.peak


def test_memory_of_implicit_does_not_grow_with_the_steps():
    adjoint = Anderson(10, 0.0, fixed_steps=True)
    few, many = (peak_bytes(Implicit(adjoint), steps) for steps in (5, 50))
    assert many <= 1.05 * few
    assert few > 3 * 64 * 512 * 4, "the meter reads"


def test_memory_of_phantom_does_not_grow_and_that_of_unrolled_does():
    phantom = [peak_bytes("phantom(2)", steps) for steps in (5, 50)]
    unrolled = [peak_bytes("unrolled", steps) for steps in (5, 50)]
    assert phantom[1] <= 1.05 * phantom[0]
    assert unrolled[1] > 4 * unrolled[0]


# Names.


def test_rules_by_name():
    assert choose("gradient", "implicit", GRADIENTS) == Implicit()
    assert choose("gradient", "unrolled", GRADIENTS) == Unrolled()
    assert choose("gradient", "phantom", GRADIENTS) == Phantom(1)
    assert choose("gradient", "phantom(12)", GRADIENTS) == Phantom(12, damping=1.0)
    rule = Phantom(2, damping=0.5)
    assert choose("gradient", rule, GRADIENTS) is rule
    with pytest.raises(ConfigError, match=r"^phantom steps is 0; expected at least 1$"):
        choose("gradient", "phantom(0)", GRADIENTS)
    for damping in (0.0, 1.1):
        with pytest.raises(ConfigError, match=f"^phantom damping is {damping}; expected above 0 and at most 1$"):
            Phantom(1, damping=damping)


@pytest.mark.parametrize("name", ["phantom(-1)", "phantom()", "phantom(2.5)", "phantom(2) "])
def test_counts_that_are_not_numbers(name: str):
    with pytest.raises(ConfigError, match=r"^gradient is '.*': did you mean phantom"):
        choose("gradient", name, GRADIENTS)


@pytest.mark.slow
def test_a_compiled_function_is_differentiated_in_every_step_of_the_adjoint():
    """A compiled backward pass may free its saved tensors after one use."""
    rng = torch.Generator().manual_seed(0)
    first, second = (torch.randn(6, 6, generator=rng).div(10).requires_grad_() for _ in range(2))

    def f(z: Tensor) -> Tensor:
        return torch.tanh(torch.sin(torch.exp(z @ first) @ second) @ first + 0.3) + 0.5

    found = []
    for function in (f, torch.compile(f)):
        value = fixed_point(function, torch.zeros(2, 6)).value
        found.append(torch.autograd.grad(value.sum(), (first, second)))
    torch.testing.assert_close(*found)
