"""Evaluation of a model by its task."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel
from localscale.canonicalizer import SizeNetwork
from localscale.lab.tasks.task import Shard, Task
from localscale.lab.training.graph import Replayed
from localscale.lab.training.memory import memory_advice
from localscale.maps import GridMap
from localscale.metrics import size_spread

__all__ = ["evaluate"]

CANONICAL_IMAGES, CANONICAL_BATCH = 1000, 250  # test images whose canonical sizes are measured


def evaluate(
    model: nn.Module,
    task: Task,
    accelerator: Accelerator,
    *,
    batch_size: int,
    progress: bool,
    cuda_graph: bool = True,
) -> dict[str, Any]:
    """Return all metrics of the task for ``model`` in evaluation mode."""
    shard = Shard(accelerator.process_index, accelerator.num_processes)
    model.eval()

    def answer(images: Tensor) -> dict[str, Tensor]:
        with accelerator.autocast():
            return {"logits": model(images)}

    ask = Replayed(answer) if cuda_graph and accelerator.device.type == "cuda" else answer

    def predict(images: Tensor) -> Tensor:
        return ask(images)["logits"].clone()

    # Evaluation uses other batch sizes than training, and compiling for them would take longer than it saves.
    with memory_advice(batch_size), torch.compiler.set_stance("force_eager"):
        found = task.evaluate(predict, accelerator.device, shard, progress=progress)
        return found | _canonical_sizes(accelerator.unwrap_model(model), task, accelerator.device)


@torch.no_grad()
def _canonical_sizes(model: nn.Module, task: Task, device: torch.device) -> dict[str, Any]:
    """Return how equal a size equilibrium makes the sizes of things, if the model has one and the task knows boxes."""
    canonicalizer = model.input_canonicalizer if isinstance(model, AdaptedModel) else None
    sized = canonicalizer is not None and isinstance(canonicalizer.config.network, SizeNetwork)
    known = task.things(CANONICAL_IMAGES, device) if sized else None
    if canonicalizer is None or known is None:
        return {}
    images, boxes = known
    reports = [canonicalizer(part) for part in images.split(CANONICAL_BATCH)]
    maps = GridMap.from_state(torch.cat([report.map.state() for report in reports]), canonicalizer.knots)
    converged = torch.cat([report.converged for report in reports]).float().mean()
    residual = torch.cat([report.residual for report in reports]).mean()
    spread = dataclasses.asdict(size_spread(maps, boxes))
    return {
        "canonical_sizes": {"images": len(images), **spread, "residual": float(residual), "converged": float(converged)}
    }
