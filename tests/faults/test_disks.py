"""The campaign of faulty disks: trials survive, and a foreign exception or a silent failure is reported."""

import contextlib
import itertools

import pytest

from benchmarks.faults.campaign import run
from benchmarks.faults.disks import FaultyDisks
from benchmarks.faults.saved import CHECKPOINT
from localscale import checkpoints


class Checkpoints(FaultyDisks):
    kinds = (CHECKPOINT,)


def test_faulty_disks_lose_nothing():
    tally = run(FaultyDisks(), itertools.count(), seconds=40, most=60)
    assert tally.tried > 0
    assert tally.failures == {}


def test_a_foreign_exception_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoints, "OutputError", TypeError)
    tally = run(Checkpoints(), itertools.count(), seconds=40, most=20)
    assert any("foreign TypeError" in failure for failure in tally.failures.values())


def test_a_write_that_fails_silently_is_caught(monkeypatch: pytest.MonkeyPatch):
    write = checkpoints.write_all

    def silently(writers):
        with contextlib.suppress(OSError):
            write(writers)

    monkeypatch.setattr(checkpoints, "write_all", silently)
    tally = run(Checkpoints(), itertools.count(), seconds=40, most=20)
    assert any("no error, and yet the old loads" in failure for failure in tally.failures.values())
