"""Two processes with half a batch each give the same masks and metrics as one process with the whole batch."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_objects import CLASSES, COMPOSE, tiny, write_both
from tiny_processes import together
from tiny_recipes import log_of
from torch import nn

from localscale.lab.recipes import Recipe
from localscale.lab.runs import Run
from localscale.lab.training import evaluate_run, runner, train


@pytest.fixture(scope="module")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_both(tmp_path_factory.mktemp("discs"))


def write(folder: Path, metrics: Any) -> None:
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(metrics))


def read(folder: Path) -> list[Any]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


# Measuring


def measure(run: Path, recipes: list[Recipe], folder: Path) -> None:
    write(folder, [evaluate_run(run, recipe, cpu=True) for recipe in recipes])


def flat(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return nested metrics by dotted names."""
    found = {}
    for name, value in metrics.items():
        found |= (
            {f"{name}.{key}": inner for key, inner in flat(value).items()} if isinstance(value, dict) else {name: value}
        )
    return found


@pytest.mark.slow
def test_two_measure_a_run_as_one_whatever_their_shares(discs: Path, tmp_path: Path):
    """With a single test image, the second process has none."""
    train(tiny(discs, COMPOSE), tmp_path / "run", cpu=True)
    recipes = [tiny(discs, COMPOSE, test_limit=limit) for limit in (1, 7)]
    together(measure, tmp_path / "run", recipes, tmp_path)
    for number, recipe in enumerate(recipes):
        alone = evaluate_run(tmp_path / "run", recipe, cpu=True)
        for found in read(tmp_path):
            assert set(found[number]) == set(alone)
            for name, value in flat(alone).items():
                assert flat(found[number])[name] == (value and pytest.approx(value, rel=1e-6)), name


# Training


def pointwise(*arguments: Any, **rest: Any) -> nn.Module:
    """Return a pointwise segmenter. Dropout and batch statistics of the real one would differ between processes."""
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.Tanh(), nn.Conv2d(8, CLASSES, 1))


def train_pointwise(recipe: Recipe, folder: Path) -> None:
    runner.create_model = pointwise  # type: ignore[attr-defined]
    write(folder.parent, train(recipe, folder, cpu=True)["metrics"])


@pytest.mark.slow
def test_two_train_as_one(discs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All pixels have weight 1, because a weighted mean over a batch is not the mean over its two halves."""
    recipe = tiny(discs, background_weight=1.0, epochs=3, learning_rate=2e-2)
    monkeypatch.setattr(runner, "create_model", pointwise)
    one = train(recipe, tmp_path / "one", cpu=True)["metrics"]
    together(train_pointwise, recipe, tmp_path / "two")
    result = Run(tmp_path / "two").result()
    assert result is not None
    assert result["processes"] == 2
    two = result["metrics"]
    assert read(tmp_path) == [two, two]
    assert two["mean_iou"] == pytest.approx(one["mean_iou"], rel=1e-3)
    for name in ("equivariance_error", "equivariance_floor"):
        assert two[name] == pytest.approx(one[name], rel=1e-3)
    for a, b in zip(log_of(tmp_path / "one"), log_of(tmp_path / "two"), strict=True):
        assert b == pytest.approx(a, rel=1e-4)
    assert log_of(tmp_path / "one")[-1]["loss"] < 0.8 * log_of(tmp_path / "one")[0]["loss"]
