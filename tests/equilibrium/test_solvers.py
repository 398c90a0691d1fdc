"""Anderson and Picard on problems with known solutions, against other libraries, and on degenerate problems."""

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st
from known_problems import PROBLEMS, linear_expansion, tanh_network
from torchdeq.solver.anderson import anderson_solver

from localscale.equilibrium import Anderson, Picard, fixed_point, relative_residual
from localscale.equilibrium.solvers import _mixing_weights
from localscale.errors import ConfigError, ConvergenceWarning

EACH_DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
MATRIX = {
    "anderson": lambda tolerance: Anderson(100, tolerance),
    "anderson, short history, damped": lambda tolerance: Anderson(100, tolerance, history=3, damping=0.7),
    "anderson, history of one": lambda tolerance: Anderson(400, tolerance, history=1, damping=0.4),
    "picard": lambda tolerance: Picard(200, tolerance),
    "plain, damped": lambda tolerance: Picard(400, tolerance, damping=0.4),
}
CANNOT = [("picard", "linear expansion")]


@EACH_DTYPE
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("solver", MATRIX)
def test_every_solver_on_every_problem(solver: str, problem: str, dtype: torch.dtype):
    p, tolerance = PROBLEMS[problem](dtype), TOLERANCE[dtype]
    solution = fixed_point(p.f, p.start, solver=MATRIX[solver](tolerance), on_failure="identity")
    if (solver, problem) in CANNOT:
        assert not solution.converged.any()
        return
    assert solution.converged.all()
    assert (solution.residual <= tolerance).all()
    torch.testing.assert_close(solution.value, p.answer, atol=20 * tolerance, rtol=20 * tolerance)


@pytest.mark.parametrize("problem", ["linear contraction", "cosine", "tanh network"])
def test_anderson_takes_fewer_steps_than_picard(problem: str):
    p = PROBLEMS[problem](torch.float64)
    anderson, plain = (
        fixed_point(p.f, p.start, solver=solver(200, 1e-10)).steps.sum().item() for solver in (Anderson, Picard)
    )
    assert anderson < 0.75 * plain


def test_history_of_one_undamped_is_picard():
    p = tanh_network(torch.float64)
    one = fixed_point(p.f, p.start, solver=Anderson(100, 1e-8, history=1))
    plain = fixed_point(p.f, p.start, solver=Picard(100, 1e-8))
    assert torch.equal(one.steps, plain.steps)
    torch.testing.assert_close(one.value, plain.value, atol=1e-14, rtol=0)


def test_damping_is_the_fraction_of_the_step_taken():
    """z ← (1 − d)·z + d·f(z) from z = 0 with f = 2: the second point is 2d."""
    seen: list[float] = []

    def f(z: torch.Tensor) -> torch.Tensor:
        seen.append(z.item())
        return torch.full_like(z, 2.0)

    for solver in (Picard(2, 0.0, damping=0.25), Anderson(2, 0.0, damping=0.25)):
        solver.solve(f, torch.zeros(1, 1))
    assert seen == [0.0, 0.5, 0.0, 0.5]


@pytest.mark.parametrize("problem", ["linear contraction", "linear expansion", "tanh network"])
def test_agrees_with_torchdeq(problem: str):
    p = PROBLEMS[problem](torch.float64)
    theirs, _, _ = anderson_solver(p.f, p.start, max_iter=200, tol=1e-12, stop_mode="rel", m=6, lam=1e-10)
    ours = fixed_point(p.f, p.start, solver=Anderson(200, 1e-12, history=6))
    torch.testing.assert_close(ours.value, theirs, atol=1e-9, rtol=0)


def test_agrees_with_scipy():
    p = tanh_network(torch.float64)

    def miss(z: np.ndarray) -> np.ndarray:
        point = torch.from_numpy(z.reshape(p.start.shape))
        return (p.f(point) - point).numpy().reshape(z.shape)

    theirs = scipy.optimize.anderson(miss, p.start.numpy(), f_tol=1e-11)
    ours = fixed_point(p.f, p.start, solver=Anderson(100, 1e-12))
    np.testing.assert_allclose(ours.value.numpy(), theirs, atol=1e-9)


def test_mixing_weights_minimise_the_mixed_residual(rng: torch.Generator):
    """The same constrained least-squares problem, solved by a general solver."""
    residuals = torch.randn(3, 4, 9, generator=rng, dtype=torch.float64)
    residuals = residuals * torch.tensor([1.0, 0.1, 10.0, 1e-3], dtype=torch.float64)[:, None]
    ridge = 1e-3
    gram = residuals @ residuals.mT
    system = torch.zeros(3, 5, 5, dtype=torch.float64)
    system[:, :4, :4] = gram + ridge * torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    system[:, 4, :4] = system[:, :4, 4] = 1
    right = torch.tensor([0.0, 0, 0, 0, 1], dtype=torch.float64).expand(3, -1)
    expected = torch.linalg.solve(system, right)[:, :4]
    torch.testing.assert_close(_mixing_weights(residuals, ridge), expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(("size", "dtype"), [(1, torch.float64), (72, torch.float32)])
@pytest.mark.parametrize("kind", ["identical", "multiples", "opposite", "nearly identical", "shrinking", "zero"])
def test_the_ridge_keeps_the_matrix_regular(kind: str, size: int, dtype: torch.dtype, rng: torch.Generator):
    one = torch.randn(500, 1, size, generator=rng, dtype=dtype)
    factors = torch.randn(500, 5, 1, generator=rng, dtype=dtype)
    signs = torch.tensor([1, -1, 1, -1, 1], dtype=dtype)[:, None]
    residuals = {
        "identical": one.expand(-1, 5, -1),
        "multiples": one * factors,
        "opposite": one * signs,
        "nearly identical": one + 1e-6 * torch.randn(500, 5, size, generator=rng, dtype=dtype),
        "shrinking": one * torch.tensor([1, 1e-2, 1e-4, 1e-6, 1e-8], dtype=dtype)[:, None],
        "zero": torch.zeros(500, 5, size, dtype=dtype),
    }[kind]
    weights = _mixing_weights(residuals, 1e-6)
    assert torch.isfinite(weights).all()
    if kind == "zero":
        assert not weights.any(), "nothing to mix"
        return
    smallest = torch.linalg.vector_norm(residuals, dim=2).amin(dim=1)
    mixed = torch.linalg.vector_norm((weights.unsqueeze(-1) * residuals).sum(dim=1), dim=1)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(500, dtype=dtype), atol=1e-3, rtol=0)
    assert (mixed <= 1.01 * smallest).all(), "mixing is no worse than the best point alone"


def test_a_zero_residual_gets_weight_zero(rng: torch.Generator):
    """Zero stands for a value that was not finite."""
    residuals = torch.randn(4, 3, 6, generator=rng, dtype=torch.float64)
    padded = torch.cat((residuals[:, :1], torch.zeros(4, 1, 6, dtype=torch.float64), residuals[:, 1:]), dim=1)
    weights = _mixing_weights(padded, 1e-6)
    assert not weights[:, 1].any()
    torch.testing.assert_close(weights[:, [0, 2, 3]], _mixing_weights(residuals, 1e-6), atol=1e-12, rtol=0)


@EACH_DTYPE
@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("one dimension, history of five", lambda z: torch.cos(z)),
        ("constant, the same value in every step", lambda z: torch.full_like(z, 3.0)),
        ("identity, every residual zero", lambda z: z),
        ("rank one", lambda z: 0.5 * z.mean(dim=1, keepdim=True).expand_as(z) + 1),
        ("a cycle of two, the history repeats itself", lambda z: 1 - z),
    ],
)
@pytest.mark.parametrize("size", [6])
def test_degenerate_problems_are_solved(name: str, f, size: int, dtype: torch.dtype):
    start = torch.linspace(0.1, 0.9, 2 * size, dtype=dtype).view(2, size)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-9
    for fixed in (False, True):
        solution = fixed_point(f, start, solver=Anderson(30, tolerance, fixed_steps=fixed))
        assert solution.converged.all()
        torch.testing.assert_close(f(solution.value), solution.value, atol=10 * tolerance, rtol=0)


@given(
    rates=st.lists(st.floats(-3, 0.95), min_size=1, max_size=4),
    offset=st.floats(-100, 100).filter(lambda b: abs(b) > 1e-3),
)
def test_anderson_solves_any_small_linear_problem(rates: list[float], offset: float):
    """With as many dimensions as the history, Anderson solves a linear problem in finitely many steps."""
    a = torch.tensor([rates], dtype=torch.float64)
    solution = fixed_point(
        lambda z: a * z + offset, torch.zeros_like(a), solver=Anderson(60, 1e-9), on_failure="identity"
    )
    assert solution.converged.all()
    torch.testing.assert_close(solution.value, offset / (1 - a), rtol=1e-6, atol=1e-9 * abs(offset))


@pytest.mark.parametrize(("solver", "factor"), [(Anderson(50, 1e-5), 2.0**20), (Picard(60, 1e-5), 2.0**-20)])
@pytest.mark.parametrize("problem", ["linear contraction", "linear expansion", "tanh network", "cosine"])
def test_tolerance_is_relative_to_the_iterate(problem: str, solver: Anderson | Picard, factor: float):
    """Scaling by a power of two is exact in floating point, so the steps must be the same."""
    p = PROBLEMS[problem](torch.float32)
    here = fixed_point(p.f, p.start, solver=solver, on_failure="identity")
    there = fixed_point(lambda z: factor * p.f(z / factor), factor * p.start, solver=solver, on_failure="identity")
    assert torch.equal(here.steps, there.steps)
    torch.testing.assert_close(there.value / factor, here.value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(there.residual, here.residual, atol=1e-7, rtol=1e-2)


def test_relative_residual_by_hand():
    point = torch.tensor([[3.0, 0.0], [0.0, 0.0], [1.0, 1.0], [torch.nan, 1.0], [1.0, 1.0]])
    image = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [torch.inf, 1.0]])
    assert relative_residual(point, image).tolist() == [pytest.approx(0.8), 0.0, 0.0, torch.inf, torch.inf]


@pytest.mark.parametrize("solver", [Anderson, Picard])
def test_settings_out_of_range_are_named(solver: type[Anderson] | type[Picard]):
    with pytest.raises(ConfigError, match=r"^max_steps is 0; expected at least 1$"):
        solver(max_steps=0)
    with pytest.raises(ConfigError, match=r"^tolerance is -1e-06; expected a finite number, 0 or more$"):
        solver(tolerance=-1e-6)
    for damping in (0.0, -0.5, 1.5, float("nan")):
        with pytest.raises(ConfigError, match=r"^damping is .*; expected a fraction of the step, above 0 and at most"):
            solver(damping=damping)


def test_andersons_own_settings_out_of_range_are_named():
    with pytest.raises(ConfigError, match=r"^history is 0; expected at least 1$"):
        Anderson(history=0)
    for ridge in (0.0, -1e-6):
        with pytest.raises(ConfigError, match=f"^ridge is {ridge}; expected a positive number$"):
            Anderson(ridge=ridge)


def test_picard_diverges_on_an_expansion():
    """Picard diverges on this problem, and the best point is still returned."""
    p = linear_expansion(torch.float64)
    with pytest.warns(ConvergenceWarning):
        lost = fixed_point(p.f, p.start, solver=Picard(200, 1e-5))
    assert torch.isfinite(lost.value).all()
    assert not torch.isclose(lost.value, p.answer, rtol=0.1).all(dim=1).any()


class Affine:
    """z ↦ factor·z + 1 with one factor per sample; records the samples that it evaluates."""

    def __init__(self, factors: torch.Tensor, evaluated: list[int], first: int = 0) -> None:
        self.factors, self.evaluated, self.first = factors, evaluated, first

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        self.evaluated += range(self.first, self.first + len(z))
        return self.factors * z + 1

    def among(self, samples: slice) -> "Affine":
        return Affine(self.factors[samples], self.evaluated, samples.start)


def test_groups_of_converged_samples_are_not_evaluated_again():
    factors = torch.zeros(20, 1, dtype=torch.float64)
    factors[9], factors[17] = 0.9, 0.5
    solver, start = Picard(max_steps=60, tolerance=1e-3), torch.zeros(20, 1, dtype=torch.float64)
    evaluated: list[int] = []
    some = solver.solve(Affine(factors, evaluated), start)
    every = solver.solve(lambda z: factors * z + 1, start)
    assert torch.equal(some.value, every.value)
    assert torch.equal(some.steps, every.steps)
    counts = torch.tensor(evaluated).bincount()
    assert counts.tolist() == [2] * 8 + [int(every.steps[9])] * 8 + [int(every.steps[17])] * 4


def test_a_sample_is_evaluated_with_the_same_others_in_every_step():
    """The number of samples decides in which order a convolution sums, so it must not depend on who has converged."""
    sizes: set[tuple[int, int]] = set()

    class Noted(Affine):
        def __call__(self, z: torch.Tensor) -> torch.Tensor:
            sizes.add((self.first, len(z)))
            return super().__call__(z)

        def among(self, samples: slice) -> "Noted":
            return Noted(self.factors[samples], self.evaluated, samples.start)

    Picard(max_steps=60).solve(Noted(torch.linspace(0, 0.9, 20)[:, None], []), torch.zeros(20, 1))
    assert sizes == {(0, 8), (8, 8), (16, 4)}
