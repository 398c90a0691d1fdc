"""The accelerator of one call of ``fit``: its device, precision and processes."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["accelerator_for", "import_before_groups"]

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def accelerator_for(precision: str | None, *, cpu: bool) -> Iterator[Any]:
    """Yield the accelerator that the program has, or a new one, whose settings a later call does not inherit.

    accelerate keeps the precision and the device of the first accelerator for all others in the process.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    if AcceleratorState._shared_state:  # of the program's own accelerator
        own = Accelerator()
        if precision not in (None, own.mixed_precision) or (cpu and own.device.type != "cpu"):
            logger.warning(
                "precision is %r and cpu %s, but this program has an accelerator with %r on %s, which is used",
                precision,
                cpu,
                own.mixed_precision,
                own.device,
            )
        yield own
        return
    if precision is None and torch.cuda.is_available() and not cpu:
        precision = "bf16" if torch.cuda.is_bf16_supported() else "no"
    fresh = not PartialState._shared_state
    import_before_groups()
    accelerator = Accelerator(mixed_precision=precision or "no", cpu=cpu)
    if fresh and accelerator.num_processes > 1:
        atexit.register(_leave_group)
    try:
        yield accelerator
    finally:
        AcceleratorState._reset_state(reset_partial_state=fresh and accelerator.num_processes == 1)


def import_before_groups() -> None:
    """If there are several processes, import TorchDynamo, as optimizers do; call it before a process group is made.

    Imported later, it keeps the group's threads running after the group was destroyed, and a thread that needs Python
    while Python ends aborts its process.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        importlib.import_module("torch._dynamo")


def _leave_group() -> None:
    """End the process group, whose threads otherwise abort some processes when the program exits."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
