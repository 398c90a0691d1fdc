"""Result tables, timers, and a memory meter that works on any device."""

import contextlib
import ctypes
import functools
import gc
import statistics
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class ResultTable:
    """A table of results: its title, a note on the settings, and one dictionary per row."""

    title: str
    note: str
    rows: list[dict[str, Any]]


def median_milliseconds(f: Callable[[], object], device: str, *, repeats: int) -> float:
    """Return the median time of ``f`` after two warm-up calls, device work included."""
    times = []
    for _ in range(repeats + 2):
        _wait(device)
        start = time.perf_counter()
        f()
        _wait(device)
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times[2:])[repeats // 2]


def interleaved_milliseconds(
    calls: dict[str, Callable[..., Any]],
    fresh: Callable[[], tuple[Any, ...]],
    device: str,
    *,
    repeats: int,
    queue: int = 1,
    after: Callable[[str, Any], None] | None = None,
) -> dict[str, float | str]:
    """Return the median time of each call, on new inputs for every repetition; the calls take turns.

    With ``queue=1`` the device is synchronised after every call, so the time includes all work of host and device. With
    a longer queue the host launches the next call while the device is busy, as it does within a model.

    Args:
        calls: functions to time, by name; all get the same inputs. A function that raises is left out of the remaining
            repetitions, and :func:`failure` takes the place of its time.
        fresh: makes the inputs, outside the timed part.
        device: the device to synchronise.
        repeats: number of timed repetitions, after a few warm-up ones.
        queue: number of calls, each on its own inputs, between two synchronisations; the time is that of one call.
        after: receives each call's name and its last answer, outside the timed part.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, float | str] = {}
    warm_up = warm_up_calls(device)
    for _ in range(warm_up + repeats):
        queued = [fresh() for _ in range(queue)]
        for name, call in calls.items():
            if name in failed:
                continue
            try:
                _wait(device)
                with _no_garbage_collection():
                    start = time.perf_counter()
                    for inputs in queued:
                        answer = call(*inputs)
                    _wait(device)
                    times[name].append(1000 * (time.perf_counter() - start) / queue)
                if after is not None:
                    after(name, answer)
                del answer  # a CUDA graph overwrites its last answer
            except Exception as error:  # the other rows are still worth having
                failed[name] = failure(error)
    return {name: failed.get(name) or statistics.median(times[name][warm_up:]) for name in calls}


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn off garbage collection, whose time would be counted for one of the calls."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def warm_up_calls(device: str) -> int:
    """Return the number of warm-up repetitions; on a GPU, libraries choose kernels and graphs are recorded in them."""
    return 5 if device.startswith("cuda") else 1


def attempt(f: Callable[[], float]) -> float | str:
    """Return ``f()``, or a description of the error it raised."""
    try:
        return f()
    except Exception as error:  # the other cells are still worth having
        return failure(error)


def failure(error: Exception) -> str:
    """Return an error as a cell of a table, and print its traceback."""
    traceback.print_exception(error, limit=-4)
    said = " ".join(str(error).split()).replace("|", "/")
    return f"fails: {type(error).__name__}: {said[:80]}"


@functools.cache
def copy_bandwidth(device: str, quick: bool) -> float:
    """Return the bytes per second that a large copy on the device reads and writes, both counted."""
    size = 2**22 if quick else 2**30 if device.startswith("cuda") else 2**28
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    milliseconds = median_milliseconds(lambda: target.copy_(source), device, repeats=3 if quick else 21)
    return 2 * size / (milliseconds / 1000)


def peak_bytes(f: Callable[[], object], device: str) -> int:
    """Return by how much tensor memory grows at its peak during ``f``."""
    f()  # libraries allocate workspaces on first use
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(3):  # in one of them, CUDA graphs allocate their memory
            f()
        return torch.cuda.max_memory_allocated() - before
    with _LiveBytes() as meter:
        f()
    return meter.peak


def keep_memory() -> None:
    """Make glibc keep freed memory; otherwise some calls would page-fault 100 MB again and others nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, as high as it goes


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class _LiveBytes(TorchDispatchMode):
    """Count the bytes of every storage that an operation creates, until it is freed."""

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
