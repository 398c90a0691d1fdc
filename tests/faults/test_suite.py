"""The fault campaigns together, for a fifth of their time: every trial survives, and failures are told."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from benchmarks.faults import CAMPAIGNS
from benchmarks.faults.campaign import Campaign, run

ROOT = Path(__file__).parents[2]


class Odd(Campaign):
    """Survives even numbers only."""

    name, about, goal, patience = "odd", "odd numbers", 4, 1.0

    def trial(self, draw: Random) -> str | None:
        number = draw.randrange(10**6)
        if number % 3 == 0:
            raise KeyError(number)
        while number % 3 == 1:
            pass
        return "odd" if number % 2 else None


def test_failures_have_a_seed_and_a_sentence():
    tally = run(Odd(), iter(range(12)), seconds=60, progress=False)
    assert (tally.tried, tally.survived) == (12, 12 - len(tally.failures))
    kinds = {sentence.split()[0] for sentence in tally.failures.values()}
    assert kinds == {"foreign", "hangs:", "odd"}
    seed, sentence = next(iter(tally.failures.items()))
    assert run(Odd(), iter([seed]), seconds=60, progress=False).failures == {seed: sentence}, "a seed repeats its trial"


def test_trials_end_after_their_number_or_time():
    assert run(Odd(), iter(range(100)), seconds=60, most=3, progress=False).tried == 3
    assert run(Odd(), iter(range(10**6)), seconds=0, progress=False).tried <= 1


@pytest.mark.slow
def test_nothing_is_lost_in_two_minutes(tmp_path: Path):
    target = tmp_path / "faults.json"
    command = [sys.executable, "-m", "benchmarks", "--suite", "faults", "--minutes", "2", "--json", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    (table,) = json.loads(target.read_text())["tables"]
    assert [row["campaign"] for row in table["rows"]] == list(CAMPAIGNS)
    assert {row["campaign"]: row["seeds of failures"] for row in table["rows"] if row["failed"]} == {}, done.stderr[
        -4000:
    ]
    assert all(row["tried"] for row in table["rows"])
