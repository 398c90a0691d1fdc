"""Fixed steps give the same values without host synchronisation, compiled or not."""

import pytest
import torch
from host_syncs import HostSyncs
from known_problems import PROBLEMS, Seen, tanh_network
from torch import Tensor

from localscale.equilibrium import Anderson, Implicit, Picard, fixed_point

EACH_GRADIENT = pytest.mark.parametrize("gradient", ["implicit", "phantom(2)", "unrolled"])


@pytest.mark.parametrize(("solver", "gradient"), [(Anderson, "implicit"), (Picard, "phantom(2)"), (Picard, "unrolled")])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_fixed_steps_give_the_same_answers(problem: str, solver, gradient: str):
    p = PROBLEMS[problem](torch.float32)
    free, fixed = (
        fixed_point(p.f, p.start, solver=solver(25, fixed_steps=fixed), gradient=gradient, on_failure="identity")
        for fixed in (False, True)
    )
    for name in ("value", "residual", "steps", "converged"):
        assert torch.equal(getattr(free, name), getattr(fixed, name)), name


@pytest.mark.parametrize("solver", [Anderson, Picard])
def test_fixed_steps_are_exactly_max_steps_and_free_ones_stop(solver):
    p = tanh_network(torch.float64)
    evaluations = {}
    for fixed in (False, True):
        f = Seen(p.f)
        with torch.no_grad():
            solution = fixed_point(f, p.start, solver=solver(40, fixed_steps=fixed))
        evaluations[fixed] = len(f.points)
        assert solution.converged.all()
    assert evaluations[True] == 40
    assert evaluations[False] == solution.steps.max() < 40


@EACH_GRADIENT
@pytest.mark.parametrize(("solver", "on_failure"), [(Anderson, "warn"), (Picard, "identity")])
def test_fixed_steps_never_synchronise(solver, gradient: str, on_failure: str):
    weight = torch.tensor(0.9, requires_grad=True)
    counts = {}
    for fixed in (False, True):
        with HostSyncs() as syncs:
            solution = fixed_point(
                lambda z: torch.cos(weight * z),
                torch.zeros(3, 2),
                solver=solver(40, fixed_steps=fixed),
                gradient=gradient,
                on_failure=on_failure,
            )
            solution.value.sum().backward()
        counts[fixed] = syncs.count
    assert counts[True] == 0
    assert counts[False] > 0, "the meter reads"


def test_compiled_equals_eager(rng: torch.Generator):
    solver = Anderson(6, fixed_steps=True)
    weight, bias = 0.3 * torch.randn(4, 4, generator=rng), torch.randn(3, 4, generator=rng)

    def solve(w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        gradient = Implicit(adjoint=Anderson(6, fixed_steps=True))
        solution = fixed_point(lambda z: torch.tanh(z @ w + b), torch.zeros(3, 4), solver=solver, gradient=gradient)
        return solution.value, solution.residual, solution.steps, solution.converged

    torch._dynamo.reset()
    results = []
    for call in (solve, torch.compile(solve, fullgraph=True, backend="aot_eager")):
        leaves = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        value, *rest = call(*leaves)
        results.append((value, *rest, *torch.autograd.grad(value.square().sum(), leaves)))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-6, rtol=1e-5)
    assert results[0][4].any()
    assert results[0][5].any()
