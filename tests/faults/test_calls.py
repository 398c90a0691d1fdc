"""Fuzzed calls of the library and the command line."""

import itertools
from pathlib import Path
from random import Random

import pytest
import torch

import localscale.warp
from benchmarks.faults.calls import Calls
from benchmarks.faults.campaign import run


def test_some_calls_meet_nothing_foreign():
    tally = run(Calls(), itertools.count(0), seconds=60, most=400)
    assert tally.tried == 400
    assert not tally.failures


def test_a_foreign_exception_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(localscale.warp, "_check_size", lambda size: size and min(size) / 0)
    failures = run(Calls(), itertools.count(), seconds=60, most=400).failures
    assert any("ZeroDivisionError at warp.py" in said or "_warp" in said for said in failures.values())


def test_nan_from_numbers_is_found(monkeypatch: pytest.MonkeyPatch):
    class Broken(Calls):
        def _adapt(self, o):
            return torch.tensor([1.0, float("nan")])

        _model = _canonicalize = _adapt

    failures = run(Broken(), itertools.count(), seconds=60, most=200).failures
    assert "_adapt made NaN of finite arguments" in failures.values()


def test_a_command_that_raises_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    campaign = Calls()
    campaign.prepare(tmp_path)
    assert campaign._command(Random(0)) is None
    monkeypatch.setattr("benchmarks.faults.calls.main", lambda arguments: [][0])
    assert "IndexError" in campaign._command(Random(0))
    monkeypatch.setattr("benchmarks.faults.calls.main", lambda arguments: (_ for _ in ()).throw(SystemExit(2)))
    assert campaign._command(Random(0)) is None
