"""Split data into uneven batches, and measure in two processes of one process group."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

WORLD = 2


def batches(parts: dict[str, Tensor], *sizes: int) -> list[dict[str, Tensor]]:
    split = {name: part.split(list(sizes)) for name, part in parts.items()}
    return [{name: split[name][n] for name in parts} for n in range(len(sizes))]


def in_two_processes(measure: Callable[[int], dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return ``measure(rank)`` of each of two processes in one process group.

    The processes are forked, so that they need not import torchmetrics again.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        torch.multiprocessing.start_processes(_worker, args=(measure, folder), nprocs=WORLD, start_method="fork")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


def _worker(rank: int, measure: Callable[[int], dict[str, Any]], folder: Path) -> None:
    torch.set_num_threads(1)
    patience = timedelta(seconds=300)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=patience)
    try:
        (folder / f"{rank}.json").write_text(json.dumps(measure(rank)))
    finally:
        dist.destroy_process_group()
