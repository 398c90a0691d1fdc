"""Run work in a fork of this process, and kill it at a moment that is drawn."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO

from tqdm import tqdm

from localscale.cli import main
from localscale.lab.children import end_with_parent

__all__ = ["Forked", "Moment", "completed", "forked", "kill_at", "operations", "printed_in", "running", "seconds_of"]

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "shutil.rmtree"}


@dataclass(frozen=True)
class Moment:
    """Before the ``operation``-th change of the file system, or after ``seconds``."""

    operation: int | None
    seconds: float

    @classmethod
    def drawn(cls, draw: Random, operations: int, seconds: float) -> Moment:
        """Draw a moment of a run that makes ``operations`` changes and takes ``seconds``."""
        by_operation = draw.random() < 0.7
        return cls(draw.randrange(operations) if by_operation else None, draw.uniform(0, seconds))


def forked(work: Callable[[], object], output: Path, lead: Callable[[], object] = os.setsid) -> int:
    """Return the number of a new process that does ``work``, prints to ``output``, and leads a session or a group."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        lead()
        tqdm.set_lock(threading.RLock())  # the thread of a progress bar may hold the lock at the moment of the fork
        sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(sink, stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work()
        status = 0
    except BaseException:  # this is the end of the process
        os.write(2, traceback.format_exc().encode())
    finally:  # also if a signal handler, as PyTorch's for dead data workers, raises in the lines above
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        finally:
            os._exit(status)


class Forked:
    """A process as ``Popen`` starts it for ``localscale.lab.children``, but forked from this one, which is warm."""

    def __init__(self, command: Sequence[str], *, stdout: IO[str], **settings: object) -> None:
        parent, arguments = int(command[3]), command[5:]

        def work() -> None:
            end_with_parent(parent)
            main(list(arguments))

        self.returncode: int | None = None
        self.pid = forked(work, Path(stdout.name), os.setpgrp)

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        """Return the exit status; raise if ``timeout`` passes before the end."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("localscale", timeout)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        if self.poll() is None:
            os.kill(self.pid, number)


def kill_at(moment: Moment, work: Callable[[], object], folder: Path, output: Path) -> bool:
    """Do ``work`` in a fork that is killed at ``moment``; return whether it was, or ended before."""

    def until() -> object:
        if moment.operation is not None:
            _at_operation(folder, moment.operation)
        return work()

    pid = forked(until, output)
    try:
        if moment.operation is None:
            time.sleep(moment.seconds)
            os.kill(pid, signal.SIGKILL)  # what it started has to end by itself
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return os.WIFSIGNALED(status)


def completed(
    work: Callable[[], object], output: Path, meanwhile: Callable[[int], object] = lambda pid: None
) -> str | None:
    """Do ``work`` in a fork; return None after its success, else its exit status and the last line that it printed.

    ``meanwhile`` is called with the number of the process.
    """
    output.unlink(missing_ok=True)
    pid = forked(work, output)
    try:
        meanwhile(pid)
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    if status == 0:
        return None
    last = printed_in(output).strip().splitlines()[-1:]
    return ": ".join([f"status {os.waitstatus_to_exitcode(status)}", *last])[:300]


def printed_in(output: Path) -> str:
    """Return what was printed, an empty text if nothing was."""
    return output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""


def operations(work: Callable[[], object], folder: Path, output: Path) -> int:
    """Do ``work`` in a fork; return the number of changes of the file system that it makes in ``folder``."""
    counted = output.with_suffix(".count")

    def count() -> None:
        seen = _at_operation(folder, None)
        work()
        counted.write_text(str(seen[0]), encoding="utf-8")

    failure = completed(count, output)
    if failure:
        raise RuntimeError(f"the run without a fault failed: {failure}")
    return int(counted.read_text(encoding="utf-8"))


def seconds_of(work: Callable[[], object], output: Path) -> float:
    """Do ``work`` in a fork; return the seconds that it takes."""
    started = time.monotonic()
    failure = completed(work, output)
    if failure:
        raise RuntimeError(f"the run without a fault failed: {failure}")
    return time.monotonic() - started


def _at_operation(folder: Path, number: int | None) -> list[int]:
    """From now on, count the changes in ``folder``, and kill this process before that with ``number``."""
    seen, inside = [0], str(folder)

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(inside):
            return
        if seen[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen[0] += 1

    sys.addaudithook(look)
    return seen


def running(session: int, words: str) -> Iterator[int]:
    """Yield the processes of a session, and others whose command line contains ``words``."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, own = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            related = int(own) == session or words.encode() in (path / "cmdline").read_bytes()
            if related and state not in "ZX":
                yield int(path.name)
