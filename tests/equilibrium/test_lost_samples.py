"""One sample that is not finite does not affect the others, and gets its best value or its start."""

import math

import pytest
import torch
from known_problems import RATES, Seen, rotating
from torch import Tensor

from localscale.equilibrium import Anderson, Picard, fixed_point
from localscale.errors import ConvergenceWarning

EACH_SOLVER = pytest.mark.parametrize("solver", [Anderson(60, 1e-6), Picard(300, 1e-6)])
EACH_GRADIENT = pytest.mark.parametrize("gradient", ["implicit", "phantom(2)", "unrolled"])


def poisoned(rates: Tensor, value: float, visits: range, sample: int = 1):
    """Return ``rotating(rates)``, but with ``value`` for one sample at the evaluations in ``visits``."""
    clean, count = rotating(rates), [0]

    def f(z: Tensor) -> Tensor:
        image = clean(z)
        if count[0] in visits:
            bad = torch.arange(len(z)).view(-1, 1) == sample
            image = torch.where(bad, value, image)
        count[0] += 1
        return image

    return f


@EACH_GRADIENT
@pytest.mark.parametrize(
    ("solver", "value"),
    [
        (Anderson(30, 1e-4), math.nan),
        (Anderson(30, 1e-4, fixed_steps=True), math.inf),
        (Picard(30, 1e-4), -math.inf),
        (Picard(30, 1e-4, fixed_steps=True), math.nan),
    ],
)
def test_a_sample_that_is_never_finite_keeps_its_start(solver: Anderson | Picard, gradient: str, value: float):
    start = torch.linspace(0, 1, 12).view(4, 3)
    clean = fixed_point(rotating(RATES), start, solver=solver, gradient=gradient, on_failure="identity")
    lost = fixed_point(
        poisoned(RATES, value, range(1000)), start, solver=solver, gradient=gradient, on_failure="identity"
    )
    others = torch.tensor([True, False, True, True])
    assert torch.equal(lost.value[others], clean.value[others])
    assert torch.equal(lost.residual[others], clean.residual[others])
    assert torch.equal(lost.steps[others], clean.steps[others])
    assert torch.equal(lost.value[1], start[1])
    assert not lost.converged[1]
    assert lost.residual[1] == math.inf
    assert lost.steps[1] == 30


def test_a_sample_that_is_never_finite_keeps_its_start_under_warn_too():
    with pytest.warns(ConvergenceWarning):
        solution = fixed_point(poisoned(RATES, math.nan, range(1000)), torch.ones(4, 3), solver=Picard(300))
    assert solution.value[1].tolist() == [1, 1, 1]
    assert torch.isfinite(solution.value).all()


@EACH_SOLVER
@pytest.mark.parametrize(
    ("visits", "value"), [(range(1), math.nan), (range(3), math.inf), (range(2, 4), math.nan), (range(5, 6), math.inf)]
)
def test_a_sample_that_is_finite_again_converges(solver: Anderson | Picard, visits: range, value: float):
    start = torch.zeros(4, 3)
    with torch.no_grad():
        clean = fixed_point(rotating(RATES), start, solver=solver)
        back = fixed_point(poisoned(RATES, value, visits), start, solver=solver)
    others = torch.tensor([True, False, True, True])
    assert torch.equal(back.value[others], clean.value[others])
    assert torch.equal(back.steps[others], clean.steps[others])
    assert back.converged[1]
    torch.testing.assert_close(back.value[1], clean.value[1], atol=1e-4, rtol=0)


@EACH_SOLVER
def test_a_sample_that_is_not_finite_restarts_from_its_best_value(solver: Anderson | Picard):
    f = Seen(poisoned(RATES, math.nan, range(3, 4)))
    with torch.no_grad():
        fixed_point(f, torch.zeros(4, 3), solver=solver)
    images = torch.stack([rotating(RATES)(z)[1] for z in f.points[:3]])
    points = torch.stack([z[1] for z in f.points[:3]])
    best = ((images - points).norm(dim=1) / images.norm(dim=1)).argmin()
    assert torch.equal(f.points[4][1], images[best])


def test_one_value_that_is_not_finite_costs_at_most_two_steps():
    """A point that was not finite is left out of the mixing afterwards."""
    rates = torch.tensor([[-1.5, -2.0, 0.5]] * 2)
    visits = [0]

    def f(z: Tensor) -> Tensor:
        visits[0] += 1
        bad = (torch.arange(2).view(-1, 1) == 1) & (visits[0] == 1)
        return torch.where(bad, torch.nan, rates * z + 1)

    with torch.no_grad():
        solution = fixed_point(f, torch.zeros(2, 3), solver=Anderson(40, 1e-6))
    assert solution.converged.all()
    assert solution.steps[0] < solution.steps[1] <= solution.steps[0] + 2


def test_an_iterate_that_overflows_leaves_finite_values():
    """Iterates of exp become infinite; the value must not hold a NaN."""
    start = torch.tensor([[0.0], [3.0]])
    solution = fixed_point(lambda z: torch.exp(z) - 1 + 0.1 * z, start, solver=Anderson(50), on_failure="identity")
    assert solution.converged[0]
    assert torch.isfinite(solution.value).all()
