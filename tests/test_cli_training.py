"""The commands that list, train, evaluate, reproduce and render, as a user gives them."""

import json
from pathlib import Path

import pytest

from localscale.cli import main

TINY = (
    *("--pretrained", "none", "--precision", "no", "--cpu", "--quiet", "--epochs", "1", "--batch-size", "4"),
    *("--data.root", "embedded", "--data.train-count", "8", "--data.test-count", "2", "--data.variants", "1"),
    *("--data.bracket-count", "0", "--data.image-size", "32"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "aug"
    main(["train", "mnist-deit_tiny-aug", *TINY, "--out", str(folder)])
    return folder


def failing(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code not in (0, None)
    printed = capsys.readouterr()
    return f"{stop.value} {printed.err} {printed.out}"


def test_recipes_are_listed_with_what_they_are(capsys):
    main(["recipes", "deit_tiny"])
    printed = capsys.readouterr().out
    assert "mnist-deit_tiny-dec " in printed
    assert "imagenet-deit_tiny-base " in printed
    assert "swin" not in printed


def test_a_run_writes_its_recipe_versions_seed_metrics_and_duration(run):
    result = json.loads((run / "result.json").read_text())
    assert result["name"] == "mnist-deit_tiny-aug"
    assert result["seed"] == 0
    assert "8 images" in result["data"]
    assert "digits: " in result["data"]
    assert result["recipe"]["optimization"]["epochs"] == 1
    assert result["recipe"]["data"]["image_size"] == 32
    assert {"localscale", "torch", "timm", "accelerate"} <= set(result["versions"])
    assert result["seconds"]["training"] > 0
    assert set(result["metrics"]["invariance_error"]) == {"squared", "l2", "relative"}
    assert not (run / "checkpoint.safetensors").exists()


def test_a_finished_run_is_measured_again_on_the_same_or_other_data(run, capsys, tmp_path):
    main(["evaluate", str(run), "--cpu", "--json", str(tmp_path / "again.json")])
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads((run / "result.json").read_text())["metrics"]
    main(["evaluate", str(run), "--cpu", "--data.test-count", "5"])
    assert "of 5 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "mnist-deit_tiny-dek"), "did you mean mnist-deit_tiny-dec"),
        (("recipes", "vit_tny"), "no recipe 'vit_tny'"),
        (("train", "mnist-deit_tiny-dec", "--epoch", "3"), "--epochs"),
        (("train", "mnist-deit_tiny-dec", *TINY), "--start runs/mnist-deit_tiny-aug/seed0"),
        (("train", "mnist-deit_tiny-aug", *TINY, "--data.root", "/nowhere"), "/nowhere"),
        (("train", "mnist-deit_tiny-aug", *TINY, "--backbone", "deit_tny_patch16_224"), "deit_tiny_patch16_224"),
        (("train", "mnist-deit_tiny-aug", *TINY, "--pretrained", "/nowhere.safetensors"), "no weights at /nowhere"),
        (("train", "mnist-deit_tiny-aug", *TINY, "--batch-size", "100"), "try --batch-size 8"),
        (("train", "imagenet-deit_tiny-base", "--pretrained", "none", "--cpu"), "--data.train-root is needed"),
        (("evaluate", "/nowhere"), "there is no recipe.json in /nowhere"),
        (("reproduce", "mnst"), "did you mean mnist"),
        (("tables", "--results", "/nowhere"), "/nowhere is not a folder"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in failing(capsys, *arguments)


def test_a_folder_with_a_run_is_not_trained_over(run, capsys):
    assert "is finished" in failing(capsys, "train", "mnist-deit_tiny-aug", *TINY, "--out", str(run))
    other = ("--learning-rate", "0.5", "--out", str(run), "--resume")
    assert "learning_rate was 0.0001 and is now 0.5" in failing(capsys, "train", "mnist-deit_tiny-aug", *TINY, *other)


def test_a_plan_says_what_would_be_run_and_runs_nothing(capsys, tmp_path):
    main(["reproduce", "mnist-tiny", "--seeds", "2", "--plan", "--out", str(tmp_path / "runs")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 24
    assert lines[0].startswith("to do localscale train mnist-deit_tiny-aug ")
    assert not (tmp_path / "runs").exists()


def test_tables_are_listed_and_rendered(capsys, tmp_path):
    main(["reproduce"])
    assert "mnist-ablation" in capsys.readouterr().out
    (tmp_path / "results").mkdir()
    main(["tables", "--results", str(tmp_path / "results"), "--out", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text().startswith("# Results")


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_name_that_looks_like_an_option(command: str):
    with pytest.raises(SystemExit, match=r"^localscale: .*--help"):
        main([command, "--", "--help"])
