"""The campaign of hostile servers runs, and reports what fetch would do if it trusted them."""

from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("benchmarks.faults", reason="benchmarks are not in this copy")

from benchmarks.faults import CAMPAIGNS
from benchmarks.faults.campaign import run
from benchmarks.faults.servers import Servers
from localscale.errors import DataError
from localscale.lab.data.objects import answers, archives, downloads, fetch


def failures(trials: int = 30, first: int = 0) -> str:
    tally = run(Servers(), count(first), seconds=60, most=trials)
    assert tally.tried == trials or tally.failures
    return " ".join(tally.failures.values())


def test_no_hostile_answer_does_harm():
    assert CAMPAIGNS["servers"] is Servers
    assert failures() == ""


def test_trusted_words_are_reported(monkeypatch: pytest.MonkeyPatch):
    for module in (answers, archives, downloads, fetch):
        monkeypatch.setattr(module, "plain", str)
    assert "a reason can control a terminal or is too long" in failures()


def test_a_lost_item_is_reported(monkeypatch: pytest.MonkeyPatch):
    def refuse(archive: Path, folder: Path) -> None:
        raise DataError("no")

    monkeypatch.setattr(fetch, "unpack_model", refuse)
    assert "was answered honestly and is lost" in failures() or "one bad item ended everything" in failures()


def test_a_foreign_exception_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetch, "read_panorama_file", lambda answer, *_: answer["no such key"])
    assert "foreign exception" in failures()
