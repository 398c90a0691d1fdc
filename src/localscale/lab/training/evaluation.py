"""Evaluation of a model by its task."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from localscale.lab.tasks.task import Shard, Task
from localscale.lab.training.graph import Replayed
from localscale.lab.training.memory import memory_advice

__all__ = ["evaluate"]


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
        return task.evaluate(predict, accelerator.device, shard, progress=progress)
