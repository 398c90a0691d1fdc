"""The head with its gradients against autograd on its plain twin, in Triton's interpreter where there is no GPU."""

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
# Knots (x, y), size (h, w), smallest determinant, temperature, how strong the pixels are, and whether the guard must
# shrink what they come to, by itself and composed with another map.
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
every_case = pytest.mark.parametrize("name", CASES)
either_way = pytest.mark.parametrize("composed", [False, True], ids=["direct", "compose"])
Inputs = tuple[Tensor, Tensor | None]  # weighed pixels, the outer map's displacements


def inputs(name: str, composed: bool, batch: int = 2, dtype: torch.dtype = torch.float32) -> Inputs:
    knots, size, _, _, spread, _ = CASES[name]
    rng = torch.Generator().manual_seed(0)
    outer = ls.random_map(batch, knots, strength=1.5, generator=rng).displacements
    outer = (outer + 0.003 * torch.randn(outer.shape, generator=rng)).to(DEVICE, dtype)  # its sides move, for once
    weighed = (spread * torch.randn(batch, 2, *size, generator=rng)).to(DEVICE, dtype)
    return weighed, outer if composed else None


def as_dtype(values: Inputs, dtype: torch.dtype, times: float = 1) -> Inputs:
    weighed, outer = values
    return times * weighed.to(dtype), None if outer is None else times * outer.to(dtype)


def settings(name: str) -> dict[str, Any]:
    return {"knots": CASES[name][0], "guard": CASES[name][2], "temperature": CASES[name][3]}


def twin(weighed: Tensor, outer: Tensor | None, *, guard: float | None, **chosen: Any) -> Tensor:
    """The network itself, with a trunk that passes on and heads that take one of two channels each."""
    network = MapNetwork(2, channels=(2,), guard=guard, **chosen).to(weighed.device, weighed.dtype)
    network.trunk = Trunk(2, ())
    with torch.no_grad():
        network.to_x.weight[0, 0] = network.to_y.weight[0, 1] = 1
    found = network(weighed)
    return (found if outer is None else GridMap(outer).compose_resampled(found, guard=guard)).displacements


def kernel(weighed: Tensor, outer: Tensor | None, **chosen: Any) -> Tensor:
    return differentiable_displacements(weighed, **chosen, outer=outer)


def slopes(function: Callable[..., Tensor], values: Inputs, name: str) -> list[Tensor]:
    """Gradients to every input there is, for some gradient to the displacements."""
    leaves = [None if value is None else value.detach().requires_grad_() for value in values]
    found = function(*leaves, **settings(name))
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).to(found)
    return list(torch.autograd.grad(found, [leaf for leaf in leaves if leaf is not None], grad))


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, twins in zip(found, expected, strict=True):
        assert ours.shape == twins.shape
        assert (ours - twins).abs().max() <= 1e-5 * twins.abs().max() + 1e-7


@either_way
@every_case
def test_values_and_gradients_are_the_twins(name: str, composed: bool):
    leaves, exact = inputs(name, composed), inputs(name, composed, dtype=torch.float64)
    assert_close(slopes(kernel, leaves, name), slopes(twin, exact, name))
    found, expected = (function(*v, **settings(name)) for function, v in ((kernel, leaves), (twin, exact)))
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-6


@every_case
def test_the_guard_is_tested_where_it_shrinks_maps_and_where_it_does_not(name: str):
    guard, (alone, composed) = CASES[name][2], CASES[name][-1]
    weighed, outer = inputs(name, True, dtype=torch.float64)
    free = GridMap(twin(weighed, None, **settings(name) | {"guard": None}))
    inner = GridMap(twin(weighed, None, **settings(name)))
    assert guard is None or bool((free.min_determinant() < guard).any()) == alone
    assert guard is None or bool((GridMap(outer).compose_resampled(inner).min_determinant() < guard).any()) == composed


def test_corners_that_need_the_same_share_the_gradient():
    """As in an image whose rows are alike, where torch shares it evenly too."""
    weighed, _ = inputs("a line", False, dtype=torch.float64)
    weighed = weighed.expand(-1, -1, 4, -1) * torch.tensor([1, 0], device=DEVICE).view(2, 1, 1)
    expected = slopes(twin, (weighed, None), "a line")
    assert_close(slopes(kernel, (weighed.float(), None), "a line"), expected)


def test_a_neediest_corner_that_turns_more_than_it_shrinks():
    """Its determinant never crosses the guard's, and the twin's gradient leaves out the discriminant too."""
    x = [[0, -0.42, -0.21, 0], [0, -0.45, -0.09, 0], [0, 0.31, 0.06, 0], [0, -0.11, -0.26, 0]]
    y = [[0, 0, 0, 0], [0.46, 0.36, -0.19, -0.03], [0.17, -0.24, -0.47, -0.29], [0, 0, 0, 0]]
    outer = torch.tensor([[x, y]], device=DEVICE)
    values = (torch.zeros(1, 2, 1, 11, device=DEVICE), outer)
    found, expected = (slopes(function, values, "a line")[1] for function in (kernel, twin))  # in float32, as its least
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert (kernel(*values, **settings("a line")) - outer).abs().max() > 0.1


@either_way
@pytest.mark.parametrize("name", ["mild", "two knots", "free"])
def test_a_zero_head_is_the_identity_with_finite_gradients(name: str, composed: bool):
    values = as_dtype(inputs(name, composed), torch.float32, times=0)
    assert not kernel(*values, **settings(name)).any(), "to the bit"
    found = slopes(kernel, values, name)
    assert all(slope.isfinite().all() for slope in found)
    assert_close(found, slopes(twin, as_dtype(values, torch.float64), name))


@either_way
def test_images_are_alone(composed: bool):
    weighed, outer = inputs("guarded", composed)
    both, alone = (weighed, outer), (weighed[:1], None if outer is None else outer[:1])
    assert torch.equal(kernel(*alone, **settings("guarded"))[0], kernel(*both, **settings("guarded"))[0])
    assert_close(slopes(kernel, alone, "guarded"), slopes(twin, as_dtype(alone, torch.float64), "guarded"))
    expected = slopes(kernel, both, "guarded")[0]
    lost = weighed.clone()
    lost[1, 0, 3, 3] = torch.nan
    found = slopes(kernel, (lost, outer), "guarded")[0]
    assert torch.equal(found[0], expected[0])
    assert found[1].isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_is_computed_in_float32_whatever_comes(dtype: torch.dtype):
    values = inputs("uneven", True, dtype=dtype)
    rounded = as_dtype(values, torch.float32)
    assert torch.equal(kernel(*values, **settings("uneven")), kernel(*rounded, **settings("uneven")))
    for ours, expected in zip(slopes(kernel, values, "uneven"), slopes(kernel, rounded, "uneven"), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, expected.to(dtype))


def test_memory_may_lie_in_any_order():
    weighed, outer = inputs("uneven", True)
    assert outer is not None
    turned = (weighed.mT.contiguous().mT, outer.to(memory_format=torch.channels_last))
    assert not turned[0].is_contiguous()
    assert not turned[1].is_contiguous()
    plain = slopes(kernel, (weighed, outer), "uneven")
    for ours, expected in zip(slopes(kernel, turned, "uneven"), plain, strict=True):
        assert torch.equal(ours, expected)
    leaves = [value.detach().requires_grad_() for value in (weighed, outer)]
    found = kernel(leaves[0], leaves[1], **settings("uneven"))
    spread = torch.autograd.grad(found.sum(), leaves, retain_graph=True)  # by one number, expanded
    for ours, expected in zip(spread, torch.autograd.grad(found, leaves, torch.ones_like(found)), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("wanted", [(0,), (1,)])
def test_only_what_is_wanted_is_given(wanted: tuple[int, ...]):
    everything = slopes(kernel, inputs("guarded", True), "guarded")
    leaves = [value.requires_grad_(n in wanted) for n, value in enumerate(inputs("guarded", True)) if value is not None]
    found = kernel(*leaves, **settings("guarded"))
    found.backward(torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).to(DEVICE))
    for number, leaf in enumerate(leaves):
        assert (leaf.grad is not None) == (number in wanted)
        assert leaf.grad is None or torch.equal(leaf.grad, everything[number])


def test_it_can_be_differentiated_often_but_not_twice():
    weighed, *others = inputs("guarded", True)
    weighed.requires_grad_()
    found = kernel(weighed, *others, **settings("guarded"))
    assert not kernel(weighed.detach(), *others, **settings("guarded")).requires_grad
    (first,) = torch.autograd.grad(found.sum(), weighed, retain_graph=True)
    (again,) = torch.autograd.grad(found.sum(), weighed, retain_graph=True)
    assert torch.equal(first, again)
    with pytest.raises(GradientError, match="first derivatives only"):
        torch.autograd.grad(found.sum(), weighed, create_graph=True)
