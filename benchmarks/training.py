"""Measure the time and peak memory of a training step with DEC, with Optim, and without either."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator

from benchmarks.measurement import ResultTable, attempt, median_milliseconds, peak_bytes
from localscale.canonicalizer import Compose, ConvNetwork, DECConfig, Descent
from localscale.equilibrium import Picard, Unrolled
from localscale.errors import TrainingError
from localscale.lab.backbones.catalogue import VIT_SITES, create_backbone, normalisation
from localscale.lab.methods import DEC, FineTune, Method
from localscale.lab.methods.dec import NETWORK, TRAINING
from localscale.lab.recipes import find_recipe
from localscale.lab.recipes.recipe import Recipe
from localscale.lab.recipes.rows import paper_dec
from localscale.lab.tasks.mnist import MNISTData, MNISTTask
from localscale.lab.training.graph import WARM_UP
from localscale.lab.training.loop import Loop

PACKAGES = ("localscale", "torch", "timm", "accelerate")
STEPS = 10  # per solve, for DEC and Optim alike
CONFIG = DECConfig.paper(
    sites=("input", "blocks.0"), knots=(6, 4), network=NETWORK, solver=Picard(max_steps=STEPS, **TRAINING)
)
METHODS: dict[str, Method] = {
    "backbone alone": FineTune(),
    "DEC direct, implicit gradient": DEC(CONFIG),
    "DEC compose, implicit gradient": DEC(dataclasses.replace(CONFIG, update=Compose())),
    "Optim, unrolled": DEC(dataclasses.replace(CONFIG, update=Descent(), gradient=Unrolled())),
}


def training_step(device: str, quick: bool) -> ResultTable:
    name = "deit_tiny_patch16_224" if quick else "vit_base_patch16_224"
    rows: list[dict[str, Any]] = []
    for batch in (2,) if quick else (10, 64):
        for label, method in METHODS.items():
            step = _step(name, method, batch, device, cuda_graph=False)
            time = median_milliseconds(step, device, repeats=1 if quick else 10)
            rows.append({"batch": batch, "method": label, "ms": time, "peak GiB": peak_bytes(step, device) / 2**30})
    if device.startswith("cuda"):  # last, because a failed recording can leave the device unusable
        for row in rows:
            row["ms, replayed"] = _replayed(name, METHODS[row["method"]], row["batch"], device)
    return ResultTable(
        f"DEC against Optim: a training step of {name}",
        f"Forward, backward and update at 224 px in bfloat16, random weights, two sites, {STEPS} steps per solve. "
        "Peak memory is what a step takes above weights and optimizer. Replayed: recorded once as a CUDA graph. The "
        "paper reports 0.19 s and 5.75 GB for DEC, 0.41 s and 43.3 GB for Optim, at batch 10.",
        rows,
    )


def depth(device: str, quick: bool) -> ResultTable:
    name = "deit_tiny_patch16_224" if quick else "vit_base_patch16_224"
    batch, side, repeats = (2, 28, 1) if quick else (10, 224, 3)
    rows: list[dict[str, Any]] = []
    for steps in (1, 2) if quick else (10, 20, 40, 80):
        solver = Picard(max_steps=steps, **TRAINING)
        config = dataclasses.replace(paper_dec(VIT_SITES).config, network=ConvNetwork(resolution=side), solver=solver)
        optim = dataclasses.replace(config, update=Descent(), gradient=Unrolled())
        for label, method in {"DEC direct": DEC(config), "Optim": DEC(optim)}.items():
            step = _step(name, method, batch, device, cuda_graph=False)
            time = attempt(functools.partial(median_milliseconds, step, device, repeats=repeats))
            peak = attempt(functools.partial(_peak_gigabytes, step, device))
            rows.append({"steps": steps, "method": label, "ms": time, "peak GiB": peak})
    return ResultTable(
        f"Time and memory by the steps of a solve: a training step of {name}",
        f"As above, batch {batch}, with the paper's four modules. The module at the image looks at {side} px, not at a "
        "copy of 56 px. Optim keeps what every step computes, DEC with implicit gradients only one step. The paper "
        "reports 43.3 GB and 0.41 s for Optim, 5.75 GB and 0.19 s for DEC, and does not give the number of steps.",
        rows,
    )


def _peak_gigabytes(step: Callable[[], object], device: str) -> float:
    return peak_bytes(step, device) / 2**30


def _replayed(name: str, method: Method, batch: int, device: str) -> float | str:
    step = _step(name, method, batch, device, cuda_graph=True)
    try:
        for _ in range(WARM_UP + 1):
            step()
        return median_milliseconds(step, device, repeats=10)
    except (TrainingError, RuntimeError):
        return "cannot be recorded"


def _step(name: str, method: Method, batch: int, device: str, *, cuda_graph: bool):  # type: ignore[no-untyped-def]
    recipe: Recipe = find_recipe("mnist-vit_base-dec")
    recipe = dataclasses.replace(
        recipe,
        backbone=name,
        method=method,
        optimization=dataclasses.replace(recipe.optimization, batch_size=batch),
    )
    torch.manual_seed(0)
    backbone = create_backbone(name, classes=1000, pretrained="none")
    task = Noise(MNISTData(), normalisation(backbone), batch)
    accelerator = Accelerator(mixed_precision="bf16", cpu=device == "cpu")
    loop = Loop(recipe, backbone, task, accelerator, cuda_graph=cuda_graph)
    where = accelerator.device
    images, labels = torch.rand(batch, 1, 224, 224, device=where), torch.randint(1000, (batch,), device=where)
    samples = torch.arange(batch)
    return lambda: loop.one_step(0, samples, (images, labels))


class Noise(MNISTTask):
    """Random images instead of digits: a step takes the same time, and nothing is downloaded."""

    def __init__(self, data: MNISTData, normalise: object, batch_size: int) -> None:
        self.data, self.normalise, self.batch_size = data, normalise, batch_size  # type: ignore[assignment]
        self.train_count = data.train_count


MEASUREMENTS = (training_step, depth)
