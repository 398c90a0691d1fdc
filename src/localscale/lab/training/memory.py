"""Advice for runs that exceed the GPU memory."""

from __future__ import annotations

from typing import Any

import torch

from localscale.errors import TrainingError

__all__ = ["memory_advice"]


class memory_advice:  # noqa: N801 (reads as a verb where it is used)
    """Turn ``torch.OutOfMemoryError`` into a ``TrainingError`` that names the batch size to try."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            raise TrainingError(f"out of GPU memory with batch size {self.batch_size}; " + self._remedy()) from error

    def _remedy(self) -> str:
        if self.batch_size == 1:
            return "use a smaller backbone or image, or a larger GPU"
        return f"try --batch-size {self.batch_size // 2}"
