"""Compute a dataset on one machine, in this process or in several worker processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import reduction
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

import torch

from localscale.errors import LocalScaleError, OutputError
from localscale.lab.data.generation.job import Job, Sample, Skip, build, run
from localscale.lab.data.generation.store import Store

__all__ = ["one_thread", "run_local"]

MAX_BREAKS = 3  # consecutive pools in which a worker died before any chunk was finished


def run_local(
    job: Job, store: Store, chunks: Sequence[int], *, workers: int, lock: int, tick: Callable[[int], object]
) -> None:
    """Compute and write ``chunks``, and call ``tick`` with the number of items that were finished.

    With several workers, each chunk is a task of a ``ProcessPoolExecutor``. If a worker dies, the executor ends the
    others too; a new executor then computes the lost chunks again, to the same bytes, after all other chunks. At most
    ``workers`` chunks are submitted at a time. Every worker duplicates the descriptor ``lock``, so the folder stays
    locked while an orphaned worker may still write to it.
    """
    if workers == 1:
        with one_thread():
            functions = build(job.stages)
            for chunk in chunks:
                _write_chunk(functions, store, chunk, tick)
        return
    # The stages may be large (MNIST's contain all digits). They are passed in a file because a worker that died during
    # its start would block the parent, which would still wait to send them.
    stages = store.write_draft("stages.pickle", pickle.dumps(list(job.stages)))
    waiting, breaks = deque(chunks), 0
    started = multiprocessing.RawValue("b", 0)
    while waiting:
        pool = _Pool(min(workers, len(waiting)), (store, stages, _Lock(lock), started))
        try:
            for chunk in pool.run(waiting):
                tick(len(store.items(chunk)))
                breaks = 0
        except BrokenProcessPool:
            breaks += 1
        finally:
            pool.stop()
        lost = [chunk for chunk in pool.running.values() if not store.is_finished(chunk)]
        tick(sum(len(store.items(chunk)) for chunk in pool.running.values() if chunk not in lost))
        if lost and not started.value and pool.exit_status() > 0:  # a worker failed to import the calling script
            raise OutputError(
                f"the worker processes ended with exit status {pool.exit_status()} while they started, for the reason "
                'printed above; a script must call generate under `if __name__ == "__main__":`'
            )
        if lost and breaks == MAX_BREAKS:
            raise _workers_died(store, lost, pool.exit_status())
        waiting.extend(lost)


def _write_chunk(
    functions: Sequence[Callable[[Any], Any]], store: Store, chunk: int, tick: Callable[[int], object]
) -> None:
    def results() -> Iterator[tuple[int, list[Sample] | Skip]]:
        for index in store.items(chunk):
            yield index, run(functions, index)
            tick(1)  # the store requests the next item after it has written this one

    store.write_chunk(chunk, results())


class _Context(SpawnContext):
    """A spawn context that keeps its processes, because before Python 3.14 an executor cannot kill its workers.

    Processes are spawned because a fork would copy torch's thread pool in a locked state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        self.processes.append(SpawnProcess(*args, **kwargs))
        return self.processes[-1]


class _Pool:
    """A ``ProcessPoolExecutor`` whose workers ignore Ctrl-C and can be killed."""

    def __init__(self, workers: int, arguments: tuple[Any, ...]) -> None:
        self.workers, self.context = workers, _Context()
        self.executor = ProcessPoolExecutor(workers, self.context, _start_worker, arguments)
        self.running: dict[Future[None], int] = {}

    def run(self, waiting: deque[int]) -> Iterator[int]:
        """Take chunks from ``waiting``, compute them and yield each finished one."""
        while waiting or self.running:
            while waiting and len(self.running) < self.workers:
                # Workers inherit the blocked signal: on Ctrl-C only this process is interrupted, and it kills them.
                with _blocked_interrupts():
                    self.running[self.executor.submit(_work, waiting[0])] = waiting[0]
                waiting.popleft()
            done, _ = wait(self.running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
                yield self.running.pop(future)

    def stop(self) -> None:
        """Kill the workers; a chunk that was not finished leaves nothing but drafts."""
        for process in self.context.processes:
            if process.pid is not None:  # it was started
                process.kill()
        self.executor.shutdown(cancel_futures=True)

    def exit_status(self) -> int:
        """Return the exit status of a worker that ended by itself, or that of SIGKILL if there is none."""
        killed = (None, -signal.SIGTERM, -signal.SIGKILL)  # by the executor or by stop
        statuses = [process.exitcode for process in self.context.processes]
        return next((status for status in statuses if status not in killed), -signal.SIGKILL)


class _Lock:
    """A descriptor that is duplicated into each spawned process and stays open there."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_lock, (reduction.DupFd(self.descriptor),)


def _receive_lock(duplicate: Any) -> _Lock:
    return _Lock(duplicate.detach())


class _Worker:
    """The state of a worker process. Its stages are loaded with the first chunk, so that their errors are returned."""

    store: Store
    stages: Path
    lock: _Lock
    functions: list[Callable[[Any], Any]] | None = None


def _start_worker(store: Store, stages: Path, lock: _Lock, started: Any) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _Worker.store, _Worker.stages, _Worker.lock = store, stages, lock
    started.value = 1


def _work(chunk: int) -> None:
    """Compute and write one chunk in a worker process."""
    try:
        if _Worker.functions is None:
            _Worker.functions = build(pickle.loads(_Worker.stages.read_bytes()))
        _write_chunk(_Worker.functions, _Worker.store, chunk, lambda _: None)
    except LocalScaleError:
        raise
    except Exception as error:  # which might not survive pickling
        raise RuntimeError(f"a worker failed:\n{''.join(traceback.format_exception(error))}") from None


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Delay SIGINT until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _workers_died(store: Store, lost: Sequence[int], status: int) -> Exception:
    items = " or ".join(f"{store.items(chunk)[0]} to {store.items(chunk)[-1]}" for chunk in lost)
    died = f"worker processes died {MAX_BREAKS} times while making items {items}, the last with exit status {status}"
    if status < 0:
        return OutputError(
            f"{died}: they were killed, perhaps because memory ran out; run the same command again with fewer "
            "--workers, it continues where it stopped"
        )
    return OutputError(f"{died}; run with --workers 1 to see why")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread, so that floating-point sums do not depend on the number of workers or cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
