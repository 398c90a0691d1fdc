"""Measure one warp, forward and backward, beside PyTorch's ``grid_sample`` and kornia's ``remap``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import localscale as ls
from benchmarks.measurement import ResultTable, interleaved_milliseconds
from benchmarks.speed_settings import (
    NOTHING,
    QUEUE,
    QUEUED,
    Cell,
    bandwidth_note,
    floor_cells,
    left_out,
    peak,
    quick_note,
    scaled,
    verdict,
)
from localscale.conventions import pixel_positions, to_grid_sample
from localscale.lab.training.graph import Replayed
from localscale.layouts import Layout, Tokens, as_nchw, pixels_of
from localscale.maps import GridMap

KNOTS = (6, 6)
OURS, REPLAYED, IN_CALLER = "localscale", "localscale, replayed", ", in the caller's thread"
GIVEN = "grid_sample, grid given"


@dataclass(frozen=True)
class Feature:
    """A tensor to warp: shape, layout, and its published and target times in ms, without and with the backward pass."""

    name: str
    shape: tuple[int, ...]
    layout: Layout
    pixels: tuple[int, int]
    learned: bool  # whether it needs a gradient, too, besides the map
    published: tuple[float, float]
    target: tuple[float, float]

    @property
    def passes(self) -> tuple[int, int]:
        """The number of tensors of this size that must be read or written: forward, and with backward.

        Backward reads the tensor and the gradient of the output, and writes the tensor's gradient if it needs one.
        """
        return 2, 5 if self.learned else 4


FEATURES = (
    Feature("128×3×224²", (128, 3, 224, 224), "NCHW", (224, 224), False, (3.0, 25), (0.25, 1.5)),
    Feature("128×768×14² tokens", (128, 197, 768), Tokens(14, 14, 1), (14, 14), True, (2.4, 4.2), (0.15, 0.5)),
)
QUICK = (
    Feature("2×3×32²", (2, 3, 32, 32), "NCHW", (32, 32), False, (3.0, 25), (0.25, 1.5)),
    Feature("2×8×7² tokens", (2, 50, 8), Tokens(7, 7, 1), (7, 7), True, (2.4, 4.2), (0.15, 0.5)),
)


@dataclass(frozen=True)
class Inputs:
    """A tensor, its map in the form that each method takes, and a gradient of the output."""

    x: Tensor
    displacements: Tensor
    grid: Tensor
    positions: Tensor
    slope: Tensor


# A method takes the tensor, its layout, and the map in its own form.
Method = Callable[[Tensor, Layout, Tensor], Tensor]


def _ours(x: Tensor, layout: Layout, displacements: Tensor) -> Tensor:
    return ls.unscale(x, GridMap(displacements), layout=layout)


def _grid_sample(x: Tensor, layout: Layout, grid: Tensor) -> Tensor:
    view, back = as_nchw(x, layout)
    y = F.grid_sample(view.float(), grid, mode="bilinear", padding_mode="border", align_corners=True)
    return back(y.to(x.dtype))


def _half_grid(x: Tensor, layout: Layout, grid: Tensor) -> Tensor:
    view, back = as_nchw(x, layout)
    return back(F.grid_sample(view, grid.to(x.dtype), mode="bilinear", padding_mode="border", align_corners=True))


def _grid_made(x: Tensor, layout: Layout, displacements: Tensor) -> Tensor:
    height, width = pixels_of(x, layout)
    return _grid_sample(
        x, layout, to_grid_sample(pixel_positions(GridMap(displacements).displacement_field(height, width)))
    )


def _remap(x: Tensor, layout: Layout, positions: Tensor) -> Tensor:
    from kornia.geometry.transform import remap

    view, back = as_nchw(x, layout)
    columns, rows = positions.unbind(-1)
    return back(remap(view.float(), columns, rows, padding_mode="border", align_corners=True).to(x.dtype))


METHODS: dict[str, tuple[Method, str]] = {
    OURS: (_ours, "displacements"),
    GIVEN: (_grid_sample, "grid"),
    "grid_sample, grid made": (_grid_made, "displacements"),
    "kornia's remap, positions given": (_remap, "positions"),
    "grid_sample, grid given, itself in half precision": (_half_grid, "grid"),
}


def warp(device: str, quick: bool) -> ResultTable:
    rows: list[dict[str, Cell]] = []
    for feature in () if left_out(device, quick) else QUICK if quick else FEATURES:
        for dtype in (torch.float32, torch.bfloat16):
            for backward in (False, True):
                rows += _rows(feature, dtype, backward, device, quick)
    note = (
        "`ls.unscale` with random grid maps of 6 knots, strength 0.5; backward to the map (ours: its control points), "
        "and to the features of tokens, which have one prefix token. Eager; all methods take turns on the same new "
        f"inputs for every repetition; times are medians. Calls are synchronised; {QUEUED}. Other libraries sample in "
        "float32 and cast back, except where the grid is bfloat16, too. Autograd runs backward passes in a thread of "
        "its own unless they are in the caller's thread (torch.autograd.set_multithreading_enabled). Replayed: run "
        "as a CUDA graph, into which inputs are copied. The largest error is against the same warp in float64 of the "
        "same tensor. Floor: forward reads and writes the tensor, backward reads it and the gradient of the output and "
        "writes the tokens' gradient. Peak memory is above the inputs. "
        f"{bandwidth_note(device, quick) if rows else ''}{quick_note(quick)}"
    )
    return ResultTable("One warp", note, rows)


def _rows(feature: Feature, dtype: torch.dtype, backward: bool, device: str, quick: bool) -> list[dict[str, Cell]]:
    def fresh() -> tuple[Inputs]:
        return (_make_inputs(feature, dtype, device),)

    calls = {
        name: _call(method, form, feature, backward)
        for name, (method, form) in METHODS.items()
        if method is not _half_grid or dtype != torch.float32
    }
    if backward:
        calls |= {name + IN_CALLER: _in_caller(calls[name]) for name in (OURS, GIVEN)}
    if device.startswith("cuda"):
        calls[REPLAYED] = _replayed(calls[OURS], backward)
    inputs = fresh()
    reference = _ours(inputs[0].x.double(), feature.layout, inputs[0].displacements.double())
    errors: dict[str, float] = {}

    def record(name: str, answer: tuple[Tensor, ...]) -> None:
        if name not in errors:
            errors[name] = float((calls[name](*inputs)[0].double() - reference).abs().max())

    peaks = {name: peak(call, inputs, device) for name, call in calls.items()}
    times = interleaved_milliseconds(calls, fresh, device, repeats=2 if quick else 51, after=record)
    queued = interleaved_milliseconds(calls, fresh, device, repeats=2 if quick else 11, queue=QUEUE)
    moved = feature.passes[backward] * inputs[0].x.nbytes
    rows: list[dict[str, Cell]] = []
    for name, time in times.items():
        is_ours = name in (OURS, OURS + IN_CALLER, REPLAYED)
        rows.append(
            {
                "tensor": feature.name,
                "precision": str(dtype).removeprefix("torch."),
                "what": "forward and backward" if backward else "forward",
                "method": name,
                "published ms": feature.published[backward] if is_ours else NOTHING,
                "target ms": f"≤ {feature.target[backward]:g}" if is_ours else NOTHING,
                "ms": time,
                "verdict": verdict(time, feature.target[backward], quick) if is_ours else NOTHING,
                "queued ms": queued[name],
                "queued": verdict(queued[name], feature.target[backward], quick) if is_ours else NOTHING,
                **floor_cells(time, moved, device, quick),
                "largest error": errors.get(name, NOTHING),
                "peak MiB": scaled(peaks[name], 2**20),
            }
        )
    return rows


def _call(method: Method, form: str, feature: Feature, backward: bool) -> Callable[[Inputs], tuple[Any, ...]]:
    def forward_only(inputs: Inputs) -> tuple[Tensor]:
        with torch.no_grad():
            return (method(inputs.x, feature.layout, getattr(inputs, form)),)

    def with_backward(inputs: Inputs) -> tuple[Tensor, ...]:
        x, m = inputs.x.detach(), getattr(inputs, form).detach().requires_grad_()
        wanted = [m, x.requires_grad_()] if feature.learned else [m]
        y = method(x, feature.layout, m)
        return y.detach(), *torch.autograd.grad(y, wanted, inputs.slope)

    return with_backward if backward else forward_only


def _in_caller(call: Callable[[Inputs], tuple[Any, ...]]) -> Callable[[Inputs], tuple[Any, ...]]:
    """Return the same call without autograd's own thread."""

    def in_caller(inputs: Inputs) -> tuple[Any, ...]:
        with torch.autograd.set_multithreading_enabled(False):
            return call(inputs)

    return in_caller


def _replayed(call: Callable[[Inputs], tuple[Any, ...]], backward: bool) -> Callable[[Inputs], tuple[Any, ...]]:
    """Return the same call replayed from a CUDA graph, which leaves out the host's time."""

    def step(x: Tensor, displacements: Tensor, slope: Tensor | None = None) -> dict[str, Tensor]:
        inputs = Inputs(x, displacements, x, x, x if slope is None else slope)
        return {str(n): answer for n, answer in enumerate(call(inputs))}

    replay = Replayed(step)

    def replayed(inputs: Inputs) -> tuple[Any, ...]:
        slopes = (inputs.slope,) if backward else ()
        return tuple(replay(inputs.x, inputs.displacements, *slopes).values())

    return replayed


def _make_inputs(feature: Feature, dtype: torch.dtype, device: str) -> Inputs:
    x, slope = (torch.randn(feature.shape, device=device, dtype=dtype) for _ in range(2))
    m = ls.random_map(feature.shape[0], KNOTS, strength=0.5, device=device)
    assert isinstance(m, GridMap)
    positions = pixel_positions(m.displacement_field(*feature.pixels))
    return Inputs(x, m.displacements, to_grid_sample(positions), positions, slope)
