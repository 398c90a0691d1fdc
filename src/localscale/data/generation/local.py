"""Making a dataset on one machine, in this process or in several."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from localscale.data.generation.job import Job, Sample, Skip, Stage, build, run
from localscale.data.generation.store import Store
from localscale.errors import LocalScaleError

__all__ = ["make_chunk", "one_thread", "run_local"]

MAX_DEATHS = 3  # of workers, on one chunk, before it is given up


def run_local(job: Job, store: Store, chunks: Sequence[int], *, workers: int, tick: Callable[[], object]) -> None:
    """Make ``chunks``; ``tick`` is called after every item."""
    if workers == 1:
        with one_thread():
            steps = build(job.stages)
            for chunk in chunks:
                make_chunk(steps, store, chunk, tick)
        return
    pool = _Pool(job.stages, store, min(workers, len(chunks)))
    try:
        pool.make(chunks, tick)
    finally:
        pool.stop()


def make_chunk(
    steps: Sequence[Callable[[Any], Any]], store: Store, chunk: int, tick: Callable[[], object] = lambda: None
) -> None:
    """Make and write one chunk."""

    def results() -> Iterator[tuple[int, list[Sample] | Skip]]:
        for index in store.items(chunk):
            yield index, run(steps, index)
            tick()

    store.write_chunk(chunk, results())


class _Pool:
    """Worker processes that are handed one chunk at a time; one that dies is replaced and its chunk made again.

    A worker talks to this process alone, over a pipe of its own, so it ends by itself when this process is killed.
    """

    def __init__(self, stages: Sequence[Stage], store: Store, workers: int) -> None:
        self.context = multiprocessing.get_context("spawn")  # a fork would share torch's locked threads
        self.stages, self.store = stages, store
        self.processes: dict[Connection, Any] = {}
        self.count = workers

    def make(self, chunks: Sequence[int], tick: Callable[[], object]) -> None:
        waiting, working, deaths = list(reversed(chunks)), dict[Connection, int](), dict[int, int]()
        while waiting or working:
            while waiting and len(self.processes) < self.count:
                self._start()
            for connection in self.processes:
                if waiting and connection not in working:
                    working[connection] = waiting.pop()
                    with contextlib.suppress(OSError):  # it died just now: its end is noticed below
                        connection.send(working[connection])
            ready = set(wait(list(self.processes)))
            for connection in [c for c in self.processes if c in ready]:
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    self._bury(connection)
                    if connection in working:
                        chunk = working.pop(connection)
                        deaths[chunk] = deaths.get(chunk, 0) + 1
                        if deaths[chunk] >= MAX_DEATHS:
                            raise _worker_died(self.store, chunk) from None
                        waiting.append(chunk)
                    continue
                if message is None:
                    tick()
                elif isinstance(message, Exception):
                    raise message
                else:
                    del working[connection]

    def stop(self) -> None:
        for connection, process in self.processes.items():
            process.kill()
            process.join()
            connection.close()
        self.processes.clear()

    def _start(self) -> None:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, self.stages, self.store), daemon=True)
        process.start()
        theirs.close()
        self.processes[ours] = process

    def _bury(self, connection: Connection) -> None:
        process = self.processes.pop(connection)
        connection.close()
        process.join()


def _work(connection: Connection, stages: Sequence[Stage], store: Store) -> None:
    """A worker's life: take a chunk, make it, say so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops its workers
    try:
        with one_thread():
            steps = build(stages)
            while True:
                chunk = connection.recv()
                make_chunk(steps, store, chunk, lambda: connection.send(None))
                connection.send(chunk)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone
    except Exception as error:
        connection.send(_portable(error))


def _portable(error: Exception) -> Exception:
    """The error as it can travel: ours as they are, others with their traceback as text."""
    if isinstance(error, LocalScaleError):
        with contextlib.suppress(Exception):
            return pickle.loads(pickle.dumps(error))
    return RuntimeError(f"a worker failed:\n{''.join(traceback.format_exception(error))}")


def _worker_died(store: Store, chunk: int) -> Exception:
    first, last = store.items(chunk)[0], store.items(chunk)[-1]
    return RuntimeError(
        f"{MAX_DEATHS} workers died while making items {first} to {last}, killed from outside or out of memory; "
        "run the same command again with fewer --workers: it goes on where it stopped"
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, in every process alike: sums come out the same however many workers there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
