"""The campaigns that kill processes survive some trials, and report what is lost if the code under them breaks."""

import itertools

import pytest

from benchmarks.faults import CAMPAIGNS
from benchmarks.faults.campaign import Tally, run
from localscale import processes
from localscale.checkpoints import read_state
from localscale.lab.data.generation.store import Store
from localscale.lab.training import runner


def tried(name: str, most: int, first: int = 0) -> Tally:
    return run(CAMPAIGNS[name](), itertools.count(first), seconds=300, most=most)


def test_generators_are_killed_and_lose_nothing():
    assert tried("kill-generators", 6) == Tally(6, {}, seconds=pytest.approx(0, abs=300))


def test_a_generator_that_trusts_half_a_chunk_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Store, "is_finished", lambda store, chunk: (store.root / ".progress").exists())
    tally = tried("kill-generators", 12)
    assert tally.failures
    assert tally.survived


@pytest.mark.slow
def test_trainings_are_killed_and_end_the_same():
    assert not tried("kill-training", 4).failures


@pytest.mark.slow
def test_a_training_that_forgets_its_weights_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "read_checkpoint", lambda path, model, optimizer: read_state(path))
    tally = tried("kill-training", 6)
    assert any("differences, the first in" in failure for failure in tally.failures.values())


@pytest.mark.slow
def test_workers_are_killed_and_their_training_goes_on():
    assert not tried("kill-workers", 3).failures


@pytest.mark.slow
def test_a_killed_worker_that_nobody_explains_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_find_sentence", lambda *_: None)
    assert any("ends the training with" in failure for failure in tried("kill-workers", 8).failures.values())


@pytest.mark.slow
def test_reproduce_is_killed_and_leaves_nothing_running():
    assert not tried("kill-reproduce", 2, first=3).failures
