"""The campaign of killed saves: trials survive, and a save that renames in the wrong order is reported."""

import itertools
from pathlib import Path

import pytest

from benchmarks.faults.campaign import run
from benchmarks.faults.saved import CHECKPOINT, MODEL
from benchmarks.faults.saves import KilledSaves
from localscale import checkpoints, files
from localscale.adaptation import storage


def test_killed_saves_lose_nothing():
    tally = run(KilledSaves(), itertools.count(), seconds=40, most=12)
    assert tally.tried > 0
    assert tally.failures == {}


@pytest.mark.slow
def test_a_save_that_writes_in_place_is_caught(monkeypatch: pytest.MonkeyPatch):
    class Checkpoints(KilledSaves):
        kinds = (CHECKPOINT,)

    def in_place(writers):
        for path, write in writers.items():
            write(path)

    monkeypatch.setattr(checkpoints, "write_all", in_place)
    tally = run(Checkpoints(), itertools.count(), seconds=60, most=20)
    assert any("neither as old nor as new" in failure for failure in tally.failures.values())


@pytest.mark.slow
def test_a_save_that_leaves_drafts_is_caught(monkeypatch: pytest.MonkeyPatch):
    class Models(KilledSaves):
        kinds = (MODEL,)

    monkeypatch.setattr(files, "clear_drafts", lambda folder: None)
    tally = run(Models(), itertools.count(), seconds=60, most=15)
    assert any("the next save leaves ." in failure for failure in tally.failures.values())


@pytest.mark.slow
def test_a_description_that_is_not_in_the_weights_is_caught(monkeypatch: pytest.MonkeyPatch):
    """As before: config.json alone described the model, and a kill could leave new weights beside an old one."""

    class Models(KilledSaves):
        kinds = (MODEL,)

    write = storage.write_tensors

    def without_description(path: Path, tensors, metadata):
        write(path, tensors, {})

    monkeypatch.setattr(storage, "write_tensors", without_description)
    tally = run(Models(), itertools.count(), seconds=60, most=30)
    assert any("neither as old nor as new" in failure for failure in tally.failures.values())
