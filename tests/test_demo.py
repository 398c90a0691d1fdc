"""The demo and the benchmarks run from end to end with little work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(out: Path) -> list[dict]:
    rows = json.loads((out / "results.json").read_text())["rows"]
    for row in rows:
        assert row.pop("seconds") > 0
    return rows


@pytest.mark.slow
def test_the_demo_ends_in_a_table_and_two_pictures(tmp_path: Path):
    table = run("demo", "--quick", "--out", str(tmp_path))
    assert [
        line[:16].rstrip() for line in table.splitlines() if line.startswith(("control  ", "size equilibrium  "))
    ] == [
        "control",
        "size equilibrium",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"accuracy_per_scale.png", "learned_warps.png", "results.json"}
    assert len(numbers(tmp_path)) == 2


@pytest.mark.slow
def test_the_seed_determines_the_demos_numbers(tmp_path: Path):
    for out, seed in (("once", "0"), ("twice", "0"), ("other", "1")):
        run("demo", "--quick", "--seed", seed, "--out", str(tmp_path / out))
    assert numbers(tmp_path / "once") == numbers(tmp_path / "twice") != numbers(tmp_path / "other")


@pytest.mark.slow
def test_benchmarks_write_what_they_print(tmp_path: Path):
    printed = run("benchmarks", "--quick", "--json", str(tmp_path / "core.json"))
    tables = json.loads((tmp_path / "core.json").read_text())["tables"]
    assert [table["title"] in printed for table in tables] == [True] * 6
    memory = next(table for table in tables if table["title"].startswith("Peak memory"))
    implicit, unrolled = memory["rows"]
    assert abs(implicit["growth %"]) <= 5
    assert unrolled["growth %"] > 100


@pytest.mark.parametrize("module", ["demo", "benchmarks"])
def test_help_lists_the_options(module: str):
    text = run(module, "--help")
    assert "--quick" in text
    assert len(text.splitlines()) > 10
