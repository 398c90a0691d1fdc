"""Start the toy job in a process of its own, and find its worker processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import toy_job as toy


@contextlib.contextmanager
def started(
    out: Path, form: str, workers: int, engine: str = "local", *, seconds: float, stderr: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the toy job until the end of the block."""
    command = [sys.executable, toy.__file__, str(out), form, str(workers), engine, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(Path(toy.__file__).parent)}
    # A background job of a shell ignores SIGINT, and so would its children.
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    null = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stderr=stderr, stdout=null, preexec_fn=listen) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.02)


def finished_chunks(out: Path) -> int:
    return len(list(out.glob(".progress/*.jsonl")))


def children(parent: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        tasks = Path(f"/proc/{parent}/task").iterdir()
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return []


def workers_of(parent: int) -> list[int]:
    return [pid for pid in children(parent) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def descendants(parent: int) -> list[int]:
    below = children(parent)
    return below + [pid for child in below for pid in descendants(child)]


def is_actor(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return b"MapWorker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
