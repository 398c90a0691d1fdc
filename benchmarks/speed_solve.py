"""Measure the equilibrium solve alone, beside torchdeq's Anderson, and how its cost grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import localscale as ls
from benchmarks.measurement import ResultTable, interleaved_milliseconds
from benchmarks.speed_settings import (
    NOTHING,
    QUEUE,
    QUEUED,
    STEPS,
    TOLERANCE,
    Cell,
    bandwidth_note,
    compile_note,
    compiled,
    config,
    floor_cells,
    left_out,
    peak,
    quick_note,
    scaled,
    solve_note,
    spread,
    verdict,
)
from localscale.lab.training.graph import Replayed
from localscale.maps import GridMap

IMAGE, LATENT = (3, 224, 224), (768, 14, 14)
QUICK_IMAGE, QUICK_LATENT = (3, 32, 32), (8, 7, 7)
BATCH = 128
PUBLISHED = {"ms": 175, "GB": 6.5}
TARGET = {"ms": 1.5, "GB": 0.3}
TORCHDEQ_STEPS = 20  # at most; torchdeq's solver stops by itself

Shape = tuple[int, ...]


def solve(device: str, quick: bool) -> ResultTable:
    rows: list[dict[str, Cell]] = []
    for dtype in () if left_out(device, quick) else (torch.float32,) if quick else (torch.float32, torch.bfloat16):
        rows += _solve_rows(dtype, device, quick)
        torch.compiler.reset()
    (image, latent), batch = _sizes(quick)
    note = (
        f"Batch {batch}, an image of {_size(image)} and a feature of {_size(latent)}, each by its own canonicalizer, "
        f"forward only. {solve_note()}; torchdeq stops at a relative residual of {TOLERANCE:g}, on the same function. "
        "Times are medians, with new inputs of noise for every repetition; calls are synchronised, and "
        f"{QUEUED}. Compiled: {compile_note(device)}. "
        "Replayed: recorded as a CUDA graph; memory is that of the step recorded. Floor: both inputs are read once. "
        f"{bandwidth_note(device, quick) if rows else ''}{quick_note(quick)}"
    )
    return ResultTable("The solve alone, two sites", note, rows)


def _solve_rows(dtype: torch.dtype, device: str, quick: bool) -> list[dict[str, Cell]]:
    shapes, batch = _sizes(quick)
    canonicalizers = make_canonicalizers(shapes, device)
    worst: dict[str, float] = {}
    steps: dict[str, float] = {}

    def ours(*features: Tensor) -> dict[str, Tensor]:
        reports = [one(feature) for one, feature in zip(canonicalizers, features, strict=True)]
        return {
            "residual": torch.stack([report.residual for report in reports]),
            "steps": torch.stack([report.steps for report in reports]),
        } | {f"map {index}": report.map.state() for index, report in enumerate(reports)}

    def torchdeqs(*features: Tensor) -> dict[str, Tensor]:
        return _solve_with_torchdeq(canonicalizers, features)

    def record(name: str, answer: dict[str, Tensor]) -> None:
        worst[name] = max(worst.get(name, 0.0), float(answer["residual"].max()))
        steps[name] = max(steps.get(name, 0.0), float(answer["steps"].max()))

    def fresh() -> tuple[Tensor, ...]:
        return tuple(torch.randn(batch, *shape, device=device, dtype=dtype) for shape in shapes)

    calls: dict[str, Callable[..., Any]] = {
        "localscale, eager": ours,
        "torchdeq's Anderson, eager": torchdeqs,
        "localscale, compiled": compiled(ours, device),
    }
    if device.startswith("cuda"):
        calls["localscale, replayed"] = Replayed(ours)
    with torch.no_grad():
        inputs = fresh()
        peaks = {name: peak(call, inputs, device) for name, call in calls.items()}
        times = interleaved_milliseconds(calls, fresh, device, repeats=2 if quick else 21, after=record)
        queued = interleaved_milliseconds(calls, fresh, device, repeats=2 if quick else 11, queue=QUEUE)
    moved = sum(feature.nbytes for feature in inputs)
    rows: list[dict[str, Cell]] = []
    for name, time in times.items():
        memory, is_ours = scaled(peaks[name], 1e9), name.startswith("localscale")
        residual = worst.get(name, torch.inf)
        rows.append(
            {
                "solver": name,
                "precision": str(dtype).removeprefix("torch."),
                "published ms": PUBLISHED["ms"] if is_ours else NOTHING,
                "target ms": f"≤ {TARGET['ms']:g}" if is_ours else NOTHING,
                "ms": time,
                "time": verdict(time, TARGET["ms"], quick, residual=residual) if is_ours else NOTHING,
                "queued ms": queued[name],
                "queued": verdict(queued[name], TARGET["ms"], quick, residual=residual) if is_ours else NOTHING,
                **floor_cells(time, moved, device, quick),
                "published GB": PUBLISHED["GB"] if is_ours else NOTHING,
                "target GB": f"≤ {TARGET['GB']:g}" if is_ours else NOTHING,
                "peak GB": memory,
                "memory": verdict(memory, TARGET["GB"], quick) if is_ours else NOTHING,
                "worst residual": worst.get(name, NOTHING),
                "most steps": steps.get(name, NOTHING),
            }
        )
    return rows


def _sizes(quick: bool) -> tuple[tuple[Shape, Shape], int]:
    """Return the shapes of the image and the latent feature, and the batch size."""
    return ((QUICK_IMAGE, QUICK_LATENT), 2) if quick else ((IMAGE, LATENT), BATCH)


def _size(shape: Shape) -> str:
    return f"{shape[0]}×{shape[1]}²"


def make_canonicalizers(shapes: tuple[Shape, ...], device: str, **changes: Any) -> list[ls.Canonicalizer]:
    """Return a canonicalizer with random weights for each of ``shapes`` (C, H, W)."""
    torch.manual_seed(0)
    settings = config(**changes)
    made = [ls.Canonicalizer(shape[0], settings.knots_at(0), settings) for shape in shapes]
    spread(made)
    return [one.to(device).eval() for one in made]


def _solve_with_torchdeq(canonicalizers: list[ls.Canonicalizer], features: tuple[Tensor, ...]) -> dict[str, Tensor]:
    from torchdeq.solver import anderson_solver

    answer: dict[str, Tensor] = {}
    residuals, steps = [], []
    for index, (one, feature) in enumerate(zip(canonicalizers, features, strict=True)):
        copy = one.working_copy(feature)

        def f(state: Tensor, one: ls.Canonicalizer = one, copy: Tensor = copy) -> Tensor:
            return one.network(ls.unscale(copy, GridMap.from_state(state, one.knots))).state()

        start = ls.identity_map(len(copy), one.knots, device=copy.device).state()
        assert isinstance(one.solver, ls.Anderson)
        history = one.solver.history
        point, _, info = anderson_solver(f, start, max_iter=TORCHDEQ_STEPS, tol=TOLERANCE, stop_mode="rel", m=history)
        answer[f"map {index}"] = point
        residuals.append(info["rel_lowest"])
        steps.append(info["nstep"])
    return answer | {"residual": torch.stack(residuals), "steps": torch.stack(steps)}


def growth(device: str, quick: bool) -> ResultTable:
    on_gpu = device.startswith("cuda")
    image, latent = _sizes(quick)[0]
    usual = {"batch": 2 if quick else 64 if on_gpu else 4, "resolution": 56, "knots": 6, "sites": 2, "steps": STEPS}
    batches = (16, 32, 64, 128, 256) if on_gpu else (1, 2, 4, 8, 16)
    axes: dict[str, tuple[int, ...]] = {
        "batch": batches,
        "resolution": (28, 56, 112),
        "knots": (4, 6, 8, 10, 16),
        "sites": (1, 2, 3, 4),
        "steps": (2, 4, 8, 16, 32),
    }
    rows: list[dict[str, Cell]] = []
    for axis, values in axes.items():
        for value in values[:2] if quick else values:
            chosen = usual | {axis: value}
            shapes = (image, latent, latent, latent)[: chosen["sites"]]
            canonicalizers = make_canonicalizers(
                shapes, device, resolution=chosen["resolution"], knots=chosen["knots"], max_steps=chosen["steps"]
            )
            rows.append({"axis": axis, "value": value, **_cost(canonicalizers, shapes, chosen["batch"], device, quick)})
    replayed = "that of a replayed CUDA graph, which leaves out the host's time, " * on_gpu
    usually = ", ".join(f"{name} {value}" for name, value in usual.items())
    solved = solve_note(copies="copies of that resolution")
    note = (
        f"One setting varied at a time, the others at {usually}, float32. The first site takes an image of "
        f"{_size(image)}, the others features of {_size(latent)}. {solved}. Time is {replayed}the median over "
        "new inputs. Backward is the implicit gradient to weights and latent features, with as many steps as "
        f"forward.{quick_note(quick)}"
    )
    return ResultTable("How the cost of a solve grows", note, rows)


def _cost(
    canonicalizers: list[ls.Canonicalizer], shapes: tuple[Shape, ...], batch: int, device: str, quick: bool
) -> dict[str, Cell]:
    weights = [weight for one in canonicalizers for weight in one.parameters()]

    def forward(*features: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            return {str(n): one(x).map.state() for n, (one, x) in enumerate(zip(canonicalizers, features, strict=True))}

    def backward(*features: Tensor) -> dict[str, Tensor]:
        leaves = [features[0], *(feature.detach().requires_grad_() for feature in features[1:])]
        maps = [one(leaf).map.state() for one, leaf in zip(canonicalizers, leaves, strict=True)]
        loss = torch.stack([state.square().sum() for state in maps]).sum()
        gradients = torch.autograd.grad(loss, [*weights, *leaves[1:]])
        return {str(n): gradient for n, gradient in enumerate(gradients)}

    def fresh() -> tuple[Tensor, ...]:
        return tuple(torch.randn(batch, *shape, device=device) for shape in shapes)

    calls: dict[str, Callable[..., Any]] = {"forward": forward, "forward and backward": backward}
    inputs = fresh()
    peaks = {name: peak(call, inputs, device) for name, call in calls.items()}
    if device.startswith("cuda"):
        calls = {name: Replayed(call) for name, call in calls.items()}
    times = interleaved_milliseconds(
        calls, fresh, device, repeats=1 if quick else 11 if device.startswith("cuda") else 5
    )
    return {f"{name} ms": time for name, time in times.items()} | {
        f"{name} peak MiB": scaled(most, 2**20) for name, most in peaks.items()
    }
