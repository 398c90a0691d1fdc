"""No child process outlives its parent, however the parent ends."""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import resource_sharer
from pathlib import Path

import pytest
import sleeping_child
from torch.utils.data import DataLoader, Dataset

from localscale.lab import children
from localscale.lab.children import Child, ended_by_signals, ending_workers, loading_workers, stop_all
from localscale.lab.folders import locked

PARENT = """
import sys, time
from pathlib import Path
from localscale.lab.children import Child, ended_by_signals, stop_all
from localscale.lab.folders import locked
with ended_by_signals():
    child = Child("sleeping_child", (), Path(sys.argv[1]))
    try:
        time.sleep(600)
    finally:
        stop_all([child])
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(Path(sleeping_child.__file__).parent), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextlib.contextmanager
def printed_by(output: Path) -> Iterator[list[int]]:
    """Yield the numbers of the child and of what it started, after it has printed them."""
    wait_for(lambda: output.exists() and output.read_text().endswith("\n"))
    pids = [int(word) for word in output.read_text().split()]
    try:
        assert all(map(running, pids))
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(number: int, tmp_path: Path) -> None:
    output = tmp_path / "output"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(output)], stderr=subprocess.DEVNULL)
    try:
        with printed_by(output) as (child, below):
            parent.send_signal(number)
            assert parent.wait(120) == (-9 if number == signal.SIGKILL else 143)
            wait_for(lambda: not running(child))
            if number == signal.SIGTERM:
                wait_for(lambda: not running(below))
    finally:
        parent.kill()
        parent.wait()


def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    child = Child("sleeping_child", (), tmp_path / "output")
    try:
        with printed_by(tmp_path / "output") as (pid, below):
            assert child.process.pid == pid
            assert child.status() is None
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: child.status() is not None)
            wait_for(lambda: not running(below))
            assert child.status() == -signal.SIGKILL
    finally:
        stop_all([child])


def test_a_child_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "PATIENCE", 0.2)
    child = Child("sleeping_child", (), tmp_path / "output")
    with printed_by(tmp_path / "output") as (pid, below):
        os.kill(pid, signal.SIGSTOP)
        stop_all([child])
        assert child.status() == -signal.SIGKILL
        wait_for(lambda: not running(below))


def test_a_child_whose_parent_has_ended_does_not_begin() -> None:
    done = subprocess.run([sys.executable, "-m", children.__name__, "1", "this"], capture_output=True, timeout=300)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_without_the_kernel_a_thread_watches_the_parent(tmp_path: Path) -> None:
    watching = (
        "import os, sys, time; from localscale.lab import children; children._ask_kernel = lambda: False; "
        "children.end_with_parent(os.getppid()); print(os.getpid(), flush=True); time.sleep(600)"
    )
    start = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {watching!r}]); time.sleep(600)"
    with (tmp_path / "output").open("w") as output:
        parent = subprocess.Popen([sys.executable, "-c", start], stdout=output)
    try:
        with printed_by(tmp_path / "output") as (child,):
            parent.kill()
            parent.wait()
            wait_for(lambda: not running(child))
    finally:
        parent.kill()
        parent.wait()


def test_signals_that_the_program_handles_keep_their_effect() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_own_parent_is_no_reason_to_end() -> None:
    checked = "import os; from localscale.lab.children import end_with_parent; end_with_parent(os.getppid()); print(1)"
    assert subprocess.run([sys.executable, "-c", checked], capture_output=True, timeout=300).stdout == b"1\n"


def test_a_fork_does_not_keep_a_folder_locked(tmp_path: Path) -> None:
    """A data worker may live some seconds longer than the training that locked the folder."""
    with locked(tmp_path, activity="writing to"):
        context = multiprocessing.get_context("fork")
        began = context.Event()
        worker = context.Process(target=lambda: (began.set(), time.sleep(600)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about threads of other tests
            worker.start()
        began.wait(120)
    try:
        with locked(tmp_path, activity="writing to"):
            assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()


class Addresses(Dataset[str]):
    """The address at which a data worker hands on tensors; some time later, nothing."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> str:
        if place:
            time.sleep(0.5)
            return ""
        resource_sharer.DupFd(0)
        return str(resource_sharer._resource_sharer._address)


def test_a_data_worker_says_nothing_if_its_parent_hangs_up(capfd: pytest.CaptureFixture[str]) -> None:
    reader = iter(DataLoader(Addresses(), batch_size=None, num_workers=1, worker_init_fn=ending_workers()))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(next(reader))
    assert list(reader) == [""]
    assert capfd.readouterr().err == ""


def test_no_more_workers_load_images_than_there_are_cores() -> None:
    cores = loading_workers(1 << 20)
    assert 1 <= cores <= (os.cpu_count() or 1)
    assert [loading_workers(asked) for asked in (0, cores, cores + 1)] == [0, cores, cores]
