"""The log of a run and the position in its checkpoint: what is empty, short or incomplete is refused."""

import json
from pathlib import Path

import pytest

from localscale.errors import CheckpointError
from localscale.lab.runs.run import Log
from localscale.lab.training.loop import Position

SCHEDULE = {"best": float("inf"), "waited": 0, "drops": 0}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "log.jsonl")
    for epoch in (1, 2, 3):
        log.add({"epoch": epoch, "seconds": 0.5, "loss": float("nan")})
    log.write()
    return log


def test_the_log_comes_back_up_to_an_epoch(log: Log):
    again = Log(log.path)
    again.resume(2)
    assert [line["epoch"] for line in again.lines] == [1, 2]
    assert again.seconds == 1.0
    assert "crc32" not in again.last


@pytest.mark.parametrize("lines", [0, 1])
def test_a_log_that_is_empty_or_short_is_refused(lines: int, log: Log):
    log.path.write_text("".join(log.path.read_text().splitlines(keepends=True)[:lines]))
    with pytest.raises(CheckpointError, match=rf"has {lines} epochs, and the checkpoint beside it is of epoch 3"):
        Log(log.path).resume(3)


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.5", "0.6"), ('"crc32"', '"crc33"'), ('"epoch": 2', '"epoch": 4'), ('{"epoch": 1', '{["epoch": 1'), ("{", "[")],
)
def test_a_changed_log_is_refused(old: str, new: str, log: Log):
    log.path.write_text(log.path.read_text().replace(old, new, 1))
    with pytest.raises(CheckpointError, match=r"log.jsonl cannot be read"):
        Log(log.path).cut(3)


@pytest.mark.parametrize("line", [{"epoch": 1}, {"epoch": 1, "seconds": "x"}, {"seconds": 1}, []])
def test_lines_without_a_checksum_need_their_fields(line: object, log: Log):
    log.path.write_text(json.dumps(line) + "\n")
    with pytest.raises(CheckpointError, match=r"log.jsonl cannot be read"):
        Log(log.path).cut(3)


def test_a_position_comes_back():
    position = {"step": 3, "skipped": 1, "schedule": SCHEDULE, "sums": {"loss": 0.5}}
    assert Position.from_state({"position": position}, 4) == Position(**position)


@pytest.mark.parametrize(
    "position",
    [
        None,
        {},
        {"step": 3, "skipped": 1},
        {"step": 5, "skipped": 1, "schedule": SCHEDULE, "sums": {}},
        {"step": True, "skipped": 1, "schedule": SCHEDULE, "sums": {}},
        {"step": 3.0, "skipped": 1, "schedule": SCHEDULE, "sums": {}},
        {"step": 3, "skipped": 1, "schedule": {"best": 1.0}, "sums": {}},
        {"step": 3, "skipped": 1, "schedule": SCHEDULE | {"best": "x"}, "sums": {}},
        {"step": 3, "skipped": 1, "schedule": SCHEDULE},
        {"step": 3, "skipped": 1, "schedule": SCHEDULE, "sums": {"loss": "x"}},
    ],
)
def test_a_position_without_its_keys_is_refused(position: object):
    with pytest.raises(ValueError, match=r"expected|steps"):
        Position.from_state({"position": position}, 4)
