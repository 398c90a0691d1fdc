"""What every measurement shares: rows, a clock, and a memory meter that works on any device."""

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


def interleaved_milliseconds(
    calls: dict[str, Callable[..., Any]],
    fresh: Callable[[], tuple[Any, ...]],
    device: str,
    *,
    repeats: int,
    queue: int = 1,
    after: Callable[[str, Any], None] | None = None,
) -> dict[str, float | str]:
    """The median time of each call on inputs made anew for every repetition, the calls taking turns.

    A call that is waited for costs what its host's work and its device's take; among ones that are queued the device
    is busy while the host goes on to the next, as it is within a model.

    Args:
        calls: what to time, by name; each gets the same inputs. One that raises is left out of the remaining
            repetitions, and :func:`failure` stands in place of its time.
        fresh: makes the inputs, outside the timed part.
        device: what to wait for before and after a call.
        repeats: timed repetitions, after a few that are not.
        queue: calls of a repetition, on as many inputs, before anyone waits; the time is that of one of them.
        after: is told each call's name and its last answer, outside the timed part.
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
                with _garbage_kept():
                    start = time.perf_counter()
                    for inputs in queued:
                        answer = call(*inputs)
                    _wait(device)
                    times[name].append(1000 * (time.perf_counter() - start) / queue)
                if after is not None:
                    after(name, answer)
                del answer  # a recorded graph writes its next answer where this one lies
            except Exception as error:  # whatever it is, the other rows are still worth having
                failed[name] = failure(error)
    return {name: failed.get(name) or statistics.median(times[name][warm_up:]) for name in calls}


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    """No garbage is collected meanwhile, at the cost of whoever is timed."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def warm_up_calls(device: str) -> int:
    """Repetitions before the timed ones: on a GPU libraries choose kernels, and graphs are recorded."""
    return 5 if device.startswith("cuda") else 1


def attempt(f: Callable[[], float]) -> float | str:
    """``f()``, or what went wrong in it."""
    try:
        return f()
    except Exception as error:  # as above
        return failure(error)


def failure(error: Exception) -> str:
    """An error as a cell of a table, its traceback printed for whoever looks for the cause."""
    traceback.print_exception(error, limit=-4)
    said = " ".join(str(error).split()).replace("|", "/")
    return f"fails: {type(error).__name__}: {said[:80]}"


@functools.cache
def copy_bandwidth(device: str, quick: bool) -> float:
    """Bytes a second that a large copy on the device reads and writes, both counted."""
    size = 2**22 if quick else 2**30 if device.startswith("cuda") else 2**28
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    milliseconds = median_milliseconds(lambda: target.copy_(source), device, repeats=3 if quick else 21)
    return 2 * size / (milliseconds / 1000)


def peak_bytes(f: Callable[[], object], device: str) -> int:
    """The most tensor memory alive at once during ``f``, above what was alive before."""
    f()  # libraries take their workspaces on first use
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(3):  # in one of which what is recorded takes its memory
            f()
        return torch.cuda.max_memory_allocated() - before
    with _LiveBytes() as meter:
        f()
    return meter.peak


def keep_memory() -> None:
    """Tell glibc, where it is there, to keep what is freed: else some calls fault 100 MB in anew, others nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, as high as it goes


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
