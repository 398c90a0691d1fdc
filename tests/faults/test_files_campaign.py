"""The campaign of damaged files: trials survive, and damage that a reader overlooks is reported."""

import itertools
import random

import pytest

from benchmarks.faults.campaign import run
from benchmarks.faults.files import MUTATIONS, DamagedFiles
from localscale import tensor_files


def test_damaged_files_are_refused_or_load_as_written():
    tally = run(DamagedFiles(), itertools.count(), seconds=30, most=60)
    assert (tally.tried, tally.failures) == (60, {})


def test_a_reader_that_compares_no_checksum_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tensor_files, "_compare", lambda *_: None)
    tally = run(DamagedFiles(), itertools.count(), seconds=30, most=150)
    assert any("loads, but not what was written" in failure for failure in tally.failures.values())


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_changes_files_of_every_size(name: str):
    for data in (b"{", b'{"a": [1, 2.5, "x"]}\n{"b": null}\n', b"\xff" * 1000):
        found = [MUTATIONS[name](data, random.Random(seed)) for seed in range(20)]
        assert all(isinstance(changed, bytes) for changed in found)
        assert found == [MUTATIONS[name](data, random.Random(seed)) for seed in range(20)], "the seed decides"
        assert any(changed != data for changed in found) or name == "swapped"
