"""Measure what the size equilibrium adds to the inference time of a backbone, and how long it takes to learn sizes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn

import localscale as ls
from benchmarks.measurement import ResultTable, interleaved_milliseconds, keep_memory
from benchmarks.speed_settings import NOTHING, Cell, difference, percent_over, verdict
from localscale.lab.recipes.tables import EQUAL_COMPUTE

BACKBONES = {"ViT-B/16": "vit_base_patch16_224", "DeiT-Tiny": "deit_tiny_patch16_224"}
QUICK = {"two blocks of ViT-Tiny": "vit_tiny_patch16_224"}
WAYS = {"4 looks, 2 maps each": (4, 2), "6 looks": (6, 1), "8 looks": (8, 1)}
TARGET = 15  # percent, for ViT-B/16 on a GPU
LEARNING = (1000, 128)  # steps and batch size


def sizes(device: str, quick: bool) -> ResultTable:
    """Time backbones with and without the size equilibrium; on a GPU, forward passes are replayed as CUDA graphs."""
    on_gpu = device.startswith("cuda")
    batch, side = (2, 64) if quick else (128, 224) if on_gpu else (8, 224)
    names = QUICK if quick else BACKBONES if on_gpu else {"DeiT-Tiny": BACKBONES["DeiT-Tiny"]}
    keep_memory()
    rows = []
    for label, name in names.items():
        rows += _rows(label, name, (batch, side), device, quick)
    how = "bfloat16, replayed as CUDA graphs" if on_gpu else "float32, eager"
    note = (
        f"Batch {batch}, {side} px, {how}, random weights; the size network has random weights too, and moves things. "
        f"A backbone alone at {EQUAL_COMPUTE} px is the equal-compute control of the MNIST table."
    )
    return ResultTable("The size equilibrium at inference", note, rows)


def _rows(label: str, name: str, size: tuple[int, int], device: str, quick: bool) -> list[dict[str, Cell]]:
    (batch, side), on_gpu = size, device.startswith("cuda")
    dtype = torch.bfloat16 if on_gpu else torch.float32
    base = _backbone(name, side, quick)
    models: dict[str, nn.Module] = {"alone": base}
    models |= {way: _adapted(base, side, *looks) for way, looks in WAYS.items()}
    images = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    calls = {way: _call(model.to(device, dtype).eval(), images) for way, model in models.items()}
    if not quick:
        larger = torch.randn(batch, 3, EQUAL_COMPUTE, EQUAL_COMPUTE).to(device, dtype)
        alone = f"alone at {EQUAL_COMPUTE} px"
        calls[alone] = _call(_backbone(name, EQUAL_COMPUTE, quick).to(device, dtype).eval(), larger)
    times = interleaved_milliseconds(calls, tuple, device, repeats=1 if quick else 51 if on_gpu else 11)
    rows: list[dict[str, Cell]] = []
    for way, found in times.items():
        over = percent_over(times["alone"], found)
        judged = way in WAYS and label == "ViT-B/16"
        rows.append(
            {
                "backbone": label,
                "size equilibrium": way,
                "ms": found,
                "added ms": difference(times["alone"], found) if way != "alone" else NOTHING,
                "overhead %": over if way != "alone" else NOTHING,
                "target %": f"≤ {TARGET}" if judged else NOTHING,
                "verdict": verdict(over, TARGET, quick) if judged else NOTHING,
            }
        )
    return rows


def _backbone(name: str, side: int, quick: bool) -> nn.Module:
    torch.manual_seed(0)
    small: dict[str, Any] = {"depth": 2} if quick else {}
    return timm.create_model(name, img_size=side, **small)


def _adapted(base: nn.Module, side: int, looks: int, settling: int) -> ls.AdaptedModel:
    """Return a copy of ``base`` behind a size network that moves things."""
    network = ls.SizeNetwork(settling=settling)
    config = ls.DECConfig(network=network, solver=ls.Picard(max_steps=looks, tolerance=1e-3, fixed_steps=True))
    model = ls.adapt(copy.deepcopy(base), config, input_size=(3, side, side))
    estimator = model.size_canonicalizer().network
    nn.init.normal_(estimator.head.weight, std=0.3)
    estimator.trust.fill_(0.7)
    return model


def _call(model: nn.Module, images: Tensor) -> Callable[[], Any]:
    """Return a call of ``model`` without gradients, recorded as a CUDA graph on a GPU."""

    @torch.inference_mode()
    def call() -> Tensor:
        return model(images)

    if not images.is_cuda:
        return call
    for _ in range(4):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def learning(device: str, quick: bool) -> ResultTable:
    """Time ``ls.learn_sizes`` with its default number of steps."""
    on_gpu = device.startswith("cuda")
    rows: list[dict[str, Cell]] = []
    if on_gpu or quick:
        (steps, batch), side = (2, 4) if quick else LEARNING, 64 if quick else 224
        base = _backbone("vit_tiny_patch16_224", side, quick=True)
        model = ls.adapt(base, input_size=(3, side, side)).to(device)
        images = torch.rand(4 * batch, 3, side, side, device=device)
        start = time.perf_counter()
        found = ls.learn_sizes(model, images, steps=steps, batch_size=batch, progress=False)
        seconds = time.perf_counter() - start
        rows.append({"steps": found.steps, "batch": batch, "side": side, "seconds": seconds, "target": "≤ 60 s"})
        rows[0]["verdict"] = verdict(seconds, 60, quick)
    return ResultTable("Learning sizes", "`ls.learn_sizes` on images in the device's memory, float32.", rows)
