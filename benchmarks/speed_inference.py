"""Measure what two sites add to the inference time of a backbone, on a GPU and on a CPU."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor, nn
from tqdm import tqdm

import localscale as ls
from benchmarks.measurement import ResultTable, interleaved_milliseconds, keep_memory, warm_up_calls
from benchmarks.speed_settings import (
    NOTHING,
    QUEUE,
    QUEUED,
    TOLERANCE,
    Cell,
    bandwidth_note,
    compile_note,
    compiled,
    config,
    difference,
    floor_cells,
    left_out,
    peak,
    percent_over,
    quick_note,
    scaled,
    solve_note,
    spread,
    verdict,
)
from localscale.lab.backbones.catalogue import BACKBONES, create_backbone
from localscale.maps import GridMap

SIZE, BATCH = 224, 128
QUICK_SIZE, QUICK_NAME = 64, "two blocks of ViT-Tiny"
CPU_THREADS, CPU_BATCH = 2, 8
EARLY = {"max_steps": 20, "fixed_steps": False}  # a CPU needs no synchronisation to stop early
MAX_STEPS = 8  # allowed while the number of steps needed is found
STEPS_NEEDED = "as many steps as the slowest image needs"
IMAGE_SEED = 1
PASSES = 3  # over each site's tensor: the solve reads it, the warp reads and writes it


@dataclass(frozen=True)
class Way:
    """A precision, whether to compile, and the target for the overhead in percent."""

    name: str
    dtype: torch.dtype
    target: float
    compile: bool = False
    repeats: int = 21
    queued: bool = False  # whether to time queued calls, too, which hides the host's work


# An overhead of a few percent needs many repetitions.
COMPILED = Way("bfloat16, compiled", torch.bfloat16, 5, compile=True, repeats=101, queued=True)
EAGER = Way("bfloat16, eager", torch.bfloat16, 20, repeats=51, queued=True)
FULL = Way("float32, eager", torch.float32, 10)
ON_CPU = Way("float32, eager", torch.float32, 25, repeats=101)  # other programs disturb the timing

# Key of a backbone in the catalogue → its name, and the published code's overhead in half and full precision, in %.
MODELS = {
    "vit_base": ("ViT-B/16", "+1240 (fp16)", "+169"),
    "swin_tiny": ("Swin-T", "+827 (fp16)", "+381"),
    "beit_base": ("BEiT-B", "+1010 (fp16)", "+161"),
    "dinov2_base": ("DINOv2-B/14", "+859 (fp16)", "+126"),
}


@dataclass(frozen=True)
class Pair:
    """A backbone, and a copy of it with the same weights and canonicalizers at two sites."""

    base: nn.Module
    adapted: ls.AdaptedModel

    def to(self, device: str, dtype: torch.dtype) -> None:
        """Move both models in place."""
        self.base.to(device, dtype)
        self.adapted.to(device, dtype)

    def elements(self) -> int:
        """Return the number of elements of the features at all sites, for one image."""
        shapes = [site.shape or (1, *self.adapted.input_size) for site in self.adapted.sites]
        return sum(math.prod(shape[1:]) for shape in shapes)


def compiled_inference(device: str, quick: bool) -> ResultTable:
    return _inference("Inference with two sites, compiled", (COMPILED,), device, quick)


def eager_inference(device: str, quick: bool) -> ResultTable:
    return _inference("Inference with two sites, eager", (FULL, EAGER), device, quick)


def cpu_inference(device: str, quick: bool) -> ResultTable:
    rows = []
    if device == "cpu":
        keep_memory()
        threads, batch, size = torch.get_num_threads(), 2 if quick else CPU_BATCH, QUICK_SIZE if quick else SIZE
        torch.set_num_threads(CPU_THREADS)
        try:
            pair = make_pair("deit_tiny", quick, **EARLY)
            published = "+283 (ViT-B, batch 2)"
            rows.append(_row(pair, "DeiT-Tiny", published, ON_CPU, (batch, size), device, quick))
        finally:
            torch.set_num_threads(threads)
    solved = solve_note(f"until every residual is below {TOLERANCE:g}")
    note = (
        f"Batch {2 if quick else CPU_BATCH}, {CPU_THREADS} threads, and an allocator that keeps freed memory. "
        f"{_note(device, quick, solved)}"
    )
    return ResultTable("Inference with two sites, on a CPU", note, rows)


def _inference(title: str, ways: tuple[Way, ...], device: str, quick: bool) -> ResultTable:
    rows: list[dict[str, Cell]] = []
    batch, size = (2, QUICK_SIZE) if quick else (BATCH, SIZE)
    for key, (name, half, full) in MODELS.items():
        if left_out(device, quick) or (quick and rows):  # one model suffices to see that it runs
            break
        for way in ways:
            published = {COMPILED: half, FULL: full}.get(way, NOTHING)
            steps = steps_needed(key, way, (batch, size), device, quick)
            pair = make_pair(key, quick, max_steps=steps)
            row = _row(pair, name, published, way, (batch, size), device, quick)
            rows.append(row | {"steps": steps})
            tqdm.write(str(rows[-1]), file=sys.stderr)  # compiling takes minutes, so show finished rows at once
        torch.compiler.reset()  # frees memory for the next model
    compiling = f"{compile_note(device)} of base and adapted model alike. " if COMPILED in ways else ""
    note = (
        f"Batch {batch}, {size} px, on {device}. {compiling}Half precision means weights and images in it, not "
        f"autocast. In float32, torch.backends.cuda.matmul.allow_tf32 is {torch.backends.cuda.matmul.allow_tf32} and "
        f"torch.backends.cudnn.allow_tf32 {torch.backends.cudnn.allow_tf32}, their defaults. "
        f"{_note(device, quick, solve_note(STEPS_NEEDED)) if rows else ''}"
    )
    return ResultTable(title, note, rows)


def steps_needed(key: str, way: Way, size: tuple[int, int], device: str, quick: bool) -> int:
    """Return the number of steps that the slowest image of a row needs."""
    pair = make_pair(key, quick, max_steps=MAX_STEPS)
    pair.to(device, way.dtype)
    slowest = 1
    torch.manual_seed(IMAGE_SEED)
    with torch.no_grad():
        for _ in range(batches(way, device, quick)):
            _, report = pair.adapted(_noise(size, way, device), return_report=True)
            slowest = max(slowest, *(int(site.steps.max()) for site in report.values()))
    return slowest


def batches(way: Way, device: str, quick: bool) -> int:
    """Return the number of batches of a row: one for its memory, a few warm-up ones, and the timed ones."""
    return 1 + warm_up_calls(device) + (2 if quick else way.repeats)


def _noise(size: tuple[int, int], way: Way, device: str) -> Tensor:
    batch, side = size
    return torch.randn(batch, 3, side, side, device=device, dtype=way.dtype)


def make_pair(key: str, quick: bool, **changes: Any) -> Pair:
    """Return the backbone ``key`` with random weights, alone and adapted; with ``quick``, two ViT blocks instead."""
    torch.manual_seed(0)
    if quick:
        base: nn.Module = timm.create_model("vit_tiny_patch16_224", img_size=QUICK_SIZE, depth=2)
        site = "blocks.0"
    else:
        base = create_backbone(BACKBONES[key].timm_name, classes=1000, pretrained="none", image_size=SIZE)
        site = BACKBONES[key].sites[0]
    adapted = ls.adapt(copy.deepcopy(base), config(sites=("input", site), **changes))
    spread(adapted.canonicalizers.values())
    return Pair(base.eval(), adapted.eval())


def _row(
    pair: Pair, name: str, published: str, way: Way, size: tuple[int, int], device: str, quick: bool
) -> dict[str, Cell]:
    pair.to(device, way.dtype)
    torch.manual_seed(IMAGE_SEED)
    residuals: list[float] = []
    moved: list[float] = []

    def fresh() -> tuple[Tensor]:
        return (_noise(size, way, device),)

    def answer(images: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        logits, report = pair.adapted(images, return_report=True)
        return logits, [site.residual for site in report.values()], [site.map.displacements for site in report.values()]

    def record(call: str, answered: Any) -> None:
        if call == "adapted":
            residuals.extend(float(residual.max()) for residual in answered[1])
            moved.extend(float(GridMap(displacements).mean_displacement().mean()) for displacements in answered[2])

    calls: dict[str, Callable[..., Any]] = {"base": pair.base, "adapted": answer}
    if way.compile:
        calls = {which: compiled(call, device) for which, call in calls.items()}
    with torch.no_grad():
        images = fresh()
        peaks = {which: peak(call, images, device) for which, call in calls.items()}
        times = interleaved_milliseconds(calls, fresh, device, repeats=2 if quick else way.repeats, after=record)
        queued = {}
        if way.queued:
            queued = interleaved_milliseconds(calls, fresh, device, repeats=2 if quick else 11, queue=QUEUE)
    residual = max(residuals, default=math.inf)
    overhead = percent_over(times["base"], times["adapted"])
    over_queued = percent_over(queued.get("base", NOTHING), queued.get("adapted", NOTHING))
    traffic = PASSES * size[0] * pair.elements() * way.dtype.itemsize
    return {
        "model": QUICK_NAME if quick else name,
        "way": way.name,
        "base ms": times["base"],
        "adapted ms": times["adapted"],
        "published %": published,
        "target %": f"≤ {way.target:g}",
        "overhead %": overhead,
        "verdict": verdict(overhead, way.target, quick, residual=residual),
        "queued %": over_queued,
        "queued": verdict(over_queued, way.target, quick, residual=residual) if way.queued else NOTHING,
        **floor_cells(difference(times["base"], times["adapted"]), traffic, device, quick),
        "worst residual": max(residuals, default=NOTHING),
        "moved %": 100 * max(moved) if moved else NOTHING,
        "base peak MiB": scaled(peaks["base"], 2**20),
        "adapted peak MiB": scaled(peaks["adapted"], 2**20),
    }


def _note(device: str, quick: bool, solved: str) -> str:
    queued = f"; {QUEUED}" if device.startswith("cuda") else ""
    return (
        f"{solved}, at the input and at the first latent site. Base and adapted model take turns; times are medians of "
        f"synchronised calls, with new images of noise for every repetition{queued}. The worst residual is over all "
        "synchronised calls and both sites; moved is the mean displacement of pixels, in percent of the side, at the "
        "site where it is larger. Floor: the solve must read each site's tensor, and the warp must read and write it. "
        f"{bandwidth_note(device, quick)} Peak memory is above weights and images.{quick_note(quick)}"
    )
