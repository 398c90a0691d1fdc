"""Interrupted runs continue to bitwise the result of an uninterrupted run."""

import dataclasses
import itertools
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_processes import (
    die_at_step,
    die_before_the_result,
    die_while_evaluating,
    die_while_saving,
    killed,
    slowly,
    start,
    train_and,
    wait_for,
)
from tiny_recipes import EPOCHS, STEPS, log_of, tiny

from localscale.canonicalizer import Canonicalizer, DECConfig, SizeNetwork
from localscale.checkpoints import read_state
from localscale.equilibrium import Picard
from localscale.errors import CheckpointError, OutputError, TrainingError
from localscale.lab.methods import SizeEquilibrium
from localscale.lab.recipes import Recipe
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.runs import Run
from localscale.lab.tasks.mnist import MNISTTask
from localscale.lab.training import train
from localscale.lab.training.loop import Loop

CHANCE = Regularization(drop_path=0.2, mixup=0.8, random_erasing=0.5, label_smoothing=0.1)


def recipe_of(digits: Path, method: str) -> Recipe:
    """A recipe with every kind of randomness."""
    return tiny(digits, method, regularization=CHANCE)


@pytest.fixture(scope="module")
def whole(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(recipe_of(digits, "plain"), folder, cpu=True)
    return folder


def go_on(recipe: Recipe, folder: Path) -> dict[str, Any]:
    return train(recipe, folder, resume=True, cpu=True)


def assert_same_run(folder: Path, whole: Path) -> None:
    a, b = load_file(Run(folder).weights), load_file(Run(whole).weights)
    assert set(a) == set(b)
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert log_of(folder) == log_of(whole)
    assert len(log_of(folder)) == EPOCHS
    first, second = Run(folder).result(), Run(whole).result()
    assert first is not None
    assert second is not None
    assert first["metrics"] == second["metrics"]
    assert first["metrics"]["invariance_error"]["relative"] > 1e-3, "answers depend on the images"


# Interruptions


def test_ctrl_c_stops_after_the_step_and_loses_nothing(
    whole: Path, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe, run = recipe_of(digits, "plain"), Run(tmp_path / "run")
    step = Loop.one_step

    def press(loop: Loop, number: int, *batch: Any) -> Any:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(loop, number, *batch)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "one_step", press)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, run.folder, cpu=True)
    assert read_state(run.checkpoint)["position"]["step"] == 3
    assert STEPS != 3, "the stop is in the middle of an epoch"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    go_on(recipe, run.folder)
    assert_same_run(run.folder, whole)


def test_a_step_that_was_cut_in_half_is_not_saved(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A second Ctrl-C interrupts at once; the checkpoint stays that of the last epoch."""
    recipe, run, step = recipe_of(digits, "plain"), Run(tmp_path / "run"), Loop._take_step
    calls = itertools.count()

    def press(loop: Loop, *batch: Any) -> Any:
        for _ in range(2 if next(calls) == STEPS + 1 else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return step(loop, *batch)

    monkeypatch.setattr(Loop, "_take_step", press)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, run.folder, cpu=True, checkpoint_seconds=0)
    assert read_state(run.checkpoint)["position"]["step"] == STEPS


SIZES = SizeEquilibrium(
    DECConfig(knots=4, network=SizeNetwork(width=8, blocks=0), solver=Picard(2, 1e-3, fixed_steps=True)),
    learning_steps=7,
)


def interrupt(monkeypatch: pytest.MonkeyPatch, step: int, recipe: Recipe, folder: Path, **settings: Any) -> None:
    """Press Ctrl-C in the middle of a step of learning sizes."""
    calls, size_loss = itertools.count(), Canonicalizer.size_loss

    def press(canonicalizer: Canonicalizer, *arguments: Any, **options: Any) -> Any:
        if next(calls) == step:
            os.kill(os.getpid(), signal.SIGINT)
        return size_loss(canonicalizer, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Canonicalizer, "size_loss", press)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder, cpu=True, **settings)


@pytest.mark.parametrize("batch", [256, 4])  # one batch in all, or one of three is held out
def test_ctrl_c_while_sizes_are_learned_loses_nothing(
    batch: int, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    examples = Loop.examples

    def small(loop: Loop, *arguments: Any) -> Any:
        found: Any = examples(loop, *arguments)
        return dataclasses.replace(found, batches=dataclasses.replace(found.batches, size=min(batch, 12)))

    monkeypatch.setattr(Loop, "examples", small)
    recipe, run, whole = tiny(digits, SIZES, epochs=1, train_count=12), Run(tmp_path / "run"), tmp_path / "whole"
    train(recipe, whole, cpu=True)
    interrupt(monkeypatch, 2, recipe, run.folder)
    assert read_state(run.preparation)["step"] == 3
    with pytest.raises(OutputError, match="holds an unfinished run; add --resume"):
        train(recipe, run.folder, cpu=True)
    interrupt(monkeypatch, 1, recipe, run.folder, resume=True)
    assert read_state(run.preparation)["step"] == 5
    result = go_on(recipe, run.folder)
    a, b = load_file(run.weights), load_file(Run(whole).weights)
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert not run.preparation.exists()
    expected = Run(whole).result()
    assert expected is not None
    assert result["learned_sizes"] == expected["learned_sizes"]


@pytest.mark.parametrize("pressed", [3, 9])  # before and after the canonicalizers begin to learn, in step 8 of 15
def test_canonicalizers_that_begin_later_need_no_gradient_before(
    pressed: int, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    method = dataclasses.replace(SIZES, along=1.0)
    recipe, run, whole = tiny(digits, method), Run(tmp_path / "run"), tmp_path / "whole"
    recipe = dataclasses.replace(recipe, optimization=dataclasses.replace(recipe.optimization, canonicalizer_start=0.5))
    one_step, states = Loop.one_step, {}

    def look(loop: Loop, number: int, *batch: Any) -> Any:
        found = one_step(loop, number, *batch)
        network = loop.model.size_canonicalizer().network
        states[number] = (network.head.weight.detach().clone(), network.head.weight.grad is not None)
        if number == pressed and not run.result_file.exists() and run.folder.exists():
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(Loop, "one_step", look)
    train(recipe, whole, cpu=True)
    weights, learns = zip(*(states[number] for number in range(EPOCHS * STEPS)), strict=True)
    assert learns == (False,) * 8 + (True,) * 7
    assert all(torch.equal(weights[0], each) for each in weights[:8])
    assert not torch.equal(weights[0], weights[-1])
    with pytest.raises(KeyboardInterrupt):
        train(recipe, run.folder, cpu=True)
    monkeypatch.setattr(Loop, "one_step", one_step)
    go_on(recipe, run.folder)
    assert_same_run(run.folder, Run(whole).folder)
    assert "received no gradient" not in caplog.text


def test_sizes_that_were_learned_before_a_kill_have_the_same_error(digits: Path, tmp_path: Path):
    recipe, run = tiny(digits, SIZES, epochs=1, train_count=16), Run(tmp_path / "run")
    expected = train(recipe, tmp_path / "whole", cpu=True)["learned_sizes"]
    assert killed(recipe, run.folder, die_while_saving, 2)  # the first file holds what is learned
    assert (run.preparation.exists(), run.checkpoint.exists()) == (True, False)
    assert go_on(recipe, run.folder)["learned_sizes"] == expected


def test_sizes_are_learned_once(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe, run = tiny(digits, SIZES, epochs=1, train_count=16), Run(tmp_path / "run")
    assert killed(recipe, run.folder, die_at_step, 1, checkpoint_seconds=3600)
    assert read_state(run.checkpoint)["position"]["step"] == 0
    monkeypatch.setattr(Loop, "prepare", None)
    result = go_on(recipe, run.folder)
    assert result["learned_sizes"]["steps"] == 7
    assert result["seconds"]["preparation"] > 0


def test_killed_at_every_kind_of_moment(whole: Path, digits: Path, tmp_path: Path):
    recipe, run = recipe_of(digits, "plain"), Run(tmp_path / "run")
    assert killed(recipe, run.folder, die_at_step, 2)
    assert (run.recipe_file.exists(), run.log.exists(), run.checkpoint.exists()) == (True, False, False)
    assert killed(recipe, run.folder, die_while_saving, 1)
    assert (run.log.exists(), run.checkpoint.exists()) == (True, False), "half a checkpoint is none"
    assert killed(recipe, run.folder, die_at_step, STEPS + 2)
    kept = run.checkpoint.read_bytes()
    assert killed(recipe, run.folder, die_while_saving, 1)
    assert run.checkpoint.read_bytes() == kept, "the old one stays until the new one is whole"
    assert len(log_of(run.folder)) == 2, "an epoch ahead of the checkpoint"
    assert killed(recipe, run.folder, die_while_evaluating)
    assert run.checkpoint.exists()
    assert killed(recipe, run.folder, die_before_the_result)
    assert run.weights.exists()
    assert run.result() is None
    go_on(recipe, run.folder)
    assert_same_run(run.folder, whole)
    assert list(run.folder.glob(".*.part")) == [], "no drafts are left"


@pytest.mark.slow
def test_killed_with_canonicalizers(digits: Path, tmp_path: Path):
    train(recipe_of(digits, "dec"), tmp_path / "whole", cpu=True)
    recipe, run = recipe_of(digits, "dec"), Run(tmp_path / "run")
    assert killed(recipe, run.folder, die_while_saving, 2)
    assert killed(recipe, run.folder, die_at_step, 2 * STEPS + 1)
    assert killed(recipe, run.folder, die_while_evaluating)
    go_on(recipe, run.folder)
    assert_same_run(run.folder, tmp_path / "whole")
    assert log_of(run.folder)[-1]["input/displacement"] > 0


@pytest.mark.slow
def test_killed_from_outside_at_any_time(whole: Path, digits: Path, tmp_path: Path):
    recipe, run = recipe_of(digits, "plain"), Run(tmp_path / "run")
    for epochs in (0, 1, 2):
        process = start(train_and, recipe, run.folder, slowly, 0.06)
        wait_for(lambda: run.recipe_file.exists() and (not epochs or len(log_lines(run)) >= epochs))  # noqa: B023
        process.kill()
        process.join()
        assert run.result() is None
    go_on(recipe, run.folder)
    assert_same_run(run.folder, whole)


def log_lines(run: Run) -> list[str]:
    return run.log.read_text().splitlines() if run.log.exists() else []


def test_without_a_checkpoint_it_begins_again(whole: Path, digits: Path, tmp_path: Path):
    """Epochs that were logged after the last checkpoint are logged again."""
    recipe, run = recipe_of(digits, "plain"), Run(tmp_path / "run")
    assert killed(recipe, run.folder, die_at_step, 2 * STEPS + 1, checkpoint_seconds=3600)
    assert (len(log_of(run.folder)), run.checkpoint.exists()) == (2, False)
    go_on(recipe, run.folder)
    assert_same_run(run.folder, whole)


def test_nothing_is_left_when_it_is_done(whole: Path):
    names = {"log.jsonl", "outcomes.safetensors", "recipe.json", "result.json", "weights.safetensors"}
    assert {path.name for path in whole.iterdir()} == names


def test_a_run_that_was_killed_after_its_result_leaves_nothing_either(whole: Path, digits: Path, tmp_path: Path):
    run = Run(shutil.copytree(whole, tmp_path / "run"))
    run.checkpoint.touch()  # removed after the result is written
    go_on(recipe_of(digits, "plain"), run.folder)
    assert not run.checkpoint.exists()


# Folders that are finished, in use, or not a run


def test_a_finished_run_returns_its_result(whole: Path, digits: Path):
    run = Run(whole)
    before = {path.name: path.stat().st_mtime_ns for path in run.folder.iterdir()}
    assert go_on(recipe_of(digits, "plain"), run.folder) == run.result()
    assert {path.name: path.stat().st_mtime_ns for path in run.folder.iterdir()} == before
    with pytest.raises(OutputError, match=r"the run in .* is finished; choose another folder with --out to repeat it"):
        train(recipe_of(digits, "plain"), run.folder, cpu=True)


def test_a_folder_in_use_is_left_alone_until_its_process_ends(whole: Path, digits: Path, tmp_path: Path):
    recipe, run = recipe_of(digits, "plain"), Run(tmp_path / "run")
    process = start(train_and, recipe, run.folder, slowly, 5)
    wait_for(run.recipe_file.exists)
    message = r"another process is training in .*/run; wait for it, or choose another folder with --out"
    with pytest.raises(OutputError, match=message):
        go_on(recipe, run.folder)
    process.kill()
    process.join()
    go_on(recipe, run.folder)
    assert_same_run(run.folder, whole)


@pytest.fixture
def unfinished(digits: Path, tmp_path: Path) -> Run:
    run = Run(tmp_path / "unfinished")
    with run.locked():
        run.claim(recipe_of(digits, "plain"), resume=False)
    run.log.write_text('{"epoch": 1, "seconds": 0.1}\n')
    return run


def test_an_unfinished_run_is_taken_up_only_when_asked_to(unfinished: Run, digits: Path):
    with pytest.raises(OutputError, match=r"holds an unfinished run; add --resume to continue"):
        train(recipe_of(digits, "plain"), unfinished.folder, cpu=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.5}, r"\(optimization.learning_rate was 0.001 and is now 0.5\)"),
        ({"seed": 3}, r"\(seed was 0 and is now 3\)"),
        (
            {"method": "dec"},
            r"\(method.kind was \"FineTune\" and is now \"DEC\"; method.config was null and is now \{",
        ),
        ({"start": Path("runs/a")}, r"\(start was null and is now \"runs/a\"\)"),
    ],
)
def test_other_settings_are_named(changes: dict[str, Any], message: str, unfinished: Run, digits: Path):
    recipe = tiny(digits, changes.pop("method", "plain"), regularization=CHANCE, **changes)
    with pytest.raises(CheckpointError, match=rf"holds a run with other settings {message}"):
        go_on(recipe, unfinished.folder)


def test_a_folder_with_something_else_is_refused(digits: Path, tmp_path: Path):
    (tmp_path / ".DS_Store").touch()
    Run(tmp_path).claim(recipe_of(digits, "plain"), resume=False)  # hidden files do not matter
    Run(tmp_path).recipe_file.unlink()
    (tmp_path / "thesis.tex").touch()
    for resume in (True, False):
        with pytest.raises(OutputError, match=r"holds thesis.tex and no recipe.json; choose a new or empty folder"):
            train(recipe_of(digits, "plain"), tmp_path, resume=resume, cpu=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".DS_Store", "thesis.tex"]


def test_a_folder_that_cannot_be_made_is_reported(digits: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(OutputError, match=rf"{folder} (is a file|cannot be created)"):
            train(recipe_of(digits, "plain"), folder, cpu=True)


def test_a_broken_checkpoint_is_reported(digits: Path, tmp_path: Path):
    recipe, run = recipe_of(digits, "plain"), Run(tmp_path / "run")
    assert killed(recipe, run.folder, die_while_evaluating)
    os.truncate(run.checkpoint, 1000)
    with pytest.raises(CheckpointError, match=r"checkpoint.safetensors cannot be read .*; was it copied whole\?"):
        go_on(recipe, run.folder)


def test_the_suggested_batch_size_works(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    recipe = tiny(digits, epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(MNISTTask, "images", full)
        with pytest.raises(TrainingError, match="try --batch-size 4"):
            train(recipe, tmp_path / "run", cpu=True)
    smaller = dataclasses.replace(recipe.optimization, batch_size=4)
    assert go_on(dataclasses.replace(recipe, optimization=smaller), tmp_path / "run")
