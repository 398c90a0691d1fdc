"""Settings that do not go with masks, and masks that do not go with settings."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tiny_objects import COMPOSE, DIRECT, tiny, write_both

from localscale.canonicalizer import DECConfig
from localscale.errors import ConfigError
from localscale.lab.methods import DEC, AugL, Canon, FineTune, InvL
from localscale.lab.methods.method import Method
from localscale.lab.recipes import Recipe, find_recipe
from localscale.lab.recipes.recipe import from_dict, to_dict
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.training import train

MASKS = "mode is invariant, but this task has a mask per image; use equivariant"
ONE = "mode is equivariant, but this task has one class per image; use invariant"


def masks(**changes: Any) -> Recipe:
    return tiny(Path("nowhere"), **changes)


def one_class(**changes: Any) -> Recipe:
    return dataclasses.replace(masks(), data=MNISTData(), **changes)


def refused(recipe: Recipe) -> str:
    with pytest.raises(ConfigError) as error:
        recipe.check()
    return str(error.value)


@pytest.mark.parametrize(
    "method", [FineTune(), AugL(), Canon(mode="equivariant"), DEC(DECConfig(mode="equivariant")), DIRECT, COMPOSE]
)
def test_methods_for_masks(method: Method):
    masks(method=method).check()
    method.check_answers(dense=True)


@pytest.mark.parametrize(
    "method", [FineTune(), InvL(), Canon(), DEC(), DEC(DECConfig(sites=("blocks.0",), mode="equivariant"))]
)
def test_methods_for_one_class(method: Method):
    """Features inside a classifier may be scaled back."""
    one_class(method=method).check()
    method.check_answers(dense=False)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (InvL(), "use AugL"),
        (Canon(), MASKS),
        (DEC(), MASKS),
        (DEC(DECConfig(sites=("backbone.blocks.0",))), MASKS),
    ],
)
def test_methods_that_are_not_for_masks(method: Method, told: str):
    assert told in refused(masks(method=method))


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (AugL(), "use InvL"),
        (Canon(mode="equivariant"), ONE),
        (DEC(DECConfig(mode="equivariant")), ONE),
        (DEC(DECConfig(sites=("input", "blocks.0"), mode="equivariant")), ONE),
    ],
)
def test_methods_that_are_for_masks_alone(method: Method, told: str):
    assert told in refused(one_class(method=method))


def test_a_head_that_segments_has_its_own_norms():
    assert "--head-norm is for classifiers" in refused(masks(head_norm=True))


@pytest.mark.parametrize("name", ["mixup", "cutmix", "random_erasing"])
def test_images_with_masks_are_not_mixed(name: str):
    assert "set them to 0" in refused(masks(regularization=Regularization(**{name: 0.2})))
    one_class(regularization=Regularization(**{name: 0.2})).check()
    masks(regularization=Regularization(label_smoothing=0.1, drop_path=0.1)).check()


def test_a_head_without_width():
    assert refused(masks(head_width=0)) == "--head-width is 0; expected at least 1"


def test_a_recipe_that_cannot_work_leaves_no_folder(tmp_path: Path):
    recipe = tiny(write_both(tmp_path), InvL())
    with pytest.raises(ConfigError, match="use AugL"):
        train(recipe, tmp_path / "run", cpu=True)
    assert not (tmp_path / "run").exists()


def test_more_images_in_a_batch_than_there_are(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--batch-size is 8 with 5 training images; .* try --batch-size 5"):
        train(tiny(write_both(tmp_path), train_limit=5), tmp_path / "run", cpu=True)


def test_a_recipe_without_its_start_names_the_command(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--start runs/objects-vit_tiny-aug/seed0"):
        train(find_recipe("objects-vit_tiny-canon"), tmp_path / "run", cpu=True)


def test_settings_of_masks_come_back_from_their_file():
    recipe = masks(method=AugL(weight=0.3), ignore_index=255, background_weight=0.2, head_width=7)
    assert from_dict(to_dict(recipe)) == recipe
