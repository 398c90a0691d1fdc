"""Two processes with half a batch each train and evaluate as one process with the whole batch."""

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_imagenet import write_discs, write_scaled_discs
from tiny_processes import die_at_step, die_while_evaluating, together
from tiny_recipes import COMPOSE, STEPS, log_of, tiny

from localscale.canonicalizer import DECConfig, SizeNetwork
from localscale.equilibrium import Picard
from localscale.errors import TrainingError
from localscale.lab.methods import SizeEquilibrium
from localscale.lab.recipes import Recipe
from localscale.lab.runs import Run
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.tasks.mnist import MNISTTask
from localscale.lab.tasks.outcomes import Outcomes
from localscale.lab.training import runner, train

BY_TASK = dataclasses.replace(COMPOSE, supervision=0.0, prior=0.0)


def work(recipe: Recipe, folder: Path) -> None:
    result = train(recipe, folder, cpu=True)
    (folder.parent / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result["metrics"]))


def both(recipe: Recipe, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of one process and of two."""
    alone = train(recipe, folder / "one", cpu=True)
    together(work, recipe, folder / "two")
    shared = Run(folder / "two").result()
    assert shared is not None
    assert (alone["processes"], shared["processes"]) == (1, 2)
    for rank in (0, 1):
        assert json.loads((folder / f"rank{rank}.json").read_text()) == shared["metrics"]
    return alone, shared


def furthest(folder: Path) -> float:
    """Return the largest difference between the weights of both runs.

    Biases of keys and of raw parameters are left out: a softmax cancels them, so only rounding errors change them.
    """
    one, two = (load_file(Run(folder / name).weights) for name in ("one", "two"))
    assert set(one) == set(two)
    matter = [name for name in one if not name.endswith(("qkv.bias", "to_x.bias", "to_y.bias"))]
    return max(float((one[name] - two[name]).abs().max()) for name in matter)


def test_two_train_as_one(digits: Path, tmp_path: Path):
    recipe = tiny(digits, BY_TASK, bracket_count=4, epochs=2)
    alone, shared = both(recipe, tmp_path)
    one, two = alone["metrics"], shared["metrics"]
    assert one["accuracy"] == two["accuracy"]
    outcomes = [Outcomes.read(Run(tmp_path / name).outcomes) for name in ("one", "two")]
    assert torch.equal(outcomes[0].right, outcomes[1].right)
    torch.testing.assert_close(outcomes[0].invariance_error, outcomes[1].invariance_error, rtol=1e-3, atol=1e-6)
    assert one["per_scale"] == two["per_scale"]
    assert two["invariance_error"] == pytest.approx(one["invariance_error"], rel=3e-4)
    assert furthest(tmp_path) < 3e-4  # sums in another order, which Adam enlarges
    for a, b in zip(log_of(tmp_path / "one"), log_of(tmp_path / "two"), strict=True):
        assert b == pytest.approx(a, rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_two_are_supervised_nearly_as_one(digits: Path, tmp_path: Path):
    """Supervision and prior are not linear in the means over each process's images, so they are only nearly equal."""
    both(tiny(digits, COMPOSE, epochs=1), tmp_path)
    (one,), (two,) = log_of(tmp_path / "one"), log_of(tmp_path / "two")
    assert two["task"] == pytest.approx(one["task"], rel=1e-4)
    assert two["supervision"] == pytest.approx(one["supervision"], rel=0.02)


@pytest.mark.slow
def test_two_read_images_as_one(tmp_path: Path):
    pytest.importorskip("cv2", reason="needs the extra 'imagenet'")
    test = write_scaled_discs(tmp_path / "test")
    data = ImageNetData(
        train_root=write_discs(tmp_path / "train"), test_root=test, image_size=64, workers=0, least_area=0.9
    )
    recipe = tiny(tmp_path, pretrained="none", data=data, epochs=4, batch_size=4)
    alone, shared = both(recipe, tmp_path)
    one, two = alone["metrics"], shared["metrics"]
    assert (one["images"], alone["classes"]) == (6, 3)
    assert one["accuracy"] > 0
    assert one["per_scale"] == two["per_scale"]
    assert two["invariance_error"] == pytest.approx(one["invariance_error"], rel=1e-3)
    assert furthest(tmp_path) < 3e-4  # sums in another order, which Adam enlarges


def die_as(rank: int, at: str, recipe: Recipe, folder: Path) -> None:
    """Train until the process ``rank`` dies; the other writes the error that it ends with."""
    if int(os.environ["RANK"]) == rank:
        {"step": lambda: die_at_step(STEPS + 2), "evaluation": lambda: die_while_evaluating(None)}[at]()
    try:
        train(recipe, folder, cpu=True, checkpoint_seconds=0)
    except TrainingError as error:
        folder.with_suffix(".txt").write_text(str(error))
        raise SystemExit(1) from None


@pytest.mark.parametrize(("rank", "at"), [(0, "step"), (1, "step"), (1, "evaluation")])
def test_the_death_of_one_ends_the_other_and_loses_nothing(rank: int, at: str, digits: Path, tmp_path: Path):
    recipe, ends = tiny(digits, epochs=2), (-signal.SIGKILL, 1)
    together(die_as, rank, at, recipe, tmp_path / "run", ends=ends if rank == 0 else ends[::-1])
    told = (tmp_path / "run.txt").read_text()
    assert told.startswith(f"process {1 - rank} of 2 lost another process of this training")
    assert told.endswith("run the same command again with --resume, which goes on from the last checkpoint")
    assert "\n" not in told
    together(go_on, recipe, tmp_path / "run")
    together(go_on, recipe, tmp_path / "whole")
    one, two = (load_file(Run(tmp_path / name).weights) for name in ("run", "whole"))
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def go_on(recipe: Recipe, folder: Path) -> None:
    train(recipe, folder, cpu=True, resume=True)


def answer_one_question(recipe: Recipe, folder: Path) -> None:
    def evaluate(task: MNISTTask, predict: Any, *arguments: Any, **rest: Any) -> dict[str, Any]:
        with torch.no_grad():
            return {"answer": predict(torch.full((1, 3, 160, 160), 0.5))[0, :3].tolist()}

    MNISTTask.evaluate = evaluate  # type: ignore[method-assign]
    work(recipe, folder)


def test_all_processes_ask_the_same_model(digits: Path, tmp_path: Path):
    recipe = tiny(digits, backbone="test_resnet", pretrained="none", image_size=160, train_count=8, epochs=1)
    together(answer_one_question, recipe, tmp_path / "two")
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second


def learn_sizes_otherwise_in_each_process(recipe: Recipe, folder: Path) -> None:
    """Train, with other random numbers in each process; the metrics are the size network's weights."""
    rank, prepare = os.environ["RANK"], SizeEquilibrium.prepare

    def prepare_and_tell(self: SizeEquilibrium, model: Any, batches: Any, **settings: Any) -> dict[str, Any] | None:
        torch.manual_seed(int(rank))
        found = prepare(self, model, batches, **settings)
        (folder.parent / f"prepared{rank}").touch()
        return found

    def evaluate(model: Any, *arguments: Any, **rest: Any) -> dict[str, Any]:
        return {name: tensor.tolist() for name, tensor in model.canonicalizers["input"].state_dict().items()}

    SizeEquilibrium.prepare = prepare_and_tell  # type: ignore[method-assign]
    runner.evaluate = evaluate  # type: ignore[attr-defined]
    work(recipe, folder)


@pytest.mark.parametrize("along", [0.0, 1.0])
def test_sizes_are_learned_once_for_all_processes(along: float, digits: Path, tmp_path: Path):
    network = SizeNetwork(width=8, blocks=0)
    config = DECConfig(knots=4, update="compose", network=network, solver=Picard(2, 1e-3, fixed_steps=True))
    method = SizeEquilibrium(config, learning_steps=3, along=along)
    together(learn_sizes_otherwise_in_each_process, tiny(digits, method, epochs=1), tmp_path / "two")
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert any(first["network.head.bias"]), "something was learned"
    assert sorted(path.name for path in tmp_path.glob("prepared*")) == ["prepared0"]
