"""Measure the time and memory that DEC adds to a training step of a backbone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from benchmarks.measurement import ResultTable, interleaved_milliseconds
from benchmarks.speed_settings import (
    Cell,
    bandwidth_note,
    difference,
    floor_cells,
    left_out,
    peak,
    percent_over,
    quick_note,
    scaled,
    spread,
    verdict,
)
from benchmarks.training import Noise
from localscale.adaptation import AdaptedModel
from localscale.canonicalizer import DECConfig
from localscale.equilibrium import Anderson, Picard
from localscale.lab.backbones.catalogue import create_backbone, normalisation
from localscale.lab.methods import DEC, FineTune, Method
from localscale.lab.methods.dec import NETWORK, TRAINING
from localscale.lab.recipes import find_recipe
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.training.loop import Loop

BATCH = 64
STEPS = 4  # at most; one more than ViT-B's slower site needs to reach the tolerance
TARGET = {"time": 15, "memory": 5}  # percent
SOLVERS = {"anderson": Anderson(STEPS, **TRAINING), "picard": Picard(STEPS, **TRAINING)}
# Passes over each site's tensor: the solve reads it; the warp reads and writes it; backward reads it and the gradient
# of the warp's output, and writes the gradient of a latent feature.
IMAGE_PASSES, LATENT_PASSES = 5, 6


@dataclass(frozen=True)
class SpreadDEC(DEC):
    """DEC whose maps are not the identity from the first step on."""

    def build(
        self,
        backbone: nn.Module,
        *,
        input_size: tuple[int, int, int] | None = None,
        source_size: tuple[int, int] | None = None,
    ) -> AdaptedModel:
        model = super().build(backbone, input_size=input_size, source_size=source_size)
        spread(model.canonicalizers.values())
        return model


def training_step(device: str, quick: bool) -> ResultTable:
    ways = {"eager": False} | ({"replayed": True} if device.startswith("cuda") else {})
    batch, size = (2, 64) if quick else (BATCH, 224)
    rows = (
        []
        if left_out(device, quick)
        else [r for way in ways.items() for r in _rows(*way, (batch, size), device, quick)]
    )
    note = (
        f"Forward, backward and update of {_name(quick)}, batch {batch}, {size} px, bfloat16 autocast, random weights, "
        "the recipe's random scaling of images included in both. DEC direct, implicit gradients, sites input and "
        f"blocks.0 of 6 and 4 knots, at most {STEPS} steps forward and always as many backward. With and without "
        "take turns on new images of noise for every repetition; times are medians. Replayed: the step recorded as "
        "a CUDA graph; memory is that of the eager step above weights and optimizer. The residual is the mean over the "
        "last batch at the site where it is larger. Floor: the solve reads each site's tensor, in float32; the warp "
        "reads and writes it; backward reads it and the gradient of the warp's output, and writes the gradient of a "
        f"latent one. {bandwidth_note(device, quick) if rows else ''}{quick_note(quick)}"
    )
    return ResultTable("A training step with DEC over one without", note, rows)


def _name(quick: bool) -> str:
    return "vit_tiny_patch16_224" if quick else "vit_base_patch16_224"


def _rows(way: str, replayed: bool, size: tuple[int, int], device: str, quick: bool) -> list[dict[str, Cell]]:
    batch, side = size
    methods: dict[str, Method] = {"without": FineTune()} | {
        name: SpreadDEC(DECConfig.paper(sites=("input", "blocks.0"), knots=(6, 4), network=NETWORK, solver=solver))
        for name, solver in SOLVERS.items()
    }
    calls = {name: _step(method, size, device, quick, replayed=replayed) for name, method in methods.items()}
    residuals: dict[str, float] = {}

    own = torch.Generator(device).manual_seed(0)  # every training step reseeds the global generator

    def fresh() -> tuple[Tensor, Tensor]:
        images = torch.rand(batch, 1, side, side, device=device, generator=own)
        return images, torch.randint(1000, (batch,), device=device, generator=own)

    def record(name: str, answer: dict[str, Tensor]) -> None:
        found = [float(value) for scalar, value in answer.items() if scalar.endswith("/residual")]
        residuals[name] = max(found, default=0.0)

    inputs = fresh()
    peaks = {name: peak(call, inputs, device) for name, call in calls.items()}
    times = interleaved_milliseconds(calls, fresh, device, repeats=1 if quick else 15, after=record)
    tokens = (1 + (side // 16) ** 2) * (192 if quick else 768)
    moved = 4 * batch * (IMAGE_PASSES * 3 * side**2 + LATENT_PASSES * tokens)
    rows: list[dict[str, Cell]] = []
    for solver in SOLVERS:
        slower = percent_over(times["without"], times[solver])
        larger = percent_over(peaks["without"], peaks[solver])
        rows.append(
            {
                "step": way,
                "solver": solver,
                "without ms": times["without"],
                "with DEC ms": times[solver],
                "published %": "+442 (fp16)",
                "target %": f"≤ {TARGET['time']}",
                "overhead %": slower,
                "time": verdict(slower, TARGET["time"], quick, residual=residuals.get(solver, torch.inf)),
                **floor_cells(difference(times["without"], times[solver]), moved, device, quick),
                "without GiB": scaled(peaks["without"], 2**30),
                "with DEC GiB": scaled(peaks[solver], 2**30),
                "published extra": "5.7 GB",
                "target extra %": f"≤ {TARGET['memory']}",
                "extra memory %": larger,
                "memory": verdict(larger, TARGET["memory"], quick),
                "residual": residuals.get(solver, "–"),
            }
        )
    return rows


def _step(
    method: Method, size: tuple[int, int], device: str, quick: bool, *, replayed: bool
) -> Callable[[Tensor, Tensor], Any]:
    batch, side = size
    recipe: Any = find_recipe("mnist-vit_base-dec")
    optimization = dataclasses.replace(recipe.optimization, batch_size=batch)
    data = dataclasses.replace(recipe.data, image_size=side)
    recipe = dataclasses.replace(recipe, backbone=_name(quick), method=method, data=data, optimization=optimization)
    torch.manual_seed(0)
    backbone = create_backbone(_name(quick), classes=1000, pretrained="none", image_size=side)
    task = Noise(MNISTData(), normalisation(backbone), batch)
    accelerator = Accelerator(mixed_precision="bf16", cpu=device == "cpu")
    loop = Loop(recipe, backbone, task, accelerator, cuda_graph=replayed)
    samples = torch.arange(batch)
    return lambda images, labels: loop.one_step(0, samples, (images, labels))
