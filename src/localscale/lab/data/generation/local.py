"""Making a dataset on one machine, in this process or in several."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from localscale.errors import LocalScaleError, OutputError
from localscale.lab.data.generation.job import Job, Sample, Skip, Stage, build, run
from localscale.lab.data.generation.store import Store

__all__ = ["make_chunk", "one_thread", "run_local"]

MAX_DEATHS = 3  # of workers, on one chunk or before any, until it is given up
READY, MADE, WRITTEN = "ready", "made", "written"  # what a worker says


def run_local(
    job: Job, store: Store, chunks: Sequence[int], *, workers: int, lock: int, tick: Callable[[int], object]
) -> None:
    """Make ``chunks``; ``tick`` gets the number of items made. Workers keep the descriptor ``lock`` open."""
    if workers == 1:
        with one_thread():
            steps = build(job.stages)
            for chunk in chunks:
                make_chunk(steps, store, chunk, tick)
        return
    pool = _Pool(job.stages, store, min(workers, len(chunks)), _Lock(lock))
    try:
        pool.make(chunks, tick)
    finally:
        pool.stop()


def make_chunk(steps: Sequence[Callable[[Any], Any]], store: Store, chunk: int, tick: Callable[[int], object]) -> None:
    """Make and write one chunk."""

    def results() -> Iterator[tuple[int, list[Sample] | Skip]]:
        for index in store.items(chunk):
            yield index, run(steps, index)
            tick(1)  # after the item was written, because that is when the next one is asked for

    store.write_chunk(chunk, results())


class _Pool:
    """Worker processes that are handed one chunk at a time; one that dies is replaced and its chunk made again.

    A worker ends when this process does. Until then it holds the folder's lock too, so that nobody else writes there
    while it may still be writing.
    """

    def __init__(self, stages: Sequence[Stage], store: Store, workers: int, lock: _Lock) -> None:
        self.context = multiprocessing.get_context("spawn")  # a fork would share torch's locked threads
        self.stages, self.store, self.lock = stages, store, lock
        self.processes: dict[Connection, Any] = {}
        self.count = workers

    def make(self, chunks: Sequence[int], tick: Callable[[int], object]) -> None:
        waiting, deaths = list(reversed(chunks)), dict[int | None, int]()
        hands = dict[Connection, _Hand]()  # of the workers that have said they are ready
        while waiting or any(hand.chunk is not None for hand in hands.values()):
            while waiting and len(self.processes) < self.count:
                self._start()
            for connection, hand in hands.items():
                if waiting and hand.chunk is None:
                    hands[connection] = _Hand(waiting.pop())
                    with contextlib.suppress(OSError):  # it died just now: its end is noticed below
                        connection.send(hands[connection].chunk)
            ready = set(wait(list(self.processes)))
            for connection in [c for c in self.processes if c in ready]:
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    status, hand = self._bury(connection), hands.pop(connection, _Hand())
                    tick(-hand.made)
                    deaths[hand.chunk] = deaths.get(hand.chunk, 0) + 1
                    if deaths[hand.chunk] >= MAX_DEATHS:
                        raise _worker_died(self.store, hand.chunk, status) from None
                    if hand.chunk is not None:
                        waiting.append(hand.chunk)
                    continue
                if isinstance(message, Exception):
                    raise message
                if message == MADE:
                    hands[connection].made += 1
                    tick(1)
                elif message == WRITTEN:
                    hands[connection] = _Hand()
                else:
                    with contextlib.suppress(OSError):
                        connection.send(self.stages)
                    hands[connection] = _Hand()

    def stop(self) -> None:
        for connection, process in self.processes.items():
            process.kill()
            process.join()
            connection.close()
        self.processes.clear()

    def _start(self) -> None:
        ours, theirs = self.context.Pipe()
        # The stages, which may be large, follow when the worker is there to take them: a process that died while it
        # started would leave this one waiting to hand them over.
        process = self.context.Process(target=_work, args=(theirs, self.store, self.lock), daemon=True)
        with _deaf_to_interrupts():  # which a child inherits: Ctrl-C is for this process, which stops its workers
            process.start()
        theirs.close()
        self.processes[ours] = process

    def _bury(self, connection: Connection) -> int | None:
        process = self.processes.pop(connection)
        connection.close()
        process.join()
        return process.exitcode


@dataclass
class _Hand:
    """What a worker has in hand: a chunk, or nothing, and how many of its items are made."""

    chunk: int | None = None
    made: int = 0


class _Lock:
    """A descriptor that is duplicated into a spawned process, and stays open there."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_lock, (reduction.DupFd(self.descriptor),)


def _receive_lock(duplicate: Any) -> _Lock:
    return _Lock(duplicate.detach())


def _work(connection: Connection, store: Store, lock: _Lock) -> None:
    """A worker's life: take a chunk, make it, say so."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        with one_thread():
            connection.send(READY)
            steps = build(connection.recv())
            while True:
                chunk = connection.recv()
                make_chunk(steps, store, chunk, lambda _: connection.send(MADE))
                connection.send(WRITTEN)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone
    except Exception as error:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(error if isinstance(error, LocalScaleError) else _as_text(error))


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back; it arrives afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _as_text(error: Exception) -> Exception:
    """An error that can travel whatever it holds, with its traceback."""
    return RuntimeError(f"a worker failed:\n{''.join(traceback.format_exception(error))}")


def _worker_died(store: Store, chunk: int | None, status: int | None) -> Exception:
    when = "before making anything"
    if chunk is not None:
        when = f"while making items {store.items(chunk)[0]} to {store.items(chunk)[-1]}"
    died = f"{MAX_DEATHS} workers died {when}, the last with exit status {status}"
    if status is not None and status < 0:
        return OutputError(
            f"{died}: killed from outside, or out of memory; run the same command again with fewer --workers: it goes "
            "on where it stopped"
        )
    return OutputError(f"{died}; run with --workers 1 to see why")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, in every process alike: sums come out the same however many workers there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
