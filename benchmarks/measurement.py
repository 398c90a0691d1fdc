"""What every measurement shares: rows, a clock, and a memory meter that works on any device."""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Table:
    """A titled table: what was measured, under which settings, one dictionary per row."""

    title: str
    note: str
    rows: list[dict[str, Any]]


def median_milliseconds(f: Callable[[], object], device: str, *, repeats: int) -> float:
    """The median time of ``f`` after two warm-up calls, device work included."""
    times = []
    for _ in range(repeats + 2):
        _wait(device)
        start = time.perf_counter()
        f()
        _wait(device)
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times[2:])[repeats // 2]


def peak_bytes(f: Callable[[], object], device: str) -> int:
    """The most tensor memory alive at once during ``f``, above what was alive before."""
    f()  # libraries take their workspaces on first use
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        f()
        return torch.cuda.max_memory_allocated() - before
    with _LiveBytes() as meter:
        f()
    return meter.peak


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class _LiveBytes(TorchDispatchMode):
    """Counts every storage an operation makes, once, until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.alive, self.peak = 0, 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.alive -= size
