"""Every row of the tables: that it can be run as its docstring says, with the settings of the paper's App. A1."""

import dataclasses
import json
import re
from typing import Any

import pytest

from localscale.errors import ConfigError
from localscale.lab.backbones.catalogue import BACKBONES
from localscale.lab.methods import DEC, AugL, Canon, FineTune, InvL
from localscale.lab.recipes import RECIPES, ROWS, Recipe, find_recipe
from localscale.lab.recipes.imagenet import KINDS as IMAGENET
from localscale.lab.recipes.mnist import KINDS as MNIST
from localscale.lab.recipes.objects import KINDS as OBJECTS
from localscale.lab.recipes.recipe import from_dict, to_dict
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.tasks.objects import ObjectsData

KINDS = {"mnist": MNIST, "imagenet": IMAGENET, "objects": OBJECTS}
DATA = {"mnist": MNISTData, "imagenet": ImageNetData, "objects": ObjectsData}
TABLE = [(task, row) for task, rows in ROWS.items() for row in rows]
every_row = pytest.mark.parametrize(("task", "row"), TABLE)


def recipes(task: str, row: str) -> dict[str, Recipe]:
    return {backbone: RECIPES[f"{task}-{backbone}-{row}"] for backbone in BACKBONES}


def test_the_list_is_every_row_for_every_backbone():
    assert set(RECIPES) == {f"{task}-{backbone}-{row}" for task, row in TABLE for backbone in BACKBONES}
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    paper = {"aug", "aug_plus", "canon", "invl", "optim", "dec"}
    assert paper <= set(MNIST)
    assert paper - {"aug_plus"} | {"base"} <= set(IMAGENET)
    assert {"aug", "aug_plus", "canon", "augl", "dec"} <= set(OBJECTS)


@every_row
def test_recipes_check(task: str, row: str):
    for backbone, recipe in recipes(task, row).items():
        recipe.check()
        assert recipe.backbone == BACKBONES[backbone].timm_name
        assert isinstance(recipe.data, DATA[task])
        if isinstance(recipe.method, DEC):
            inside = "backbone." if task == "objects" else ""
            assert set(recipe.method.sites) <= {"input", *(inside + site for site in BACKBONES[backbone].sites)}


@every_row
def test_recipes_come_back_from_their_file(task: str, row: str):
    for recipe in recipes(task, row).values():
        written = to_dict(recipe)
        found = from_dict(json.loads(json.dumps(written)))
        assert to_dict(found) == written
        for field in dataclasses.fields(Recipe):
            assert getattr(found, field.name) == getattr(recipe, field.name)


@every_row
def test_docstrings_say_how_to_run_them(task: str, row: str):
    kind = KINDS[task][row]
    told = re.search(r"^ *localscale train (\S+)(.*)$", kind.__doc__ or "", re.MULTILINE)
    assert told, f"{kind.__name__} has no launch line"
    recipe = find_recipe(told[1])
    assert type(recipe) is kind
    assert told[1].endswith(f"-{row}")
    start = re.search(r"--start runs/(\S+)/seed0", told[2])
    assert (start[1] if start else "") == recipe.needs_start
    assert ("--data.train-root" in told[2]) == (task != "mnist")


@every_row
def test_recipes_that_start_from_another_name_one_that_can_be_trained(task: str, row: str):
    for backbone, recipe in recipes(task, row).items():
        if recipe.needs_start:
            first = find_recipe(recipe.needs_start)
            assert first.backbone == recipe.backbone
            assert not first.needs_start
            assert first.name == f"{task}-{backbone}-{'base' if task == 'imagenet' else 'aug'}"


# App. A1


RATES = {"resnet": 1e-4, "vit": 1e-4, "deit": 1e-4, "beit": 1e-4, "dinov2": 2e-5, "swin": 8e-4}


@pytest.mark.parametrize("row", MNIST)
def test_mnist_is_trained_as_in_the_paper(row: str):
    for backbone, recipe in recipes("mnist", row).items():
        assert recipe.head_norm == BACKBONES[backbone].from_scratch
        epochs = 40 if recipe.needs_start else 90 if row.endswith(("_joint", "_long")) else 50
        assert recipe.optimization.epochs == epochs
        family = backbone.partition("_")[0].rstrip("0123456789") if "dinov2" not in backbone else "dinov2"
        if family in RATES:
            assert recipe.optimization.learning_rate == RATES[family]
        assert (recipe.data.train_count, recipe.data.test_count, recipe.data.image_size) == (6_000, 50_000, 224)
        assert recipe.augmentation.probability == (0 if row == "base" else 1)


@pytest.mark.parametrize("row", IMAGENET)
def test_imagenet_is_trained_as_in_the_paper(row: str):
    for recipe in recipes("imagenet", row).values():
        settings, regularization = recipe.optimization, recipe.regularization
        assert settings.epochs == (40 if row.endswith("_joint") else 20)
        assert (settings.batch_size, settings.learning_rate, settings.warmup_epochs) == (80, 1e-7, 5)
        assert (settings.schedule, settings.weight_decay, settings.layer_decay) == ("cosine", 0.05, 0.75)
        assert (regularization.mixup, regularization.label_smoothing, regularization.random_erasing) == (0.8, 0.1, 0.25)
        assert recipe.augmentation.probability == (0 if row in ("base", "base_plus") else 0.5)


@pytest.mark.parametrize("row", OBJECTS)
def test_objects_are_learned_as_in_the_paper(row: str):
    for recipe in recipes("objects", row).values():
        settings = recipe.optimization
        more = bool(recipe.needs_start)
        assert settings.epochs == (60 if more else 180 if row.endswith(("_joint", "_long")) else 120)
        assert settings.learning_rate == (2e-5 if more else 1e-4)
        assert (settings.schedule, settings.decay_rate, settings.decay_epochs) == ("step", 0.7, 30)
        assert (recipe.data.background_weight, recipe.data.image_size, recipe.head_width) == (0.1, 256, 256)
        if isinstance(recipe.method, DEC | Canon):
            assert recipe.method.mode == "equivariant"


def test_the_methods_of_objects_are_the_papers():
    methods = {row: RECIPES[f"objects-deit_tiny-{row}"].method for row in OBJECTS}
    assert {row for row, method in methods.items() if type(method) is FineTune} == {"aug", "aug_plus", "aug_long"}
    assert methods["canon"].configurations == 64
    assert type(methods["augl"]) is AugL
    assert methods["dec"].sites == ("input", "backbone.blocks.0")
    assert methods["dec_compose"].supervision == 1


@pytest.mark.parametrize("task", ["mnist", "imagenet"])
def test_methods_are_the_papers(task: str):
    assert type(RECIPES[f"{task}-deit_tiny-aug"].method) is FineTune
    canon = RECIPES[f"{task}-deit_tiny-canon"].method
    assert isinstance(canon, Canon)
    assert canon.configurations == {"mnist": 64, "imagenet": 25}[task]
    invariance = RECIPES[f"{task}-deit_tiny-invl"].method
    assert isinstance(invariance, InvL)
    assert invariance.divergence == "squared"
    dec, optim = RECIPES[f"{task}-deit_tiny-dec"].method, RECIPES[f"{task}-deit_tiny-optim"].method
    assert isinstance(dec, DEC)
    assert isinstance(optim, DEC)
    assert (dec.update, dec.channels, dec.sites) == ("direct", (64, 128), ("input", "blocks.0"))
    assert (dec.supervision, dec.prior, dec.gradient) == (0, 0, "implicit")
    assert (optim.update, optim.gradient) == ("gradient", "unrolled")


def test_every_control_has_the_budget_of_what_it_controls():
    def epochs(name: str) -> int:
        recipe = find_recipe(name)
        return recipe.optimization.epochs + (epochs(recipe.needs_start) if recipe.needs_start else 0)

    totals = {row: epochs(f"mnist-vit_tiny-{row}") for row in MNIST}
    assert {row for row, total in totals.items() if total != 90} == {"base", "aug"}
    totals = {row: epochs(f"objects-vit_tiny-{row}") for row in OBJECTS}
    assert {row for row, total in totals.items() if total != 180} == {"aug"}
    totals = {row: epochs(f"imagenet-vit_tiny-{row}") for row in IMAGENET}
    assert {row for row, total in totals.items() if total != 40} == {"base"}


# What is refused


def changed(path: str, value: Any) -> dict[str, Any]:
    values: Any = to_dict(find_recipe("mnist-deit_tiny-dec_compose"))
    *parents, last = path.split(".")
    part = values
    for name in parents:
        part = part[name]
    part[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("kind", "Recipy", "the recipe is of kind 'Recipy': did you mean Recipe?"),
        ("method.kind", "Dec", "method is of kind 'Dec': known: FineTune, Canon, InvL, AugL, DEC"),
        ("method.kind", "Canonn", "method is of kind 'Canonn': did you mean Canon?"),
        ("method", {"sites": ["input"]}, "method is of kind None: "),
        ("method", "DEC", "method is of kind 'str': "),
        ("data.kind", "MNIST", "data is of kind 'MNIST': did you mean MNISTData?"),
        ("batch_sise", 1, "the recipe has no field 'batch_sise': "),
        ("optimization.batch_sise", 1, "optimization has no field 'batch_sise': did you mean batch_size?"),
        ("method.supervised_scaling.knot", 1, "supervised_scaling has no field 'knot': did you mean knots?"),
    ],
)
def test_files_with_something_unknown_are_refused(path: str, value: Any, told: str):
    with pytest.raises(ConfigError, match=re.escape(told)):
        from_dict(changed(path, value))


def test_paths_and_tuples_come_back_as_such():
    recipe = from_dict(changed("data.root", "somewhere"))
    assert str(recipe.data.root) == "somewhere"
    assert recipe.data.root.name == "somewhere"
    assert isinstance(recipe.method.sites, tuple)
    assert recipe.start is None


def test_unknown_recipes_are_told_their_neighbours():
    with pytest.raises(ConfigError, match="no recipe 'mnist-deit_tinny-dec': did you mean mnist-deit_tiny-dec, "):
        find_recipe("mnist-deit_tinny-dec")
    with pytest.raises(ConfigError, match=rf"\({len(RECIPES)} in all\); localscale recipes lists all"):
        find_recipe("resnext")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_skipped": -1}, "max_skipped is -1; expected 0 or more"),
        ({"regularization.drop_path": 1.0}, "drop_path is 1.0; expected 0 to less than 1"),
        ({"regularization.mixup": -0.1}, "mixup is -0.1 and cutmix 0.0; expected 0 or more"),
        ({"method.configurations": 24}, "24 configurations are not a square"),
        ({"augmentation.strength": -1.0}, "the augmentation's strength is -1.0"),
        ({"optimization.epochs": 0}, "epochs is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], told: str):
    recipe = find_recipe("mnist-deit_tiny-canon")
    for path, value in changes.items():
        part, _, name = path.rpartition(".")
        fresh = {part: dataclasses.replace(getattr(recipe, part), **{name: value})} if part else {name: value}
        recipe = dataclasses.replace(recipe, **fresh)
    with pytest.raises(ConfigError, match=re.escape(told)):
        recipe.check()
