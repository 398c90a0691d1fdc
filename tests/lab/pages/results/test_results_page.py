"""The results page: every row with its seeds and the paper's figure, and the committed page up to date."""

import json
import re
import statistics
from pathlib import Path

import pytest

from localscale.errors import DataError
from localscale.lab.pages.results import render_page
from localscale.lab.pages.results.paper import CLASSIFICATION, PER_SCALE, family_of_backbone


def a_run(row: str, label: str, seed: int, accuracy: float, *, supervised: bool = False) -> dict:
    last = {"epoch": 3, "loss": 0.1}
    if supervised:
        last |= {"input/residual": 1e-3, "input/steps": 4.0, "input/displacement": 0.012, "supervision": 0.5}
    return {
        "label": label,
        "row": row,
        "backbone": "deit_tiny",
        "budget_epochs": 80,
        "seed": seed,
        "metrics": {
            "images": 10_000,
            "variants": 8,
            "accuracy": accuracy,
            "invariance_error": {"squared": 0.1, "l2": 0.2, "relative": 0.3},
            "per_scale": {"images": 5, "accuracy": {"0.4–1.0": 0.5, "1.0–2.0": 0.7}, "mean": 0.6, "std": 0.1},
        },
        "last_epoch": last,
        "recipe": {
            "start": None,
            "data": {"image_size": 224},
            "optimization": {"batch_size": 256, "learning_rate": 5e-4},
            "precision": "bf16",
        },
    }


def a_result(runs: list[dict], paper: str = "mnist") -> dict:
    about = {"kind": "classification", "table": "mnist-tiny", "title": "MNIST, DeiT-Tiny", "paper": paper}
    return {**about, "command": "localscale …", "machine": "a machine", "versions": {"torch": "2"}, "runs": runs}


def test_every_row_has_its_seeds_its_budget_and_the_papers_figure(tmp_path):
    runs = [a_run("aug", "Aug", seed, accuracy) for seed, accuracy in enumerate((0.70, 0.72, 0.77))]
    runs.append(a_run("dec_joint", "DEC direct, joint", 0, 0.8, supervised=True))
    (tmp_path / "mnist_tiny.json").write_text(json.dumps(a_result(runs)))

    page = render_page(tmp_path)

    std = statistics.stdev((70.0, 72.0, 77.0))
    assert f"| deit_tiny | Aug | 3 | 80 | 73.00 ± {std:.2f} | 10.00 ± 0.00 |" in page
    assert "| 90.91 ± 1.18 | 16.17 ± 4.94 |" in page
    assert "| deit_tiny | DEC direct, joint | 1 | 80 | 80.00 |" in page
    assert "96.46 ± 0.14" in page  # a joint row stands beside the paper's DEC
    assert "| deit_tiny | Aug | 50.00 | 70.00 | 60.00 ± 10.00 | 91.64, 96.32, 93.84; 93.93 ± 1.91 |" in page
    assert "| deit_tiny | DEC direct, joint | input | 1.0e-03 | 4 | 1.2 | yes | 0.5 |" in page
    assert "test images of 224 px" in page
    assert "equal-budget control" in page


def test_the_learning_rate_of_rows_that_continue_another_is_shown(tmp_path):
    runs = [a_run("aug", "Aug", 0, 0.7), a_run("aug_plus", "Aug+ (control)", 0, 0.7)]
    target = tmp_path / "mnist_tiny.json"
    target.write_text(json.dumps(a_result(runs)))
    assert "in bfloat16. Learning rate 0.0005.\n" in render_page(tmp_path)
    runs[1]["recipe"] |= {"start": "runs/aug/seed0", "optimization": {"batch_size": 256, "learning_rate": 5e-5}}
    target.write_text(json.dumps(a_result(runs)))
    assert "Learning rate 0.0005; 5e-05 for rows that continue another.\n" in render_page(tmp_path)


def test_what_energies_learned_is_shown(tmp_path):
    runs = [a_run("canon", "Canon", seed, 0.7) for seed in (0, 1)]
    target = tmp_path / "mnist_tiny.json"
    target.write_text(json.dumps(a_result(runs)))
    assert "energies learned" not in render_page(tmp_path)
    for run, undone in zip(runs, (0.5, 0.7), strict=True):
        run["learned_energies"] = {"steps": 1000, "undone": undone, "chance": 1 / 64}
    target.write_text(json.dumps(a_result(runs)))
    assert "| deit_tiny | Canon | 1000 | 60.0 ± 14.1 | 1.6 |" in render_page(tmp_path)


def test_differences_to_the_control_are_shown_where_they_are_known(tmp_path):
    result = a_result([a_run("aug_long", "Aug, long (control)", 0, 0.5), a_run("sizes", "Sizes", 0, 0.6)])
    target = tmp_path / "mnist_tiny.json"
    target.write_text(json.dumps(result))
    assert "Difference to the control" not in render_page(tmp_path)
    known = {"backbone": result["runs"][0]["backbone"], "row": "sizes", "control": "aug_long", "seeds": [1, 1]}
    known |= {"images": 50, "accuracy": [0.1, -0.02, 0.22], "invariance_error": [-0.031, -0.04, -0.02]}
    target.write_text(json.dumps({**result, "differences": [known]}))
    row = next(line for line in render_page(tmp_path).splitlines() if "+10.00" in line)
    assert row.endswith(
        "| Sizes | Aug, long (control) | 50 | 1 and 1 | +10.00 [-2.00, +22.00] | -3.10 [-4.00, -2.00] |"
    )


def test_the_committed_page_is_what_the_command_renders():
    root = Path(__file__).parents[4]
    page = (root / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == render_page(root / "results"), "docs/results.md is out of date: run localscale tables"


def test_backbones_without_a_run_are_listed(tmp_path):
    (tmp_path / "mnist_tiny.json").write_text(json.dumps(a_result([a_run("aug", "Aug", 0, 0.5)])))
    rest = render_page(tmp_path).partition("## Backbones never trained")[2]
    assert "| `localscale reproduce mnist-hierarchical` | hrvit_b1, resformer_tiny |" in rest
    assert "| `localscale reproduce imagenet-tiny` | deit_tiny, vit_tiny |" in rest, "another task does not count"
    assert "reproduce mnist-tiny`" not in rest


@pytest.mark.parametrize("text", ["", "{}", '{"versions": {}, "command": "", "machine": "", "kind": "classification"}'])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(DataError, match=r"broken\.json is not a result"):
        render_page(tmp_path)


def test_the_papers_overall_is_the_mean_and_deviation_of_its_scales():
    for rows in PER_SCALE.values():
        for printed in rows.values():
            scales, _, overall = printed.partition("; ")
            values = [float(value) for value in scales.split(", ")]
            mean, std = map(float, overall.split(" ± "))
            assert statistics.fmean(values) == pytest.approx(mean, abs=0.0051)
            assert statistics.pstdev(values) == pytest.approx(std, abs=0.011)


def test_every_backbone_of_the_papers_tables_can_be_found_by_its_key():
    keys = ("resnet50", "vit_base", "deit_tiny", "swin_tiny", "beit_base", "dinov2_base", "hrvit_b1", "resformer_tiny")
    assert {family_of_backbone(key) for key in keys} == set(CLASSIFICATION["mnist"])
    assert family_of_backbone("efficientnet_lite0") == ""


def test_texts_of_results_cannot_become_html_links_or_cells(tmp_path: Path):
    odd = "<script>x</script> [a](javascript:b) ![c](d)\n\n# e | f"
    table = {"title": odd, "note": odd, "rows": [{odd: odd, "value": 1.5}]}
    result = {"command": f"`{odd}", "machine": odd, "versions": {odd: odd}, "tables": [table]}
    (tmp_path / "odd.json").write_text(json.dumps(result), encoding="utf-8")
    page = render_page(tmp_path).partition("## odd")[2].partition("## Backbones")[0]
    outside = re.sub(r"`[^`\n]*`", "", page)
    assert "<" not in outside
    assert "](" not in outside
    assert "\n# e" not in page
    (row,) = [line for line in page.splitlines() if line.endswith("| 1.5 |")]
    assert row.count("|") - row.count("\\|") == 3, "two cells"


@pytest.mark.parametrize(
    "change",
    [
        {"versions": [1]},
        {"tables": [{"title": "a", "note": "b", "rows": [[1]]}]},
        {"tables": 3},
        {"table": ["mnist"]},
        {"kind": {}},
        {"kind": "classification", "runs": []},
    ],
)
def test_results_of_other_types_are_refused(change: dict, tmp_path: Path):
    result = {"command": "a", "machine": "b", "versions": {}, "tables": []}
    (tmp_path / "odd.json").write_text(json.dumps(result | change), encoding="utf-8")
    with pytest.raises(DataError, match=r"odd.json is not a result that can be rendered"):
        render_page(tmp_path)
