"""What the tables of the speed suite share: how every equilibrium is solved, and the words in their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

import localscale as ls
from benchmarks.core import spread_heads
from benchmarks.measurement import attempt, copy_bandwidth, peak_bytes
from localscale.canonicalizer.network import FEATURE_SIDE, IMAGE_SIDE

STEPS = 4  # evaluations of an image at most, where a table does not find out how many are needed
TOLERANCE = 1e-3  # relative residual that a target asks for
SPREAD = 0.1  # of the random weights in a last layer; at 0.25 six steps are too few for Swin-T on noise
# The mode "reduce-overhead", but for a choice between two forms of every elementwise kernel that Inductor makes by
# timing them: its luck is worth more than all canonicalizers cost. The same GELU took 117 µs in one program and 159 in
# another.
COMPILE_OPTIONS = {"triton.cudagraphs": True, "triton.autotune_pointwise": False}
QUEUE = 8  # calls before anyone waits, where calls are queued
QUEUED = f"queued is a call's share of {QUEUE} that are waited for together, as one does with many batches"

NOTHING = "–"
Cell = float | str


def config(
    *, max_steps: int = STEPS, fixed_steps: bool = True, resolution: int | None = None, **changes: Any
) -> ls.DECConfig:
    """Return the default configuration with a fixed number of steps, and ``changes``.

    Its tolerance is a thousandth below the target's, so that no row misses it by the last digits of a residual.
    """
    solver = ls.Anderson(max_steps, 0.999 * TOLERANCE, fixed_steps=fixed_steps)
    return ls.DECConfig(solver=solver, network=ls.ConvNetwork(resolution=resolution), **changes)


def spread(canonicalizers: Iterable[ls.Canonicalizer]) -> None:
    """Give the canonicalizers random last layers, as if they had learned something."""
    for canonicalizer in canonicalizers:
        spread_heads(canonicalizer, SPREAD)


def compiled(f: Callable[..., Any], device: str) -> Callable[..., Any]:
    """``f`` compiled; on a CPU, where only ``--quick`` asks for it, traced and run as it is."""
    how: dict[str, Any] = {"options": COMPILE_OPTIONS} if device.startswith("cuda") else {"backend": "eager"}
    program = torch.compile(f, dynamic=False, **how)

    def call(*inputs: Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # the last call's answers may be overwritten
        return program(*inputs)

    return call


def compile_note(device: str) -> str:
    """What :func:`compiled` did, in words."""
    return (
        f"torch.compile(options={COMPILE_OPTIONS})" if device.startswith("cuda") else 'torch.compile(backend="eager")'
    )


def peak(call: Callable[..., Any], inputs: tuple[Any, ...], device: str) -> Cell:
    """The most memory alive during ``call``, in bytes, above what was there before.

    Ask before timing: a recorded program takes its memory while it is recorded, in its second call at the earliest, and
    none when it is replayed.
    """
    return attempt(lambda: peak_bytes(lambda: call(*inputs), device))


def left_out(device: str, quick: bool) -> bool:
    """Whether a table whose targets are for one H200 has nothing to say here."""
    return not device.startswith("cuda") and not quick


def verdict(measured: Cell, target: float, quick: bool, *, residual: float = 0.0) -> str:
    """Whether a target was met; small sizes say nothing about it."""
    if quick:
        return NOTHING
    if isinstance(measured, str) or not measured <= target:
        return "missed"
    return "met" if residual <= TOLERANCE else f"missed: residual above {TOLERANCE:g}"


def percent_over(base: Cell, measured: Cell) -> Cell:
    """How much ``measured`` is above ``base``, in percent of it."""
    if isinstance(base, str) or isinstance(measured, str):
        return NOTHING
    return 100 * (measured / base - 1) if base else NOTHING


def difference(base: Cell, measured: Cell) -> Cell:
    """``measured`` less ``base``."""
    return NOTHING if isinstance(base, str) or isinstance(measured, str) else measured - base


def floor_cells(measured: Cell, moved: float, device: str, quick: bool) -> dict[str, Cell]:
    """The time in which ``moved`` bytes can be moved at all, and how many times as long ``measured`` is."""
    floor = 1000 * moved / copy_bandwidth(device, quick)
    return {"floor ms": floor, "× floor": NOTHING if isinstance(measured, str) else measured / floor}


def scaled(measured: Cell, unit: float) -> Cell:
    """``measured`` in a larger unit."""
    return measured if isinstance(measured, str) else measured / unit


def bandwidth_note(device: str, quick: bool) -> str:
    """What the floors of a table are measured by."""
    speed = copy_bandwidth(device, quick) / 1e9
    return f"The floor is at {speed:.0f} GB/s, reading and writing, which a large copy reached in the same run."


def quick_note(quick: bool) -> str:
    """A warning, where sizes are small."""
    return " Small sizes, to see that it runs: targets do not apply." if quick else ""


def solve_note(
    evaluations: str = f"at most {STEPS} evaluations",
    copies: str = f"copies of {IMAGE_SIDE} px of images and {FEATURE_SIDE} of features",
) -> str:
    """How equilibria were solved, in words."""
    default = config()
    return (
        f"Default configuration (direct update, {default.family} maps of {default.knots} knots, "
        f"anderson, {copies}), {evaluations}, random last layers of spread {SPREAD:g}"
    )
