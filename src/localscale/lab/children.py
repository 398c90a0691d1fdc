"""Child processes that end with their parent.

``python -m localscale.lab.children PARENT MODULE [argument …]`` runs a module as a child of the process ``PARENT``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType

__all__ = ["Child", "end_with_parent", "ended_by_signals", "ending_workers", "loading_workers", "stop_all"]

PATIENCE = 5.0  # seconds in which a child that was asked to stop may finish its step and write a checkpoint
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl
ENDINGS = ("SIGTERM", "SIGHUP")


class Child:
    """A Python module in a process of its own, which ends when this process ends.

    The child leads a process group, so that a signal for the group reaches what the child has started. It asks the
    kernel for the signal at its parent's death by itself: code between fork and exec could deadlock in a process with
    threads. The signal comes when the thread that made the child ends.
    """

    def __init__(self, module: str, arguments: Sequence[str], output: Path, **environment: str) -> None:
        with output.open("a", encoding="utf-8") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                process_group=0,
            )

    def status(self) -> int | None:
        """Return the exit status, or None while the child runs; what it had started ends with it."""
        status = self.process.poll()
        if status is not None:
            self._kill_group()
        return status

    def ask_to_stop(self) -> None:
        """Send the signal of Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self, deadline: float) -> None:
        """Wait for the end until ``deadline`` of the monotonic clock, then kill the child and what it has started."""
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            self._kill_group()
            self.process.wait()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses a group of zombies
            os.killpg(self.process.pid, signal.SIGKILL)


def stop_all(children: Iterable[Child]) -> None:
    """Stop children as Ctrl-C does; kill those that take longer than ``PATIENCE`` seconds."""
    children = list(children)
    for child in children:
        child.ask_to_stop()
    deadline = time.monotonic() + PATIENCE
    with contextlib.ExitStack() as stack:  # a second Ctrl-C while one is awaited still ends the others
        for child in children:
            stack.callback(child.end, deadline)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise ``SystemExit`` at SIGTERM and SIGHUP in the main thread, so that ``finally`` blocks run.

    Signals that the program ignores or handles itself keep their effect.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    changed = []
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in ENDINGS if hasattr(signal, name)]
        changed = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in changed:
            signal.signal(number, leave)
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def end_with_parent(parent: int) -> None:
    """Kill this process as soon as its parent, the process ``parent``, ends; at once if that has ended already.

    On Linux the kernel does it. On other systems, a thread looks every second.
    """
    if not _ask_kernel():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def ending_workers() -> Callable[[int], None]:
    """Return a ``worker_init_fn`` for a ``DataLoader`` whose workers end with this process.

    If this process stops taking batches in the middle of one, because another worker has died, they say nothing.
    """
    return functools.partial(_begin_worker, os.getpid())


def loading_workers(asked: int) -> int:
    """Return how many processes of ``asked`` load images: no more than the cores that this process may use."""
    return min(asked, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _begin_worker(parent: int, number: int) -> None:
    end_with_parent(parent)
    sys.excepthook = _show_unless_hung_up


def _show_unless_hung_up(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    """Show an error of the thread that hands tensors to the parent, unless the parent has closed the connection."""
    if not isinstance(error, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, place)


def _ask_kernel() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
