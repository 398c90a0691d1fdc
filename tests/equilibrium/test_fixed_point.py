"""``fixed_point`` solves each sample of a batch independently, and reports how well."""

import logging
import re

import pytest
import torch
from known_problems import RATES, Seen, rotating, tanh_network
from torch import Tensor

from localscale.equilibrium import POLICIES, Anderson, Picard, Solution, fixed_point
from localscale.errors import ConfigError, ConvergenceError, ConvergenceWarning, ShapeError

EACH_SOLVER = pytest.mark.parametrize("solver", [Anderson(60, 1e-6), Picard(300, 1e-6)])
EACH_GRADIENT = pytest.mark.parametrize("gradient", ["implicit", "phantom(2)", "unrolled"])


@EACH_GRADIENT
@pytest.mark.parametrize(("shape", "dtype"), [((1, 1), torch.float64), ((2, 1, 2, 3), torch.float32)])
def test_fields_of_a_solution(shape: tuple[int, ...], dtype: torch.dtype, gradient: str):
    weight = torch.tensor(0.5, dtype=dtype, requires_grad=True)
    start = torch.zeros(shape, dtype=dtype)
    solution = fixed_point(lambda z: torch.cos(weight * z), start, gradient=gradient)
    assert isinstance(solution, Solution)
    assert (solution.value.shape, solution.value.dtype) == (shape, dtype)
    assert solution.value.requires_grad
    assert (solution.residual.shape, solution.residual.dtype) == (shape[:1], dtype)
    assert (solution.steps.shape, solution.steps.dtype) == (shape[:1], torch.int64)
    assert (solution.converged.shape, solution.converged.dtype) == (shape[:1], torch.bool)
    assert not solution.residual.requires_grad
    assert not start.any(), "the start is left as it was"


def test_value_is_the_image_of_the_best_point_and_residual_is_measured_there():
    p = tanh_network(torch.float64)
    f = Seen(p.f)
    with pytest.warns(ConvergenceWarning), torch.no_grad():
        solution = fixed_point(f, p.start, solver=Anderson(4, 0.0))
    images = torch.stack([p.f(z) for z in f.points])
    residuals = (images - torch.stack(f.points)).norm(dim=2) / images.norm(dim=2)
    best = residuals.argmin(dim=0)
    torch.testing.assert_close(solution.residual, residuals.amin(dim=0), atol=1e-12, rtol=0)
    assert torch.equal(solution.value, images[best, torch.arange(4)])


@EACH_SOLVER
def test_an_exact_fixed_point_takes_one_step(solver: Anderson | Picard):
    solution = fixed_point(lambda z: z.clone(), torch.rand(3, 2), solver=solver)
    assert solution.steps.tolist() == [1, 1, 1]
    assert solution.residual.tolist() == [0, 0, 0]


# Every sample on its own.


@EACH_SOLVER
def test_each_sample_of_a_mixed_batch_is_solved_as_if_alone(solver: Anderson | Picard):
    together = fixed_point(rotating(RATES), torch.zeros(4, 3), solver=solver)
    assert together.converged.all()
    assert len(set(together.steps.tolist())) > 2, "easy and hard, or nothing is tested"
    for i in range(4):
        alone = fixed_point(rotating(RATES[i : i + 1]), torch.zeros(1, 3), solver=solver)
        assert alone.steps[0] == together.steps[i]
        torch.testing.assert_close(alone.value[0], together.value[i], atol=1e-6, rtol=0)
        torch.testing.assert_close(alone.residual[0], together.residual[i], atol=1e-6, rtol=0)


@EACH_SOLVER
def test_a_converged_sample_is_frozen(solver: Anderson | Picard):
    f = Seen(rotating(RATES))
    with torch.no_grad():
        solution = fixed_point(f, torch.zeros(4, 3), solver=solver)
    last = int(solution.steps.max())
    assert len(f.points) == last
    easy = int(solution.steps.argmin())
    frozen = f.points[solution.steps[easy] - 1][easy]
    assert solution.steps[easy] < last - 3
    assert all(torch.equal(z[easy], frozen) for z in f.points[solution.steps[easy] :])


@EACH_SOLVER
def test_a_converged_sample_ignores_later_values_of_f(solver: Anderson | Picard):
    """This holds even if a later value of f has a smaller residual."""
    hard, visits = rotating(RATES), [0]
    with torch.no_grad():
        expected = fixed_point(hard, torch.zeros(4, 3), solver=solver)
    easy = int(expected.steps.argmin())

    def f(z: Tensor) -> Tensor:
        visits[0] += 1
        over = (torch.arange(4).view(-1, 1) == easy) & (visits[0] > int(expected.steps[easy]))
        return torch.where(over, z, hard(z))

    with torch.no_grad():
        found = fixed_point(f, torch.zeros(4, 3), solver=solver)
    assert torch.equal(found.residual, expected.residual)
    assert torch.equal(found.value, expected.value)


@EACH_SOLVER
def test_a_sample_does_not_depend_on_the_rest_of_its_batch(solver: Anderson | Picard):
    """The same sample gives equal bits beside three easy samples and beside three hard ones."""
    answers = []
    for rate in (0.05, 0.9):
        rates = RATES.clone()
        rates[1:] = rate
        solution = fixed_point(rotating(rates), torch.zeros(4, 3), solver=solver)
        answers.append((solution.value[0], solution.residual[0], solution.steps[0]))
    assert all(torch.equal(a, b) for a, b in zip(*answers, strict=True))


@EACH_SOLVER
@pytest.mark.parametrize(
    "diverges", [lambda z: 3 * z + z.sign(), lambda z: z * z + 1, lambda z: torch.exp(z * z), lambda z: 1 / (z - z)]
)
def test_divergence_returns_the_best_point(diverges, solver: Anderson | Picard):
    start = torch.tensor([[0.5, 0.2, 0.1], [-0.5, 2.0, 1.0]])
    image = diverges(start)
    at_start = ((image - start).norm(dim=1) / image.norm(dim=1)).nan_to_num(torch.inf, torch.inf)
    with torch.no_grad(), pytest.warns(ConvergenceWarning):
        solution = fixed_point(diverges, start, solver=type(solver)(30, 0.0))
    assert torch.isfinite(solution.value).all()
    assert (solution.residual <= at_start).all()
    assert not solution.converged.any()


@pytest.mark.parametrize("size", [1, 3, 8])
def test_running_off_to_where_norms_overflow_is_not_converging(size: int):
    """‖f(z)‖² overflows float32 near 1e19, before ‖f(z) − z‖² does."""
    solution = fixed_point(lambda z: 2 * z + 1, torch.ones(1, size), solver=Picard(200), on_failure="identity")
    assert not solution.converged.any()
    assert (solution.residual > 0.1).all()


# Policies.


def test_policies():
    assert POLICIES == ("warn", "raise", "identity")


COUNTED = r"2 of 4 fixed points stopped above the tolerance 1e-06 after 20 steps \(worst residual \d\.\de-0\d\)"
REMEDY = "raise max_steps or loosen the tolerance"


def test_warn_says_what_to_do_and_the_log_how_many(caplog: pytest.LogCaptureFixture):
    sentence = rf"^some fixed points stopped above the tolerance 1e-06 after 20 steps, the report says which; {REMEDY}$"
    with caplog.at_level(logging.INFO, "localscale"), pytest.warns(ConvergenceWarning, match=sentence) as caught:
        solution = fixed_point(rotating(RATES), torch.zeros(4, 3), solver=Picard(20, 1e-6))
    assert caught[0].filename == __file__, "the warning points at the caller"
    assert re.fullmatch(COUNTED, caplog.messages[-1])
    assert solution.converged.tolist() == [True, False, True, False]
    assert not torch.equal(solution.value[1], torch.zeros(3)), "the best so far is kept"


def test_raise_says_both():
    with pytest.raises(ConvergenceError, match=f"^{COUNTED}; {REMEDY}$"):
        fixed_point(rotating(RATES), torch.zeros(4, 3), solver=Picard(20, 1e-6), on_failure="raise")


def test_identity_returns_the_start_for_failed_samples_only():
    start = torch.full((4, 3), 0.25)
    kept = fixed_point(rotating(RATES), start, solver=Picard(300, 1e-6))
    solution = fixed_point(rotating(RATES), start, solver=Picard(20, 1e-6), on_failure="identity")
    assert solution.converged.tolist() == [True, False, True, False]
    assert torch.equal(solution.value[[1, 3]], start[[1, 3]])
    assert torch.equal(solution.value[[0, 2]], kept.value[[0, 2]])


@EACH_GRADIENT
def test_a_sample_at_its_start_has_no_gradient(gradient: str):
    rates = RATES.clone().requires_grad_()
    solution = fixed_point(
        rotating(rates), torch.zeros(4, 3), solver=Picard(20, 1e-6), gradient=gradient, on_failure="identity"
    )
    solution.value.sum().backward()
    assert rates.grad.any(dim=1).tolist() == [True, False, True, False]


@pytest.mark.parametrize("on_failure", POLICIES)
def test_policies_are_silent_when_all_samples_converge(on_failure: str):
    assert fixed_point(torch.cos, torch.zeros(2, 2), on_failure=on_failure).converged.all()


def test_fixed_steps_do_not_warn_but_report():
    solution = fixed_point(rotating(RATES), torch.zeros(4, 3), solver=Picard(20, 1e-6, fixed_steps=True))
    assert solution.converged.tolist() == [True, False, True, False]


@pytest.mark.parametrize("solver", [Anderson(3, 1e-3), Picard(9, 1e-3), Anderson(12, 1e-6)])
def test_converged_means_a_residual_within_tolerance(solver: Anderson | Picard):
    solution = fixed_point(rotating(RATES), torch.zeros(4, 3), solver=solver, on_failure="identity")
    assert torch.equal(solution.converged, solution.residual <= solver.tolerance)
    assert (solution.steps[~solution.converged] == solver.max_steps).all()


@pytest.mark.parametrize(("tolerance", "converged"), [(0.5, True), (0.499, False), (0.3, False)])
def test_a_residual_at_the_tolerance_is_within_it_and_one_above_is_not(tolerance: float, converged: bool):
    """From 1 to 2: ‖f − z‖/‖f‖ is exactly one half."""
    solver = Picard(1, tolerance)
    solution = fixed_point(lambda z: torch.full_like(z, 2.0), torch.ones(1, 1), solver=solver, on_failure="identity")
    assert solution.residual.item() == 0.5
    assert solution.converged.item() is converged


# Errors.


def test_a_start_of_the_wrong_rank_or_dtype():
    with pytest.raises(
        ShapeError, match=r"^z0 has shape \(3,\) and dtype torch.float32; expected a float32 or float64 \(batch,"
    ):
        fixed_point(torch.cos, torch.zeros(3))
    with pytest.raises(
        ShapeError, match=r"^z0 has shape \(2, 3\) and dtype torch.int64; expected a float32 or float64 \(batch,"
    ):
        fixed_point(torch.cos, torch.zeros(2, 3, dtype=torch.int64))


@EACH_GRADIENT
def test_a_function_that_changes_the_shape(gradient: str):
    with pytest.raises(ShapeError, match=r"^f took \(2, 3\) to \(2, 1\); expected the same shape back$"):
        fixed_point(lambda z: z.mean(dim=1, keepdim=True), torch.zeros(2, 3), gradient=gradient)


def test_unknown_policy_names_the_near_miss():
    with pytest.raises(ConfigError, match=r"^no failure policy 'rais': did you mean raise\?$"):
        fixed_point(torch.cos, torch.zeros(1, 1), on_failure="rais")
    with pytest.raises(ConfigError, match=r"^no failure policy 'shout': known: warn, raise, identity$"):
        fixed_point(torch.cos, torch.zeros(1, 1), on_failure="shout")


def test_unknown_gradient_names_the_near_miss():
    with pytest.raises(ConfigError, match=r"^gradient is 'implicitly': did you mean implicit\?$"):
        fixed_point(torch.cos, torch.zeros(1, 1), gradient="implicitly")
    with pytest.raises(ConfigError, match=r"^gradient is 'none': known: implicit, phantom, unrolled$"):
        fixed_point(torch.cos, torch.zeros(1, 1), gradient="none")


def test_fixed_steps_cannot_raise():
    with pytest.raises(ConfigError, match=r'^on_failure="raise" reads the result on the host'):
        fixed_point(torch.cos, torch.zeros(1, 1), solver=Anderson(fixed_steps=True), on_failure="raise")


def test_mistakes_are_found_before_any_work():
    f = Seen(torch.cos)
    for wrong in ({"on_failure": "x"}, {"gradient": "x"}, {"solver": Picard(fixed_steps=True), "on_failure": "raise"}):
        with pytest.raises(ConfigError):
            fixed_point(f, torch.zeros(1, 1), **wrong)
    assert not f.points


@pytest.mark.parametrize("gradient", ["implicit", "phantom", "unrolled"])
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda z: z.double(), "torch.float64 on cpu"),
        (lambda z: z.half(), "torch.float16 on cpu"),
        (lambda z: z.long(), "torch.int64 on cpu"),
        (lambda z: z.to("meta"), "torch.float32 on meta"),
    ],
)
def test_a_function_that_changes_dtype_or_device(gradient: str, change, found: str):
    with pytest.raises(ShapeError, match=f"to {found}; expected the same back"):
        fixed_point(lambda z: change(z / 2), torch.ones(2, 3), gradient=gradient)


def test_what_is_no_tensor():
    with pytest.raises(ShapeError, match=r"^f returned a NoneType; expected a tensor of shape"):
        fixed_point(lambda z: None, torch.ones(2, 3))
    with pytest.raises(ShapeError, match=r"^z0 is a list; expected a float32"):
        fixed_point(lambda z: z, [1.0])


def test_no_gradient_rule():
    with pytest.raises(ConfigError, match=r"^gradient is None: known: implicit, phantom, unrolled$"):
        fixed_point(lambda z: z / 2, torch.ones(2, 3), gradient=None)


@pytest.mark.parametrize("solver", [Anderson, Picard])
def test_an_infinite_tolerance(solver: type):
    with pytest.raises(ConfigError, match=r"^tolerance is inf; expected a finite number, 0 or more$"):
        solver(tolerance=float("inf"))
