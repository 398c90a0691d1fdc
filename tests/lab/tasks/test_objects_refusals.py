"""Methods that need masks are refused for classification, and the other way round."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tiny_objects import COMPOSE, DIRECT, tiny

from localscale.canonicalizer import DECConfig
from localscale.errors import ConfigError
from localscale.lab.methods import DEC, AugL, Canon, FineTune, InvL
from localscale.lab.methods.method import Method
from localscale.lab.recipes import Recipe
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.tasks.mnist import MNISTData

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
    "method", [FineTune(), AugL(), Canon(mode="equivariant"), DEC(DECConfig.paper(mode="equivariant")), DIRECT, COMPOSE]
)
def test_methods_for_masks(method: Method):
    masks(method=method).check()
    method.check_answers(dense=True)


@pytest.mark.parametrize(
    "method", [FineTune(), InvL(), Canon(), DEC(), DEC(DECConfig.paper(sites=("blocks.0",), mode="equivariant"))]
)
def test_methods_for_one_class(method: Method):
    """A classifier may use the equivariant mode at a feature, but not at the input."""
    one_class(method=method).check()
    method.check_answers(dense=False)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (InvL(), "use AugL"),
        (Canon(), MASKS),
        (DEC(), MASKS),
        (DEC(DECConfig.paper(sites=("backbone.blocks.0",))), MASKS),
    ],
)
def test_methods_that_are_not_for_masks(method: Method, message: str):
    assert message in refused(masks(method=method))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (AugL(), "use InvL"),
        (Canon(mode="equivariant"), ONE),
        (DEC(DECConfig.paper(mode="equivariant")), ONE),
        (DEC(DECConfig.paper(sites=("input", "blocks.0"), mode="equivariant")), ONE),
    ],
)
def test_methods_that_are_for_masks_alone(method: Method, message: str):
    assert message in refused(one_class(method=method))


def test_a_head_that_segments_has_its_own_norms():
    assert "--head-norm is for classifiers" in refused(masks(head_norm=True))


@pytest.mark.parametrize("name", ["mixup", "cutmix", "random_erasing"])
def test_images_with_masks_are_not_mixed(name: str):
    assert "set them to 0" in refused(masks(regularization=Regularization(**{name: 0.2})))
    one_class(regularization=Regularization(**{name: 0.2})).check()
    masks(regularization=Regularization(label_smoothing=0.1, drop_path=0.1)).check()


def test_a_head_without_width():
    assert refused(masks(head_width=0)) == "--head-width is 0; expected at least 1"
