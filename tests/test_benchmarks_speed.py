"""The speed suite with small sizes: the tables it writes, failing rows, and verdicts on targets."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.measurement import interleaved_milliseconds
from benchmarks.speed_settings import TOLERANCE, verdict
from localscale.lab.pages.results import render_page

ROOT = Path(__file__).parent.parent
FLOOR = {"floor ms", "× floor"}
# The first words of a table's title → columns that each of its rows must have.
COLUMNS = {
    "One warp": {"tensor", "what", "method", "published ms", "target ms", "ms", "verdict", "queued ms", "peak MiB"}
    | FLOOR,
    "Inference": {"published %", "target %", "overhead %", "verdict", "queued %", "queued", "worst residual"} | FLOOR,
    "The solve alone": {"published ms", "target ms", "ms", "time", "queued ms", "peak GB", "memory", "worst residual"}
    | FLOOR,
    "A training step": {"published %", "target %", "overhead %", "time", "extra memory %", "memory"} | FLOOR,
    "The size equilibrium": {"backbone", "size equilibrium", "ms", "added ms", "overhead %", "target %", "verdict"},
    "Learning sizes": {"steps", "batch", "side", "seconds", "target", "verdict"},
    "How the cost": {"axis", "value", "forward ms", "forward and backward ms", "forward and backward peak MiB"},
}


def measure(target: Path, *options: str) -> list[dict]:
    command = [sys.executable, "-m", "benchmarks", "--suite", "speed", "--quick", "--json", str(target), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(target.read_text())
    assert result["command"] == " ".join(["python -m benchmarks --suite speed --device cpu --quick", *options])
    for table in result["tables"]:
        assert table["title"] in done.stdout
        assert table["title"] in render_page(target.parent)
        for row in table["rows"]:
            assert next(names for start, names in COLUMNS.items() if table["title"].startswith(start)) <= row.keys()
            assert [cell for cell in row.values() if str(cell).startswith("fails")] == [], done.stderr
    return result["tables"]


@pytest.mark.slow
def test_all_libraries_are_in_one_table(tmp_path: Path):
    warp, inference = measure(tmp_path / "speed.json", "--only", "warp", "cpu_inference")
    assert inference["rows"][0]["target %"] == "≤ 25"
    methods = {row["method"] for row in warp["rows"]}
    assert {"localscale", "grid_sample, grid given", "grid_sample, grid made"} < methods
    assert any("kornia" in method for method in methods)
    for row in warp["rows"]:
        assert min(row["ms"], row["floor ms"]) > 0
        if "half precision" not in row["method"]:  # all sample at the same positions
            assert row["largest error"] < (1e-3 if row["precision"] == "float32" else 0.05)


@pytest.mark.slow
def test_every_table_of_the_speed_suite_is_written(tmp_path: Path):
    tables = measure(tmp_path / "speed.json")
    assert len(tables) == 9
    assert {start for start in COLUMNS for table in tables if table["title"].startswith(start)} == COLUMNS.keys()
    inference = [row for table in tables if table["title"].startswith("Inference") for row in table["rows"]]
    assert len(inference) == 4
    assert all(0 < row["worst residual"] < 1 for row in inference)
    solve = next(table for table in tables if table["title"].startswith("The solve"))
    assert "torchdeq" in str(solve["rows"])
    growth = next(table for table in tables if table["title"].startswith("How the cost"))
    assert {row["axis"] for row in growth["rows"]} == {"batch", "resolution", "knots", "sites", "steps"}
    few, more = (row["forward and backward peak MiB"] for row in growth["rows"] if row["axis"] == "steps")
    assert more == pytest.approx(few, rel=0.05)


def test_an_unknown_table_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--suite", "speed", "--only", "wrap", "--json", "never.json"])
    with pytest.raises(SystemExit, match="warp"):
        main()


def test_a_part_of_the_suite_needs_its_own_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--suite", "speed", "--only", "warp"])
    with pytest.raises(SystemExit):
        main()
    assert "--json FILE" in capsys.readouterr().err


def test_a_failing_call_is_named_in_its_cell_and_the_others_go_on(capsys: pytest.CaptureFixture[str]):
    def broken(_: int) -> None:
        raise RuntimeError("no such | kernel\nhere")

    times = interleaved_milliseconds(
        {"broken": broken, "whole": lambda x: x}, lambda: (1,), "cpu", repeats=3, after=lambda *_: None
    )
    assert times["broken"] == "fails: RuntimeError: no such / kernel here"
    assert isinstance(times["whole"], float)
    assert capsys.readouterr().err.count("Traceback") == 1  # tried once, with a traceback


def test_calls_take_turns_on_new_inputs():
    made, seen = iter(range(100)), []
    calls = {name: lambda x, name=name: seen.append((name, x)) for name in "ab"}
    interleaved_milliseconds(calls, lambda: (next(made),), "cpu", repeats=2)
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_queued_calls_share_the_time_of_their_row(monkeypatch: pytest.MonkeyPatch):
    made, seconds, seen = iter(range(100)), iter(range(100)), []
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    calls = {name: lambda x, name=name: seen.append((name, x)) for name in "ab"}
    times = interleaved_milliseconds(calls, lambda: (next(made),), "cpu", repeats=1, queue=4)
    assert seen[:8] == [(name, x) for name in "ab" for x in range(4)]
    assert times == {"a": 250, "b": 250}


@pytest.mark.parametrize(
    ("measured", "residual", "expected"),
    [
        (4.9, TOLERANCE, "met"),
        (5.1, 0.0, "missed"),
        (math.nan, 0.0, "missed"),
        ("fails: …", 0.0, "missed"),
        (4.9, 2 * TOLERANCE, "missed: residual above 0.001"),
        (4.9, math.nan, "missed: residual above 0.001"),
    ],
)
def test_a_target_is_met_only_by_converged_equilibria(measured, residual, expected):
    assert verdict(measured, 5, False, residual=residual) == expected
    assert verdict(measured, 5, True, residual=residual) == "–"  # targets do not apply to small sizes
