"""Measure exact inverses, gradients, memory, convergence and overhead of the library's core."""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

import localscale as ls
from benchmarks.measurement import ResultTable, median_milliseconds, peak_bytes
from localscale.canonicalizer import MapNetwork
from localscale.equilibrium import Anderson, Implicit, relative_residual

PIXELS = 223  # pixel distances across a 224-pixel image


def inverses(device: str, quick: bool) -> ResultTable:
    """Measure |l⁻¹(l(p)) − p| in pixels at 224, for our inverse and the row-wise one."""
    rows = []
    for strength in (0.2, 1.0, 2.0):
        for knots in (4, 8, 16):
            generator = torch.Generator().manual_seed(0)
            m = ls.random_map(20 if quick else 200, knots, strength=strength, generator=generator, device=device)
            points = torch.rand(1, 500, 2, generator=generator).to(device).expand(m.batch, -1, -1)
            row: dict[str, float | str] = {"strength": strength, "knots": knots}
            for method in ("exact", "rowwise"):
                error = PIXELS * torch.linalg.vector_norm(m.inverse(method)(m(points)) - points, dim=-1)
                row |= {f"{method} mean px": float(error.mean()), f"{method} max px": float(error.max())}
            rows.append(row)
    note = "Grid maps, guard 0.1, float32, 224 px. The row-wise inverse is the paper's (App. A2.2)."
    return ResultTable("Inverse of a grid map", note, rows)


def refits(device: str, quick: bool) -> ResultTable:
    """Measure the error of re-sampling a composition on its lattice."""
    rows = []
    for strength in (0.25, 0.5, 1.0):
        for knots in (4, 8, 16):
            generator = torch.Generator().manual_seed(0)
            a, b = (
                ls.random_map(20 if quick else 200, knots, strength=strength, generator=generator, device=device)
                for _ in range(2)
            )
            error = PIXELS * ls.maps.resampling_error(a @ b, knots)
            rows.append(
                {"strength": strength, "knots": knots, "median px": float(error.median()), "max px": float(error.max())}
            )
    return ResultTable(
        "Re-fitting a∘b on its lattice", "Largest distance over the image, at 224 px; `@` itself is exact.", rows
    )


def gradients(device: str, quick: bool) -> ResultTable:
    """Compare each gradient rule with central differences, on a canonicalizer whose maps are far from the identity."""
    canonicalizer, features = _far_from_identity("cpu", batch=2, dtype=torch.float64)
    assert isinstance(canonicalizer.network, MapNetwork)
    weight = canonicalizer.network.to_x.weight
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    target = torch.randn(2, 9, 9, 2, generator=generator, dtype=torch.float64)

    def loss(gradient: str) -> Tensor:
        config = {"gradient": gradient, "solver": {"kind": "anderson", "max_steps": 60, "tolerance": 1e-10}}
        tight = ls.Canonicalizer(192, (6, 6), ls.DECConfig.paper(**config))
        tight.network = canonicalizer.network
        return (tight(features).map.displacement_field(9, 9) * target).sum()

    step = 1e-5
    with torch.no_grad():
        weight += step * direction
        above = loss("implicit")
        weight -= 2 * step * direction
        below = loss("implicit")
        weight += step * direction
    true = float(above - below) / (2 * step)
    reference = torch.autograd.grad(loss("unrolled"), weight)[0].flatten()
    rows = []
    for rule in ("implicit", "unrolled", "phantom(1)", "phantom(5)"):
        gradient = torch.autograd.grad(loss(rule), weight)[0].flatten()
        rows.append(
            {
                "gradient": rule,
                "relative error": abs(float(gradient @ direction.flatten()) - true) / abs(true),
                "cosine to the true gradient": float(F.cosine_similarity(gradient, reference, dim=0)),
            }
        )
    note = "Directional derivative of a loss on the maps, against central differences; float64, direct update, grid."
    return ResultTable("Gradients of an equilibrium", note, rows)


def memory(device: str, quick: bool) -> ResultTable:
    """Measure the peak memory of forward and backward, at 5 and at 50 forward steps."""
    rows = []
    for rule in ("implicit", "unrolled"):
        peaks = {}
        for steps in (5, 50):
            canonicalizer, features = _far_from_identity(device, batch=2 if quick else 16)
            adjoint = Anderson(max_steps=10, tolerance=0, fixed_steps=True)
            gradient = Implicit(adjoint) if rule == "implicit" else "unrolled"
            solver = Anderson(max_steps=steps, tolerance=0, fixed_steps=True)
            peaks[steps] = peak_bytes(lambda: _solve_and_backward(canonicalizer, features, solver, gradient), device)  # noqa: B023
        rows.append(
            {
                "gradient": rule,
                "5 steps MiB": peaks[5] / 2**20,
                "50 steps MiB": peaks[50] / 2**20,
                "growth %": 100 * (peaks[50] / peaks[5] - 1),
            }
        )
    return ResultTable(
        "Peak memory of a solve, forward and backward", "192 channels at 14×14, adjoint at 10 steps.", rows
    )


def solvers(device: str, quick: bool) -> ResultTable:
    """Compare our Anderson with torchdeq's on the same equilibria: steps, residual and time."""
    from torchdeq.solver import anderson_solver

    canonicalizer, features = _far_from_identity(device, batch=4 if quick else 64)
    f, start = _equilibrium(canonicalizer, features)
    ours = Anderson()

    def solve() -> tuple[Tensor, Tensor]:
        estimate = ours.solve(f, start)
        return estimate.point, estimate.steps

    def solve_with_torchdeq() -> tuple[Tensor, Tensor]:
        point, _, info = anderson_solver(
            f, start, max_iter=ours.max_steps, tol=ours.tolerance, stop_mode="rel", m=ours.history
        )
        return point, info["nstep"]

    rows = []
    for name, method in (("localscale", solve), ("torchdeq", solve_with_torchdeq)):
        with torch.no_grad():
            point, steps = method()
            residual = relative_residual(point, f(point))
            rows.append(
                {
                    "Anderson of": name,
                    "reached 1e-4 %": 100 * float((residual <= ours.tolerance).double().mean()),
                    "mean steps": float(steps.double().mean()),
                    "worst residual": float(residual.max()),
                    "ms": median_milliseconds(method, device, repeats=3 if quick else 15),
                }
            )
    note = "Direct update, 6×6 knots, 192 channels at 14×14, head weights of spread 0.5, at most 20 steps."
    return ResultTable("Anderson on the same equilibria", note, rows)


def overhead(device: str, quick: bool) -> ResultTable:
    """Measure an adapted model's forward time over its base's, with the paper's DEC."""
    import timm

    rows = []
    batch = 2 if quick else 8
    for name in ("deit_tiny_patch16_224",) if quick else ("deit_tiny_patch16_224", "resnet18"):
        site = "blocks.0" if "deit" in name else "layer1"
        model = (
            ls.adapt(timm.create_model(name), ls.DECConfig.paper(sites=("input", site), knots=(6, 4))).to(device).eval()
        )
        for canonicalizer in model.canonicalizers.values():
            spread_heads(canonicalizer, 0.5)
        images = torch.rand(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0)).to(device)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = median_milliseconds(lambda: model(images), device, repeats=3 if quick else 15)  # noqa: B023
            with model.disabled():
                base = median_milliseconds(lambda: model(images), device, repeats=3 if quick else 15)  # noqa: B023
        rows.append({"model": name, "base ms": base, "adapted ms": adapted, "overhead %": 100 * (adapted / base - 1)})
    note = f"Batch {batch}, 224 px, eager float32, sites input and first block, equilibria to 1e-4, random weights."
    return ResultTable("Cost of two sites", note, rows)


MEASUREMENTS = (inverses, refits, gradients, memory, solvers, overhead)
PACKAGES = ("localscale", "torch", "timm", "torchdeq")


def _far_from_identity(
    device: str, *, batch: int, dtype: torch.dtype = torch.float32
) -> tuple[ls.Canonicalizer, Tensor]:
    """Return a canonicalizer with random weights, and features that it moves by a few percent of the image."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    canonicalizer = ls.Canonicalizer(192, (6, 6), ls.DECConfig.paper())
    spread_heads(canonicalizer, 0.5)
    features = torch.randn(batch, 192, 14, 14, generator=generator, dtype=dtype)
    return canonicalizer.to(device, dtype), features.to(device)


def spread_heads(canonicalizer: ls.Canonicalizer, spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, parameter in canonicalizer.named_parameters():
        if "to_" in name:
            parameter.data.copy_(spread * torch.randn(parameter.shape, generator=generator))


def _equilibrium(canonicalizer: ls.Canonicalizer, features: Tensor) -> tuple:
    """Return the function whose fixed point the canonicalizer finds, and the starting point."""
    from localscale.maps import GridMap

    copy = canonicalizer.working_copy(features)

    def f(state: Tensor) -> Tensor:
        return canonicalizer.network(ls.unscale(copy, GridMap.from_state(state, (6, 6)))).state()

    return f, ls.identity_map(len(features), 6, device=features.device).state()


def _solve_and_backward(canonicalizer: ls.Canonicalizer, features: Tensor, solver: Anderson, gradient: object) -> None:
    f, start = _equilibrium(canonicalizer, features)
    ls.fixed_point(f, start, solver=solver, gradient=gradient).value.square().sum().backward()  # type: ignore[arg-type]
    canonicalizer.zero_grad()
