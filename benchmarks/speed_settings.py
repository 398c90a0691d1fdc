"""Settings and table cells that all tables of the speed suite share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

import localscale as ls
from benchmarks.core import spread_heads
from benchmarks.measurement import attempt, copy_bandwidth, peak_bytes
from localscale.canonicalizer.network import FEATURE_SIDE, IMAGE_SIDE

STEPS = 4  # largest number of solver steps, for tables that do not find out how many are needed
TOLERANCE = 1e-3  # relative residual below which a target counts as met
SPREAD = 0.1  # standard deviation of a last layer's random weights; at 0.25 Swin-T needs more than six steps on noise
# The mode "reduce-overhead", without Inductor's timed choice between two forms of every elementwise kernel. Its outcome
# is random and changes the time by more than canonicalizers cost: a GELU took 117 µs in one program, 159 in another.
COMPILE_OPTIONS = {"triton.cudagraphs": True, "triton.autotune_pointwise": False}
QUEUE = 8  # queued calls between two synchronisations
QUEUED = f"queued is the time per call of {QUEUE} calls with one synchronisation at the end, as for many batches"

NOTHING = "–"
Cell = float | str


def config(
    *, max_steps: int = STEPS, fixed_steps: bool = True, resolution: int | None = None, **changes: Any
) -> ls.DECConfig:
    """Return the paper's DEC with a fixed number of steps, and ``changes``.

    Its tolerance is a thousandth below the target's, so that no row misses it by the last digits of a residual.
    """
    solver = ls.Anderson(max_steps, 0.999 * TOLERANCE, fixed_steps=fixed_steps)
    return ls.DECConfig.paper(solver=solver, network=ls.ConvNetwork(resolution=resolution), **changes)


def spread(canonicalizers: Iterable[ls.Canonicalizer]) -> None:
    """Give the canonicalizers random last layers, so that their maps are not the identity."""
    for canonicalizer in canonicalizers:
        spread_heads(canonicalizer, SPREAD)


def compiled(f: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Compile ``f``; on a CPU, where only ``--quick`` does so, trace it and run it eagerly."""
    how: dict[str, Any] = {"options": COMPILE_OPTIONS} if device.startswith("cuda") else {"backend": "eager"}
    program = torch.compile(f, dynamic=False, **how)

    def call(*inputs: Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # allows overwriting the last call's answers
        return program(*inputs)

    return call


def compile_note(device: str) -> str:
    """Describe the options of :func:`compiled`."""
    return (
        f"torch.compile(options={COMPILE_OPTIONS})" if device.startswith("cuda") else 'torch.compile(backend="eager")'
    )


def peak(call: Callable[..., Any], inputs: tuple[Any, ...], device: str) -> Cell:
    """Return by how many bytes memory grows at its peak during ``call``.

    Measure it before timing: a CUDA graph allocates memory while it is recorded, in its second call at the earliest,
    and none when it is replayed.
    """
    return attempt(lambda: peak_bytes(lambda: call(*inputs), device))


def left_out(device: str, quick: bool) -> bool:
    """Return whether to skip a table whose targets are for an H200: on a CPU, unless ``quick``."""
    return not device.startswith("cuda") and not quick


def verdict(measured: Cell, target: float, quick: bool, *, residual: float = 0.0) -> str:
    """Return whether a target was met; with ``quick`` sizes it does not apply."""
    if quick:
        return NOTHING
    if isinstance(measured, str) or not measured <= target:
        return "missed"
    return "met" if residual <= TOLERANCE else f"missed: residual above {TOLERANCE:g}"


def percent_over(base: Cell, measured: Cell) -> Cell:
    """Return how much ``measured`` is above ``base``, in percent of ``base``."""
    if isinstance(base, str) or isinstance(measured, str):
        return NOTHING
    return 100 * (measured / base - 1) if base else NOTHING


def difference(base: Cell, measured: Cell) -> Cell:
    """Return ``measured`` − ``base``."""
    return NOTHING if isinstance(base, str) or isinstance(measured, str) else measured - base


def floor_cells(measured: Cell, moved: float, device: str, quick: bool) -> dict[str, Cell]:
    """Return the shortest time in which ``moved`` bytes can be moved, and ``measured`` as a multiple of it."""
    floor = 1000 * moved / copy_bandwidth(device, quick)
    return {"floor ms": floor, "× floor": NOTHING if isinstance(measured, str) else measured / floor}


def scaled(measured: Cell, unit: float) -> Cell:
    """Return ``measured`` in a larger unit."""
    return measured if isinstance(measured, str) else measured / unit


def bandwidth_note(device: str, quick: bool) -> str:
    """Describe how the floors of a table were measured."""
    speed = copy_bandwidth(device, quick) / 1e9
    return f"The floor assumes {speed:.0f} GB/s of reading and writing, which a large copy reached in the same run."


def quick_note(quick: bool) -> str:
    """Return a warning if sizes are small."""
    return " Small sizes, to see that it runs: targets do not apply." if quick else ""


def solve_note(
    steps: str = f"at most {STEPS} steps",
    copies: str = f"copies of {IMAGE_SIDE} px of images and {FEATURE_SIDE} of features",
) -> str:
    """Describe how equilibria were solved."""
    default = config()
    return (
        f"The paper's DEC (direct update, {default.family} maps of {default.knots} knots, "
        f"anderson, {copies}), {steps}, random last layers of spread {SPREAD:g}"
    )
