"""The page that follows the paper: its references exist, its verdicts follow from results, and it is up to date."""

import json
import operator
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from localscale.cli import COMMANDS
from localscale.lab.pages.paper import render_paper
from localscale.lab.pages.paper.findings import beats
from localscale.lab.pages.paper.page import FIGURES, TABLES
from localscale.lab.pages.paper.statements import DEFINITIONS, SETTINGS
from localscale.lab.pages.results.paper import CLASSIFICATION, GRIDS, MODULES, SCALE_1
from localscale.lab.recipes.tables import find_table
from localscale.lab.recipes.tables.mnist_ablations import swept_name

ROOT = Path(__file__).parents[4]


def look_up(name: str) -> object:
    """Return what a dotted name stands for, of which the first parts are modules."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return operator.attrgetter(".".join(parts[count:]))(module) if count < len(parts) else module
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("statement", [*DEFINITIONS, *SETTINGS], ids=lambda statement: statement.says[:30])
def test_code_and_tests_of_every_statement_exist(statement):
    for name in statement.code:
        look_up(name)
    assert (ROOT / statement.test).exists()


def test_commands_of_tables_and_figures_exist():
    for command in (*(table.command for table in TABLES), *(figure.command for figure in FIGURES)):
        program, first, *rest = shlex.split(command)
        if program == "localscale":
            assert first in COMMANDS
            if first == "reproduce":
                find_table(rest[0])
            if first == "figure":
                kinds = import_module("localscale.cli.figures").Figure.__annotations__["which"]
                assert f"subcommand('{rest[0]}')" in str(kinds), command


def test_the_committed_page_is_what_the_command_renders():
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert page == render_paper(ROOT / "results"), "docs/paper.md is out of date: run localscale tables"


def a_run(row: str, seed: int, accuracy: float, error: float) -> dict:
    errors = {"squared": error, "l2": 0.2, "relative": 0.3}
    scales = {"images": 9, "accuracy": {"0.4–1.0": accuracy, "1.0–2.0": accuracy}, "mean": accuracy, "std": 0.0}
    metrics = {"images": 10, "variants": 4, "accuracy": accuracy, "invariance_error": errors, "per_scale": scales}
    about = {"label": row, "row": row, "backbone": "resnet50", "budget_epochs": 60, "seed": seed}
    return {**about, "metrics": metrics}


def test_verdicts_follow_from_the_results(tmp_path):
    runs = [a_run("aug", 0, 0.80, 0.10), a_run("aug", 1, 0.82, 0.12), a_run("canon", 0, 0.70, 0.30)]
    runs += [a_run("dec", 0, 0.90, 0.11), a_run("dec", 1, 0.91, 0.13)]
    result = {"kind": "classification", "table": "mnist-small", "runs": runs}
    (tmp_path / "mnist_small.json").write_text(json.dumps(result))
    page = render_paper(tmp_path)
    claim = next(line for line in page.splitlines() if line.startswith("- resnet50."))
    assert claim == (
        "- resnet50. accuracy %: 90.50 against 81.00 of aug: holds. "
        "InvE 10⁻²: 12.00 against 11.00 of aug: **does not hold**."
    )
    assert "| ResNet | resnet50 | InvL | – | 93.67 ± 0.73 | – | 13.47 ± 2.01 | not run |" in page
    assert "DeiT (96.46 ± 0.14)" in page, "families without a run are named"


def test_the_sweep_of_dec_says_how_far_its_modules_move_and_which_is_best(tmp_path):
    moved = {(1e-3, 1, False): 0.02, (1e-3, 1, True): 0.0005, (1e-4, 2, False): 0.004}
    runs = [a_run("aug_plus", 0, 0.84, 0.14)]
    for number, (key, displacement) in enumerate(moved.items()):
        last = {"input/displacement": displacement, "blocks.0/displacement": displacement / 2}
        runs.append(a_run(swept_name(*key), 0, 0.85 + 0.01 * number, 0.1) | {"last_epoch": last})
    runs.append(a_run(swept_name(1e-3, 1, False), 1, 0.855, 0.1) | {"last_epoch": {"input/displacement": 0.02}})
    runs = [run | {"backbone": "deit_tiny"} for run in runs]
    result = {"kind": "classification", "table": "mnist-dec-sweep", "runs": runs}
    (tmp_path / "mnist_dec_sweep.json").write_text(json.dumps(result))
    page = render_paper(tmp_path)
    assert "| 1 | not run | 85.25 ± 0.35 (2.0 %) / 86.00 (inert) | not run |" in page
    assert "| 2 | 87.00 (0.4 %) / not run | not run | not run |" in page
    assert (
        "**The best of those with most seeds, dec_1_rate1e-03, is more accurate than aug_plus:** holds, with one seed "
        "(accuracy % 85.25 ± 0.35 against 84.00; InvE 10⁻² 10.00 ± 0.00 against 14.00)." in page
    )


def test_optim_is_compared_where_it_takes_as_much_memory_as_in_the_paper(tmp_path):
    rows = [
        {"steps": steps, "method": method, "ms": ms, "peak GiB": memory}
        for steps, method, ms, memory in (
            *((10, "DEC direct", 200.0, 2.0), (10, "Optim", 400.0, 12.0), (40, "DEC direct", 500.0, 2.5)),
            *((40, "Optim", 1500.0, 45.0), (80, "DEC direct", 900.0, 2.5), (80, "Optim", "OutOfMemoryError", "–")),
        )
    ]
    table = {"title": "Time and memory by the steps of a solve: a model", "note": "", "rows": rows}
    (tmp_path / "training_cuda.json").write_text(json.dumps({"tables": [table]}))
    page = render_paper(tmp_path)
    assert "a look at the whole image and 40 steps per solve" in page
    assert "| 45.0 GiB and 1.50 s; 2.5 GiB and 0.50 s | 18.0 times the memory, 3.0 times the time |" in page


def test_a_page_without_results_says_so(tmp_path):
    page = render_paper(tmp_path)
    assert "Not measured." in page
    assert "not run" in page
    assert "holds, with one seed" not in page


@pytest.mark.parametrize(
    ("ours", "others", "words"),
    [
        ([0.5, 0.6], [0.1, 0.2], "holds"),
        ([0.5, 0.6], [0.52, 0.57], "within the spread of seeds"),
        ([0.5], [0.1, 0.2], "holds, with one seed"),
        ([0.1, 0.1], [0.1, 0.1], "**does not hold**"),
        ([], [0.1], "not run"),
    ],
)
def test_words_of_a_verdict(ours, others, words):
    runs = [[{"value": value} for value in values] for values in (ours, others)]
    assert beats(*runs, operator.itemgetter("value"), largest=True) == words
    less = [[{"value": -value} for value in values] for values in (ours, others)]
    assert beats(*less, operator.itemgetter("value"), largest=False) == words


def test_the_papers_figures_agree_with_each_other():
    """Tab. A3 and A4 and Tab. 4 and A5 of the paper share rows."""
    assert [len(row) for row in (*MODULES.values(), *GRIDS.values())] == [4] * 6
    assert set(SCALE_1) == set(CLASSIFICATION["imagenet"])
    assert all(set(SCALE_1[family]) == set(rows) for family, rows in CLASSIFICATION["imagenet"].items())
