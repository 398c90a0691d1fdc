"""Start from a finished run, load one, and evaluate one again."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_recipes import COMPOSE, tiny
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel
from localscale.checkpoints import write_weights
from localscale.errors import CheckpointError, ConfigError
from localscale.files import unseal
from localscale.lab.backbones.catalogue import create_backbone
from localscale.lab.methods import Canon, FineTune
from localscale.lab.methods.method import Method
from localscale.lab.recipes import Recipe, find_recipe
from localscale.lab.recipes.changes import with_changes
from localscale.lab.runs import Run, load_run
from localscale.lab.training import evaluate_run, train
from localscale.lab.training.runner import make_backbone

WITHIN = with_changes(COMPOSE, {"config": {"sites": ("input", "blocks.0"), "knots": (4, 3)}})


@pytest.fixture(scope="module")
def aug(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aug") / "run"
    train(tiny(digits, epochs=2), folder, cpu=True)
    return folder


@pytest.fixture(scope="module")
def dec(aug: Path, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dec") / "run"
    train(tiny(digits, WITHIN, epochs=2, start=aug), folder, cpu=True)
    return folder


@pytest.fixture
def copy(aug: Path, tmp_path: Path) -> Path:
    return shutil.copytree(aug, tmp_path / "copy")


def images() -> Tensor:
    return torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def answers(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(images())


def first_model(recipe: Recipe) -> nn.Module:
    """Return the model before its first step."""
    torch.manual_seed(recipe.seed)
    return recipe.build(make_backbone(recipe)[0])


def vit() -> nn.Module:
    return create_backbone("test_vit", classes=10, pretrained="none", image_size=64)


# The start weights


@pytest.mark.parametrize("method", [FineTune(), COMPOSE, Canon(configurations=4)])
def test_the_first_answers_are_those_of_the_start_run(method: Method, aug: Path, digits: Path):
    model = first_model(tiny(digits, method, start=aug))
    assert torch.equal(answers(model), answers(load_run(aug)))
    fresh = first_model(tiny(digits, method))
    assert not torch.equal(answers(model), answers(fresh))


def test_pretrained_weights_are_not_asked_for(aug: Path, digits: Path):
    recipe = tiny(digits, start=aug, pretrained="nowhere.safetensors")
    assert torch.equal(answers(first_model(recipe)), answers(load_run(aug)))


def test_a_run_with_canonicalizers_can_be_a_start(dec: Path, digits: Path):
    trained = load_run(dec)
    assert isinstance(trained, AdaptedModel)
    plain = first_model(tiny(digits, start=dec))
    assert {type(module) for module in plain.modules()} == {type(module) for module in vit().modules()}
    again = first_model(tiny(digits, WITHIN, start=dec))
    assert not torch.equal(answers(trained), answers(plain)), "the canonicalizers had learned something"
    assert torch.equal(answers(again), answers(plain)), "and are left behind"
    assert torch.equal(answers(plain), answers(trained.unwrap()))


def test_training_goes_on_from_there(aug: Path, dec: Path):
    before, after = ([line["task" if "task" in line else "loss"] for line in lines(folder)] for folder in (aug, dec))
    assert after[0] < before[0]
    assert Run(dec).recipe().start == aug


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Run(folder).log.read_text().splitlines()]


# Runs that cannot be started from


def refused(recipe: Recipe, folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        train(recipe, folder, cpu=True)
    return str(caught.value)


def test_another_backbones_run(aug: Path, digits: Path, tmp_path: Path):
    message = refused(tiny(digits, start=aug, backbone="test_vit2"), tmp_path / "out")
    assert message == f"{aug} trained test_vit, not test_vit2; start from a run of the same backbone"


def test_an_unfinished_run(copy: Path, digits: Path, tmp_path: Path):
    Run(copy).result_file.unlink()
    message = refused(tiny(digits, start=copy), tmp_path / "out")
    assert message == f"the run in {copy} is not finished; finish it with --resume first"


def test_no_run_at_all(digits: Path, tmp_path: Path):
    message = refused(tiny(digits, start=tmp_path / "gone"), tmp_path / "out")
    assert message.startswith(f"there is no recipe.json in {tmp_path / 'gone'}")


def test_a_run_with_other_classes(copy: Path, digits: Path, tmp_path: Path):
    write_weights(Run(copy).weights, vit(), {})
    message = refused(tiny(digits, start=copy), tmp_path / "out")
    assert "is of another model: size mismatch for head.weight" in message
    assert message.endswith("; this task has 1000 classes")


def test_a_run_with_images_of_another_size(aug: Path, digits: Path, tmp_path: Path):
    message = refused(tiny(digits, start=aug, image_size=96), tmp_path / "out")
    assert "64" in message
    assert "96" in message
    assert "classes" not in message


@pytest.mark.parametrize("normed", [True, False])
def test_a_run_with_another_head(aug: Path, normed: bool, digits: Path, tmp_path: Path):
    earlier = aug
    if not normed:
        earlier = tmp_path / "normed"
        train(tiny(digits, epochs=1, head_norm=True), earlier, cpu=True)
    message = refused(tiny(digits, start=earlier, head_norm=normed), tmp_path / "out")
    assert message.endswith("a norm before the classifier; add --" + ("no-head-norm" if normed else "head-norm"))


def test_a_run_with_a_norm_before_the_classifier_goes_on_and_is_loaded(digits: Path, tmp_path: Path):
    train(tiny(digits, epochs=1, head_norm=True), tmp_path / "first", cpu=True)
    recipe = tiny(digits, COMPOSE, epochs=1, start=tmp_path / "first", head_norm=True)
    first: Any = load_run(tmp_path / "first")
    assert isinstance(first.get_classifier()[0], nn.BatchNorm1d)
    assert first.get_classifier()[0].num_batches_tracked > 0, "it has seen the training images"
    torch.testing.assert_close(answers(first_model(recipe)), answers(first))
    train(recipe, tmp_path / "second", cpu=True)
    assert load_run(tmp_path / "second")(images()).shape == (4, 1000)


def test_a_run_whose_weights_are_gone(copy: Path, digits: Path, tmp_path: Path):
    Run(copy).weights.unlink()
    assert "there is no weights.safetensors in" in refused(tiny(digits, start=copy), tmp_path / "out")


def test_a_run_whose_recipe_is_broken(copy: Path, digits: Path, tmp_path: Path):
    Run(copy).recipe_file.write_text(Run(copy).recipe_file.read_text()[:50])
    message = refused(tiny(digits, start=copy), tmp_path / "out")
    assert "recipe.json cannot be read" in message
    assert message.endswith("was it copied whole?")
    (copy / "recipe.json").write_text('{"kind": "Recipe"}')
    assert "recipe.json cannot be read: the recipe has format 1" in refused(tiny(digits, start=copy), tmp_path / "out")


def test_a_recipe_that_needs_a_start_names_the_command(digits: Path, tmp_path: Path):
    recipe = dataclasses.replace(find_recipe("mnist-deit_tiny-dec"), seed=3, data=tiny(digits).data)
    with pytest.raises(ConfigError, match="then add --start runs/mnist-deit_tiny-aug/seed3"):
        train(recipe, tmp_path / "out", cpu=True)


def test_a_recipe_that_was_refused_leaves_the_folder_free(aug: Path, digits: Path, tmp_path: Path):
    refused(tiny(digits, start=tmp_path / "gone"), tmp_path / "out")
    assert train(tiny(digits, start=aug, epochs=1), tmp_path / "out", cpu=True)


# Loading and evaluating


@pytest.mark.parametrize("kind", ["aug", "dec"])
def test_a_run_measured_again_is_the_same(kind: str, digits: Path, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(kind)
    metrics = evaluate_run(folder, Run(folder).recipe(), cpu=True)
    result = Run(folder).result()
    assert result is not None
    assert metrics == result["metrics"]
    assert result["recipe"] == unseal(Run(folder).recipe_file.read_text())
    assert not load_run(folder).training


def test_a_run_measured_with_other_data(aug: Path, digits: Path):
    found = evaluate_run(aug, tiny(digits, test_count=4, variants=1, bracket_count=2), cpu=True)
    assert (found["images"], found["variants"], found["per_scale"]["images"]) == (4, 1, 2)


def test_unfinished_runs_cannot_be_loaded(copy: Path, tmp_path: Path):
    Run(copy).result_file.unlink()
    with pytest.raises(CheckpointError, match="is not finished; finish it with localscale train"):
        load_run(copy)
    with pytest.raises(CheckpointError, match=r"it has no recipe\.json"):
        load_run(str(tmp_path))


def test_a_run_measured_with_another_backbones_recipe_is_refused(aug: Path, digits: Path):
    with pytest.raises(CheckpointError, match="test_vit"):
        evaluate_run(aug, tiny(digits, backbone="deit_tiny_patch16_224"), cpu=True)
