"""The kernel of the next map and its gradients against autograd on the network, interpreted where there is no GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import localscale as ls
from localscale.canonicalizer.network import MapNetwork, Trunk
from localscale.errors import GradientError
from localscale.kernels.next_map_gradients import differentiable_displacements
from localscale.maps.grid import GridMap

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Knots (x, y), size (h, w), smallest determinant, temperature, spread of the scores, and whether the guard must shrink
# some of the maps, alone and composed with another map.
CASES: dict[str, tuple[tuple[int, int], tuple[int, int], float | None, float, float, tuple[bool, bool]]] = {
    "mild": ((5, 6), (9, 8), 0.02, 1.0, 0.1, (False, False)),
    "square": ((6, 6), (14, 14), 0.15, 1.0, 0.5, (False, True)),
    "guarded": ((6, 6), (14, 14), 0.1, 0.5, 4.0, (True, True)),
    "uneven": ((5, 8), (7, 9), 0.2, 0.7, 0.3, (False, True)),
    "uneven, guarded": ((5, 8), (7, 9), 0.2, 0.5, 3.0, (True, True)),
    "free": ((4, 3), (5, 5), None, 1.0, 2.0, (False, False)),
    "more cells than pixels": ((7, 5), (3, 2), 0.1, 0.3, 1.0, (True, True)),
    "more cells than pixels, free": ((9, 10), (4, 6), None, 0.4, 1.0, (False, False)),
    "a pixel": ((3, 4), (1, 1), 0.1, 1.0, 1.0, (False, False)),
    "a line": ((4, 4), (1, 11), 0.1, 0.3, 3.0, (True, True)),
    "two knots": ((2, 2), (3, 3), 0.1, 1.0, 1.0, (False, False)),
    "two knots down": ((5, 2), (6, 7), 0.3, 0.3, 2.0, (True, True)),
    "two knots across": ((2, 6), (6, 4), 0.3, 0.3, 2.0, (True, True)),
    "large": ((6, 5), (56, 40), 0.1, 0.4, 6.0, (True, True)),
    "many knots": ((11, 9), (20, 17), 0.1, 0.6, 3.0, (True, True)),
}
QUICK = [("uneven, guarded", True), ("mild", False)]
SLOW = [(name, True) for name in CASES] + [(name, False) for name in ("guarded", "free", "large", "a line")]
Inputs = tuple[Tensor, Tensor | None]  # scores, the outer map's displacements


def inputs(name: str, composed: bool, batch: int = 2, dtype: torch.dtype = torch.float32) -> Inputs:
    knots, size, _, _, spread, _ = CASES[name]
    rng = torch.Generator().manual_seed(0)
    outer = ls.random_map(batch, knots, strength=1.5, generator=rng).displacements
    outer = (outer + 0.003 * torch.randn(outer.shape, generator=rng)).to(DEVICE, dtype)  # its borders move too
    scores = (spread * torch.randn(batch, 2, *size, generator=rng)).to(DEVICE, dtype)
    return scores, outer if composed else None


def as_dtype(values: Inputs, dtype: torch.dtype, times: float = 1) -> Inputs:
    scores, outer = values
    return times * scores.to(dtype), None if outer is None else times * outer.to(dtype)


def settings(name: str) -> dict[str, Any]:
    return {"knots": CASES[name][0], "guard": CASES[name][2], "temperature": CASES[name][3]}


def reference(scores: Tensor, outer: Tensor | None, *, guard: float | None, **chosen: Any) -> Tensor:
    """Run the network itself, with a trunk that passes scores on and heads that take one channel each."""
    network = MapNetwork(2, channels=(2,), guard=guard, **chosen).to(scores.device, scores.dtype)
    network.trunk = Trunk(2, ())
    with torch.no_grad():
        network.to_x.weight[0, 0] = network.to_y.weight[0, 1] = 1
    found = network(scores)
    return (found if outer is None else GridMap(outer).compose_resampled(found, guard=guard)).displacements


def kernel(scores: Tensor, outer: Tensor | None, **chosen: Any) -> Tensor:
    return differentiable_displacements(scores, **chosen, outer=outer)


def gradients(function: Callable[..., Tensor], values: Inputs, name: str) -> list[Tensor]:
    """Return the gradients to all inputs, for a random gradient to the displacements."""
    leaves = [None if value is None else value.detach().requires_grad_() for value in values]
    found = function(*leaves, **settings(name))
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).to(found)
    return list(torch.autograd.grad(found, [leaf for leaf in leaves if leaf is not None], grad))


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max() + 1e-7


@pytest.mark.parametrize(
    ("name", "composed"), [*QUICK, *[pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]]
)
def test_values_and_gradients_match_autograd(name: str, composed: bool):
    leaves, exact = inputs(name, composed), inputs(name, composed, dtype=torch.float64)
    assert_close(gradients(kernel, leaves, name), gradients(reference, exact, name))
    found, expected = (function(*v, **settings(name)) for function, v in ((kernel, leaves), (reference, exact)))
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-6


def test_the_cases_cover_the_guard_where_it_shrinks_maps_and_where_it_does_not():
    for name, (_, _, guard, _, _, (alone, composed)) in CASES.items():
        scores, outer = inputs(name, True, dtype=torch.float64)
        free = GridMap(reference(scores, None, **settings(name) | {"guard": None}))
        both = GridMap(outer).compose_resampled(GridMap(reference(scores, None, **settings(name))))
        assert guard is None or bool((free.min_determinant() < guard).any()) == alone
        assert guard is None or bool((both.min_determinant() < guard).any()) == composed


def test_corners_that_need_the_same_share_the_gradient():
    """In an image whose rows are alike, several corners need the same factor; torch.amax shares the gradient evenly."""
    scores, _ = inputs("a line", False, dtype=torch.float64)
    scores = scores.expand(-1, -1, 4, -1) * torch.tensor([1, 0], device=DEVICE).view(2, 1, 1)
    expected = gradients(reference, (scores, None), "a line")
    assert_close(gradients(kernel, (scores.float(), None), "a line"), expected)


def test_a_corner_with_a_negative_discriminant():
    """Its determinant never reaches the guard; the reference then clamps the discriminant, without gradient."""
    x = [[0, -0.42, -0.21, 0], [0, -0.45, -0.09, 0], [0, 0.31, 0.06, 0], [0, -0.11, -0.26, 0]]
    y = [[0, 0, 0, 0], [0.46, 0.36, -0.19, -0.03], [0.17, -0.24, -0.47, -0.29], [0, 0, 0, 0]]
    outer = torch.tensor([[x, y]], device=DEVICE)
    values = (torch.zeros(1, 2, 1, 11, device=DEVICE), outer)
    found, expected = (gradients(function, values, "a line")[1] for function in (kernel, reference))  # in float32
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert (kernel(*values, **settings("a line")) - outer).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "composed"),
    [("two knots", True), *[pytest.param(name, True, marks=pytest.mark.slow) for name in ("mild", "free")]],
)
def test_a_zero_head_is_the_identity_with_finite_gradients(name: str, composed: bool):
    values = as_dtype(inputs(name, composed), torch.float32, times=0)
    assert not kernel(*values, **settings(name)).any(), "to the bit"
    found = gradients(kernel, values, name)
    assert all(slope.isfinite().all() for slope in found)
    assert_close(found, gradients(reference, as_dtype(values, torch.float64), name))


@pytest.mark.slow
@pytest.mark.parametrize("composed", [False, True])
def test_images_do_not_depend_on_each_other(composed: bool):
    scores, outer = inputs("guarded", composed)
    both, alone = (scores, outer), (scores[:1], None if outer is None else outer[:1])
    assert torch.equal(kernel(*alone, **settings("guarded"))[0], kernel(*both, **settings("guarded"))[0])
    assert_close(gradients(kernel, alone, "guarded"), gradients(reference, as_dtype(alone, torch.float64), "guarded"))
    expected = gradients(kernel, both, "guarded")[0]
    lost = scores.clone()
    lost[1, 0, 3, 3] = torch.nan
    found = gradients(kernel, (lost, outer), "guarded")[0]
    assert torch.equal(found[0], expected[0])
    assert found[1].isnan().any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_everything_is_computed_in_float32(dtype: torch.dtype):
    values = inputs("uneven", True, dtype=dtype)
    rounded = as_dtype(values, torch.float32)
    assert torch.equal(kernel(*values, **settings("uneven")), kernel(*rounded, **settings("uneven")))
    for ours, expected in zip(gradients(kernel, values, "uneven"), gradients(kernel, rounded, "uneven"), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, expected.to(dtype))


@pytest.mark.slow
def test_tensors_may_have_any_strides():
    scores, outer = inputs("uneven", True)
    assert outer is not None
    turned = (scores.mT.contiguous().mT, outer.to(memory_format=torch.channels_last))
    assert not turned[0].is_contiguous()
    assert not turned[1].is_contiguous()
    plain = gradients(kernel, (scores, outer), "uneven")
    for ours, expected in zip(gradients(kernel, turned, "uneven"), plain, strict=True):
        assert torch.equal(ours, expected)
    leaves = [value.detach().requires_grad_() for value in (scores, outer)]
    found = kernel(leaves[0], leaves[1], **settings("uneven"))
    spread = torch.autograd.grad(found.sum(), leaves, retain_graph=True)  # the gradient is one number, expanded
    for ours, expected in zip(spread, torch.autograd.grad(found, leaves, torch.ones_like(found)), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [(0,), (1,)])
def test_only_needed_gradients_are_returned(wanted: tuple[int, ...]):
    everything = gradients(kernel, inputs("guarded", True), "guarded")
    leaves = [value.requires_grad_(n in wanted) for n, value in enumerate(inputs("guarded", True)) if value is not None]
    found = kernel(*leaves, **settings("guarded"))
    found.backward(torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).to(DEVICE))
    for number, leaf in enumerate(leaves):
        assert (leaf.grad is not None) == (number in wanted)
        assert leaf.grad is None or torch.equal(leaf.grad, everything[number])


def test_second_derivatives_are_refused():
    scores, *others = inputs("guarded", True)
    scores.requires_grad_()
    found = kernel(scores, *others, **settings("guarded"))
    assert not kernel(scores.detach(), *others, **settings("guarded")).requires_grad
    (first,) = torch.autograd.grad(found.sum(), scores, retain_graph=True)
    (again,) = torch.autograd.grad(found.sum(), scores, retain_graph=True)
    assert torch.equal(first, again)
    with pytest.raises(GradientError, match="first derivatives only"):
        torch.autograd.grad(found.sum(), scores, create_graph=True)
