"""The files and trackers that a run writes."""

import importlib.util
import json
from importlib import metadata
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_recipes import STEPS, log_of, tiny

from localscale.canonicalizer import DECConfig
from localscale.errors import ConfigError, MissingExtraError
from localscale.files import unseal
from localscale.lab.methods import DEC, Canon, CentreZoom, Method, RandomWarp, Zoom
from localscale.lab.recipes.recipe import to_dict
from localscale.lab.runs import Run, load_run
from localscale.lab.tasks.outcomes import Outcomes
from localscale.lab.training import evaluate_run, train


def test_the_result_says_everything(digits: Path, tmp_path: Path):
    recipe = tiny(digits, "dec", epochs=2)
    result = train(recipe, tmp_path / "run", cpu=True)
    run = Run(tmp_path / "run")
    assert result == run.result() == unseal(run.result_file.read_text())
    assert result["recipe"] == to_dict(recipe)
    assert (result["steps"], result["skipped_steps"], result["classes"]) == (2 * STEPS, 0, 1000)
    assert result["parameters"] == sum(tensor.numel() for tensor in load_file(run.weights).values())
    assert result["last_epoch"]["epoch"] == 2
    seconds = [json.loads(line)["seconds"] for line in run.log.read_text().splitlines()]
    assert result["seconds"]["training"] == sum(seconds)
    assert result["versions"]["torch"] == torch.__version__.split("+")[0]
    assert result["versions"]["localscale"] == metadata.version("localscale")
    assert result["machine"].endswith("CPU")
    outcomes = Outcomes.read(run.outcomes)
    assert float(outcomes.right.double().mean()) == pytest.approx(result["metrics"]["accuracy"])
    squared = result["metrics"]["invariance_error"]["squared"]
    assert float(outcomes.invariance_error.mean()) == pytest.approx(squared, rel=1e-4)


def test_half_precision_is_another_run(digits: Path, tmp_path: Path):
    for precision in ("no", "bf16"):
        train(tiny(digits, "dec", epochs=1, precision=precision), tmp_path / precision, cpu=True)
    (full,), (half,) = log_of(tmp_path / "no"), log_of(tmp_path / "bf16")
    assert full["loss"] != half["loss"]
    assert half["loss"] == pytest.approx(full["loss"], rel=0.02)
    dtypes = {tensor.dtype for tensor in load_file(tmp_path / "bf16" / "weights.safetensors").values()}
    assert dtypes == {torch.float32}


@pytest.mark.parametrize(
    "method",
    [
        Zoom(grid=9),
        CentreZoom(),
        RandomWarp(),
        Canon(configurations=4, learning_steps=2),
        DEC(DECConfig.paper(sites=("input", "blocks.1"), knots=(4, 3)), separation=1.0, prior=0.1),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_run_of_each_method_is_measured_again_with_the_same_answers(method: Method, digits: Path, tmp_path: Path):
    recipe = tiny(digits, method, epochs=1)
    result = train(recipe, tmp_path / "run", cpu=True)
    assert evaluate_run(tmp_path / "run", recipe, cpu=True) == result["metrics"]
    model = load_run(tmp_path / "run")
    assert sum(p.numel() for p in model.parameters()) == result["parameters"]
    assert ("learned_energies" in result) == isinstance(method, Canon)
    if not isinstance(method, Canon):
        logged = [value for name, value in log_of(tmp_path / "run")[0].items() if name.endswith("displacement")]
        assert (max(logged, default=0) > 1e-5) != isinstance(method, CentreZoom), "CentreZoom has none to log"


def test_seeds_are_other_runs_with_the_same_data(digits: Path, tmp_path: Path):
    losses = [
        train(tiny(digits, epochs=1, seed=seed), tmp_path / f"{seed}-{turn}", cpu=True)["last_epoch"]["loss"]
        for seed, turn in ((0, 0), (0, 1), (1, 0))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_a_recipe_that_cannot_work_leaves_no_folder(digits: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="epochs is 0"):
        train(tiny(digits, epochs=0), tmp_path / "run", cpu=True)
    assert not (tmp_path / "run").exists()


def test_bars_are_shown_when_asked_for(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train(tiny(digits, epochs=1), tmp_path / "quiet", cpu=True)
    assert capsys.readouterr() == ("", "")
    train(tiny(digits, epochs=1), tmp_path / "run", cpu=True, progress=True)
    shown = capsys.readouterr().err
    assert "training: 100%" in shown
    assert f"{STEPS}/{STEPS}" in shown


def test_tensorboard_gets_the_scalars(digits: Path, tmp_path: Path):
    pytest.importorskip("tensorboard", reason="needs the extra 'train'")
    train(tiny(digits, epochs=2), tmp_path / "run", cpu=True, trackers=("tensorboard",))
    assert list((tmp_path / "run").rglob("events.out.tfevents.*"))
    assert train(tiny(digits, epochs=2), tmp_path / "run", resume=True, cpu=True, trackers=("tensorboard",))


def test_a_tracker_that_is_not_there_is_reported(digits: Path, tmp_path: Path):
    if importlib.util.find_spec("wandb") is None:
        with pytest.raises(MissingExtraError, match=r"this needs the package wandb .*localscale\[wandb\]"):
            train(tiny(digits), tmp_path / "run", cpu=True, trackers=("wandb",))
    with pytest.raises(ConfigError, match="no tracker 'tensorbord': did you mean tensorboard"):
        train(tiny(digits), tmp_path / "run", cpu=True, trackers=("tensorbord",))
    assert not (tmp_path / "run").exists()


def test_weights_can_be_read_by_whoever_can_read_the_recipe(digits: Path, tmp_path: Path):
    train(tiny(digits, epochs=1), tmp_path / "run", cpu=True)
    run = Run(tmp_path / "run")
    assert run.weights.stat().st_mode == run.recipe_file.stat().st_mode
