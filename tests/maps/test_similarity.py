"""``map_from_scales``: the least-squares problem it solves, its exact cases, its gradients and its bad input."""

import pytest
import torch
from host_syncs import HostSyncs
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from localscale.errors import MapError
from localscale.maps import map_from_scales

BACKGROUND, SHEAR = 0.05, 0.7


def fields(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    scale = torch.rand(shape, generator=rng, dtype=dtype) + 0.4
    return scale, torch.rand(shape, generator=rng, dtype=dtype) ** 2


def interpolate(field: Tensor, x: float, y: float) -> float:
    """One image's field at a point, linear between its samples, corners on corners."""
    rows, columns = field.shape
    total = 0.0
    for i in range(rows):
        for j in range(columns):
            near = max(0.0, 1 - abs(y * (rows - 1) - i)) * max(0.0, 1 - abs(x * (columns - 1) - j))
            total += near * float(field[i, j])
    return total


def dense_solution(scale: Tensor, weight: Tensor, columns: int, rows: int) -> Tensor:
    """Displacements along x of one map, ``(rows, columns)``, by a dense solve of the normal equations, edge by edge."""
    number = {(i, j): i * (columns - 2) + j - 1 for i in range(rows) for j in range(1, columns - 1)}
    matrix = torch.zeros(len(number), len(number), dtype=torch.float64)
    right = torch.zeros(len(number), dtype=torch.float64)

    def add(first: tuple[int, int], second: tuple[int, int], stiffness: float, pull: float, spacing: int) -> None:
        """The term stiffness·(spacing·(u₂ − u₁))² − 2·pull·spacing·(u₂ − u₁)."""
        ends = [(number[node], sign) for node, sign in ((first, -1), (second, 1)) if node in number]
        for a, sign_a in ends:
            right[a] += sign_a * pull * spacing
            for b, sign_b in ends:
                matrix[a, b] += sign_a * sign_b * stiffness * spacing**2

    for i in range(rows):
        for j in range(columns - 1):
            at = ((j + 0.5) / (columns - 1), i / (rows - 1))
            w = interpolate(weight, *at)
            pull = (w + BACKGROUND) * interpolate(weight * (scale - 1), *at) / (w + 1e-4)
            add((i, j), (i, j + 1), w + BACKGROUND, pull, columns - 1)
    for i in range(rows - 1):
        for j in range(1, columns - 1):
            w = interpolate(weight, j / (columns - 1), (i + 0.5) / (rows - 1))
            add((i, j), (i + 1, j), SHEAR * (w + BACKGROUND), 0.0, rows - 1)
    solved = torch.linalg.solve(matrix, right).view(rows, columns - 2)
    return torch.nn.functional.pad(solved, (1, 1))


@pytest.mark.parametrize("knots", [(3, 3), (7, 4), (2, 5), (14, 14)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_solves_the_weighted_least_squares_problem(knots: tuple[int, int], dtype: torch.dtype):
    scale, weight = fields(2, 6, 9)
    m = map_from_scales(scale.to(dtype), weight.to(dtype), knots=knots, background=BACKGROUND, shear=SHEAR, guard=None)
    for index in range(2):
        x = dense_solution(scale[index], weight[index], *knots)
        y = dense_solution(scale[index].T, weight[index].T, *knots[::-1]).T
        torch.testing.assert_close(m.displacements[index].double(), torch.stack((x, y)), atol=1e-5, rtol=0)


def test_a_ratio_that_depends_on_x_alone_has_the_closed_form():
    """Σ wⱼ(gⱼ − Tⱼ)² over the slopes of one line, whose mean is 1, is least at g = T + (1 − mean T)·(1/w)/mean(1/w)."""
    scale, weight = (field[0, 0] for field in fields(1, 1, 8))
    m = map_from_scales(*(field.expand(1, 9, 8) for field in (scale, weight)), knots=9, background=0.02, guard=None)
    middles = (torch.arange(8) + 0.5) / 8
    w = torch.tensor([interpolate(weight[None], float(x), 0.0) for x in middles], dtype=torch.float64)
    pull = torch.tensor(
        [interpolate((weight * (scale - 1))[None], float(x), 0.0) for x in middles], dtype=torch.float64
    )
    stiff = w + 0.02
    target = 1 + pull / (w + 1e-4)
    expected = target + (1 - target.mean()) / stiff / (1 / stiff).mean()
    slopes = 1 + m.displacements[0, 0].diff(dim=1) * 8
    torch.testing.assert_close(slopes, expected.expand_as(slopes), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_to_do_is_the_identity(dtype: torch.dtype):
    scale, weight = fields(3, 8, 8, dtype=dtype)
    assert not map_from_scales(scale, torch.zeros_like(weight)).displacements.any(), "weight 0"
    assert not map_from_scales(torch.ones_like(scale), weight).displacements.any(), "ratio 1"
    same = map_from_scales(torch.full_like(scale, 0.4), torch.full_like(weight, 0.7))
    assert same.displacements.abs().max() < 1e-6, "the same ratio everywhere"


def test_small_things_are_read_from_a_smaller_region():
    scale, weight = torch.full((1, 14, 14), 1.0), torch.zeros(1, 14, 14)
    scale[:, 5:9, 5:9], weight[:, 5:9, 5:9] = 0.4, 1.0
    m = map_from_scales(scale, weight)
    jacobian = m.jacobian(torch.tensor([[[0.5, 0.5]]]))[0, 0]
    torch.testing.assert_close(jacobian, 0.4 * torch.eye(2), atol=0.05, rtol=0)


def test_the_fold_guard_holds():
    scale, weight = fields(4, 14, 14)
    m = map_from_scales(scale**4, weight, background=1e-3, guard=0.1)
    assert (m.min_determinant() > 0.0999).all()


def test_gradients():
    scale, weight = (field.requires_grad_() for field in fields(2, 5, 4))
    assert gradcheck(lambda s, w: map_from_scales(s, w, knots=(5, 4), guard=None).displacements, (scale, weight))
    assert gradcheck(lambda s, w: map_from_scales(s, w, knots=(4, 3)).displacements, (scale, weight))
    assert gradgradcheck(lambda s, w: map_from_scales(s, w, knots=(4, 3)).displacements, (scale, weight))


@pytest.mark.parametrize(
    "knots", [pytest.param(3, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow), (5, 4)]
)
def test_compiled_in_one_graph_it_is_the_same(knots: int | tuple[int, int]):
    def displacements(scale: Tensor, weight: Tensor) -> Tensor:
        return map_from_scales(scale, weight, knots=knots).displacements

    def run(call, *given: Tensor) -> list[Tensor]:
        leaves = [field.clone().requires_grad_() for field in given]
        found = call(*leaves)
        return [found, *torch.autograd.grad(found.square().sum(), leaves)]

    given = fields(2, 6, 6, dtype=torch.float32)
    compiled = torch.compile(displacements, fullgraph=True, backend="aot_eager")
    for found, expected in zip(run(compiled, *given), run(displacements, *given), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


class Displacements(nn.Module):
    def forward(self, scale: Tensor, weight: Tensor) -> Tensor:
        return map_from_scales(scale, weight, knots=6).displacements


def test_exported_for_any_batch_size_it_is_the_same():
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(
        Displacements(), fields(2, 6, 6, dtype=torch.float32), dynamic_shapes=(batch, batch)
    ).module()
    for given in (fields(2, 6, 6, dtype=torch.float32), fields(5, 6, 6, dtype=torch.float32)):
        torch.testing.assert_close(program(*given), Displacements()(*given), atol=1e-6, rtol=0)


def test_it_never_synchronises_with_the_host():
    scale, weight = (field.requires_grad_() for field in fields(2, 6, 6, dtype=torch.float32))
    with HostSyncs() as syncs:
        map_from_scales(scale, weight, knots=5).displacements.sum().backward()
    assert syncs.count == 0


def test_autocast_changes_nothing():
    scale, weight = fields(2, 6, 6, dtype=torch.float32)
    expected = map_from_scales(scale, weight, knots=(5, 4)).displacements
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(map_from_scales(scale, weight, knots=(5, 4)).displacements, expected)


def test_values_that_are_no_ratio_count_for_nothing():
    scale, weight = fields(1, 7, 7)
    bad, unseen = scale.clone(), weight.clone()
    bad[0, 2, :4] = torch.tensor([0.0, -1.0, torch.nan, torch.inf])
    unseen[0, 2, :4] = 0
    torch.testing.assert_close(map_from_scales(bad, weight).displacements, map_from_scales(scale, unseen).displacements)
    broken = weight.clone()
    broken[0, 2, :4] = torch.tensor([-1.0, torch.nan, torch.inf, 0.0])
    torch.testing.assert_close(
        map_from_scales(scale, broken).displacements, map_from_scales(scale, unseen).displacements
    )


@pytest.mark.parametrize("size", [1e-30, 1e6, 1e30])
@pytest.mark.parametrize("heavy", [1e-30, 1.0, 1e30])
def test_extreme_values_spoil_neither_maps_nor_gradients(size: float, heavy: float):
    """Every map is finite and does not fold, and one image's values do not reach the map of another."""
    scale, weight = (field.float() for field in fields(2, 8, 8))
    expected = map_from_scales(scale, weight).displacements[1]
    scale[0, 2:4, 2:5], weight[0, 2:4, 2:5] = size, heavy
    leaves = scale.requires_grad_(), weight.requires_grad_()
    m = map_from_scales(*leaves)
    assert m.min_determinant().min() > 0.0999
    torch.testing.assert_close(m.displacements[1], expected, atol=1e-6, rtol=0)
    assert all(bool(gradient.isfinite().all()) for gradient in torch.autograd.grad(m.displacements.sum(), leaves))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"weight": torch.ones(1, 4, 5)}, r"scale has shape \(1, 4, 4\) and weight \(1, 4, 5\)"),
        ({"scale": torch.ones(4, 4), "weight": torch.ones(4, 4)}, r"expected \(batch, height, width\), each at least"),
        ({"scale": torch.ones(0, 4, 4), "weight": torch.ones(0, 4, 4)}, r"shape \(0, 4, 4\) .* each at least 1"),
        ({"weight": torch.ones(1, 4, 4).double()}, "expected float32 or float64 for both"),
        ({"knots": 1}, "at least 2 control points"),
        ({"background": 0.0}, "background is 0.0; expected a positive number"),
        ({"shear": -1.0}, "shear is -1.0; expected a positive number"),
        ({"guard": 1.0}, "guard is 1.0"),
    ],
)
def test_bad_input_is_refused(arguments: dict, sentence: str):
    given = {"scale": torch.ones(1, 4, 4), "weight": torch.ones(1, 4, 4)} | arguments
    with pytest.raises(MapError, match=sentence):
        map_from_scales(given.pop("scale"), given.pop("weight"), **given)
