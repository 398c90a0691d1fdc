"""Every recipe: its settings are those of the paper's App. A1, and it survives its JSON file."""

import dataclasses
import json
import re
from typing import Any

import pytest

from localscale.canonicalizer import DECConfig, Descent, Direct
from localscale.equilibrium import Anderson, Implicit, Unrolled
from localscale.errors import ConfigError
from localscale.lab.backbones.catalogue import BACKBONES
from localscale.lab.methods import DEC, AugL, FineTune, InvL
from localscale.lab.recipes import PROTOCOLS, Recipe, find_recipe, recipe_names
from localscale.lab.recipes.changes import flags_between, with_changes
from localscale.lab.recipes.listing import overview
from localscale.lab.recipes.recipe import from_dict, to_dict
from localscale.lab.tasks import TASKS

ROWS = [(task, row) for task, protocol in PROTOCOLS.items() for row in protocol.rows]
every_row = pytest.mark.parametrize(("task", "row"), ROWS)


def recipes(task: str, row: str) -> dict[str, Recipe]:
    return {backbone: find_recipe(f"{task}-{backbone}-{row}") for backbone in BACKBONES}


def test_names_are_every_row_for_every_backbone():
    names = list(recipe_names())
    assert len(names) == len(set(names)) == len(ROWS) * len(BACKBONES)
    paper = {"aug", "aug_plus", "canon", "invl", "optim", "dec"}
    assert paper <= set(PROTOCOLS["mnist"].rows)
    assert paper - {"aug_plus"} | {"base"} <= set(PROTOCOLS["imagenet"].rows)
    assert {"aug", "aug_plus", "canon", "augl", "dec"} <= set(PROTOCOLS["objects"].rows)


@every_row
def test_recipes_are_valid_and_survive_their_file(task: str, row: str):
    for backbone, recipe in recipes(task, row).items():
        recipe.check()
        assert recipe.name == f"{task}-{backbone}-{row}"
        assert recipe.backbone == BACKBONES[backbone].timm_name
        assert isinstance(recipe.data, TASKS[task])
        if isinstance(recipe.method, DEC):
            inside = "backbone." if task == "objects" else ""
            assert set(recipe.method.config.sites) <= {"input", *(inside + site for site in BACKBONES[backbone].sites)}
        assert from_dict(json.loads(json.dumps(to_dict(recipe)))) == recipe


@every_row
def test_rows_start_from_one_that_starts_from_pretrained_weights(task: str, row: str):
    recipe = find_recipe(f"{task}-vit_tiny-{row}")
    if recipe.needs_start:
        assert recipe.needs_start == f"{task}-vit_tiny-{'base' if task == 'imagenet' else 'aug'}"
        assert not find_recipe(recipe.needs_start).needs_start


def test_controls_have_the_budget_of_the_rows_they_control():
    def epochs(name: str) -> int:
        recipe = find_recipe(name)
        return recipe.optimization.epochs + (epochs(recipe.needs_start) if recipe.needs_start else 0)

    totals = {(task, row): epochs(f"{task}-vit_tiny-{row}") for task, row in ROWS}
    wanted = {"mnist": 90, "imagenet": 40, "objects": 180}
    assert {cell for cell, total in totals.items() if total != wanted[cell[0]]} == {
        *(("mnist", "base"), ("mnist", "aug"), ("imagenet", "base"), ("objects", "aug"))
    }


# App. A1


RATES = {"resnet": 1e-4, "vit": 1e-4, "deit": 1e-4, "beit": 1e-4, "dinov2": 2e-5, "swin": 8e-4}


@pytest.mark.parametrize("row", PROTOCOLS["mnist"].rows)
def test_mnist_is_trained_as_in_the_paper(row: str):
    for backbone, recipe in recipes("mnist", row).items():
        data: Any = recipe.data
        assert recipe.head_norm == BACKBONES[backbone].from_scratch
        assert recipe.optimization.epochs == {"first": 50, "more": 40, "both": 90}[PROTOCOLS["mnist"].rows[row].budget]
        family = backbone.partition("_")[0].rstrip("0123456789") if "dinov2" not in backbone else "dinov2"
        if family in RATES:
            assert recipe.optimization.learning_rate == RATES[family]
        assert (data.train_count, data.test_count, data.image_size) == (6_000, 50_000, 224)
        assert recipe.augmentation.probability == (0 if row == "base" else 1)


@pytest.mark.parametrize("row", PROTOCOLS["imagenet"].rows)
def test_imagenet_is_trained_as_in_the_paper(row: str):
    recipe = find_recipe(f"imagenet-deit_tiny-{row}")
    settings, regularization = recipe.optimization, recipe.regularization
    assert settings.epochs == (40 if "joint" in row else 20)
    assert (settings.batch_size, settings.learning_rate, settings.warmup_epochs) == (80, 1e-7, 5)
    assert (settings.schedule, settings.weight_decay, settings.layer_decay) == ("cosine", 0.05, 0.75)
    assert (regularization.mixup, regularization.label_smoothing, regularization.random_erasing) == (0.8, 0.1, 0.25)
    assert recipe.augmentation.probability == (0 if row in ("base", "base_plus") else 0.5)


@pytest.mark.parametrize("row", PROTOCOLS["objects"].rows)
def test_objects_are_trained_as_in_the_paper(row: str):
    recipe: Any = find_recipe(f"objects-deit_tiny-{row}")
    settings, more = recipe.optimization, bool(recipe.needs_start)
    assert settings.epochs == (60 if more else 120 if row == "aug" else 180)
    assert settings.learning_rate == (2e-5 if more else 1e-4)
    assert (settings.schedule, settings.decay_rate, settings.decay_epochs) == ("step", 0.7, 30)
    assert (recipe.data.background_weight, recipe.data.image_size, recipe.head_width) == (0.1, 256, 256)
    if isinstance(recipe.method, DEC):
        assert recipe.method.config.mode == "equivariant"


def test_methods_are_those_of_the_paper():
    methods: Any = {(task, row): find_recipe(f"{task}-deit_tiny-{row}").method for task, row in ROWS}
    plain = {row for (_, row), method in methods.items() if type(method) is FineTune}
    assert plain == {"base", "base_plus", "aug", "aug_plus", "aug_long"}
    assert [methods[task, "canon"].configurations for task in PROTOCOLS] == [64, 25, 64]
    assert type(methods["objects", "augl"]) is AugL
    for task in ("mnist", "imagenet"):
        assert type(methods[task, "invl"]) is InvL
        assert methods[task, "invl"].divergence == "squared"
        assert (methods[task, "dec"].supervision, methods[task, "dec"].prior) == (0, 0)
        dec, optim = methods[task, "dec"].config, methods[task, "optim"].config
        assert (dec.update, dec.network.channels) == (Direct(), (64, 128))
        assert dec.sites == ("input", "blocks.0", "blocks.4", "blocks.8")
        assert type(dec.solver) is Anderson
        assert dec.gradient == Implicit()
        assert (optim.update, optim.gradient) == (Descent(), Unrolled())
    assert methods["objects", "dec"].config.sites == ("input", *(f"backbone.blocks.{n}" for n in (0, 4, 8)))
    assert methods["objects", "dec_compose"].supervision == 1
    assert methods["objects", "canon"].mode == "equivariant"


def test_the_canonicalizers_rate_is_not_changed_by_the_learning_rate():
    recipe = with_changes(find_recipe("mnist-deit_tiny-dec"), {"optimization": {"learning_rate": 5e-4}})
    assert (recipe.optimization.learning_rate, recipe.optimization.canonicalizer_rate) == (5e-4, 1e-3)


# Listing and changes


def test_the_overview_fits_one_screen_and_names_everything():
    lines = overview().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 110
    assert all(re.search(rf"\b{word}\b", overview()) for word in (*PROTOCOLS, *BACKBONES, *(row for _, row in ROWS)))


def test_differences_become_flags():
    before = find_recipe("mnist-deit_tiny-dec")
    changes = {
        "head_norm": True,
        "method": {"config": {"network": {"resolution": None}}},
        "optimization": {"epochs": 3},
    }
    flags = flags_between(before, with_changes(before, changes))
    assert flags == [*("--method.config.network.resolution", "None", "--epochs", "3"), "--head-norm"]
    with pytest.raises(ConfigError, match="Optimization has no field 'epoch': did you mean epochs"):
        with_changes(before, {"optimization": {"epoch": 3}})


# Refusals


def changed(path: str, value: Any) -> dict[str, Any]:
    values: Any = to_dict(find_recipe("mnist-deit_tiny-dec_compose"))
    *parents, last = path.split(".")
    part = values
    for name in parents:
        part = part[name]
    part[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", 1, "the recipe has format 1, and this version"),
        ("kind", "Recipy", "the recipe is of kind 'Recipy': did you mean Recipe?"),
        ("method.kind", "Dec", "method is of kind 'Dec': known: FineTune, Canon, InvL, AugL, DEC"),
        ("method", {"sites": ["input"]}, "method is of kind None: "),
        ("method", "DEC", "method is of kind 'str': "),
        ("data.kind", "MNIST", "data is of kind 'MNIST': did you mean MNISTData?"),
        ("batch_sise", 1, "the recipe has no field 'batch_sise': "),
        ("optimization.batch_sise", 1, "optimization has no field 'batch_sise': did you mean batch_size?"),
        ("method.config.knot", 1, "DECConfig has no field 'knot': did you mean knots?"),
        ("method.config.solver.kind", "pickard", "solver is 'pickard': did you mean picard?"),
        ("method.supervised_scaling.knot", 1, "supervised_scaling has no field 'knot': did you mean knots?"),
    ],
)
def test_files_with_something_unknown_are_refused(path: str, value: Any, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_dict(changed(path, value))


def test_unknown_recipes_name_the_near_misses():
    with pytest.raises(ConfigError, match="no recipe 'mnist-deit_tinny-dec': did you mean mnist-deit_tiny-dec, "):
        find_recipe("mnist-deit_tinny-dec")
    with pytest.raises(ConfigError, match="localscale recipes shows"):
        find_recipe("resnext")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_skipped": -1}, "max-skipped is -1; expected 0 or more"),
        ({"regularization": {"drop_path": 1.0}}, "is 1.0; expected 0 to less than 1"),
        ({"regularization": {"mixup": -0.1}}, "expected 0 or more"),
        ({"method": {"configurations": 24}}, "24 configurations are not a square"),
        ({"augmentation": {"strength": -1.0}}, "strength is -1.0"),
        ({"optimization": {"epochs": 0}}, "epochs is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        with_changes(find_recipe("mnist-deit_tiny-canon"), changes).check()


def test_recipes_are_values():
    recipe = find_recipe("mnist-deit_tiny-dec")
    assert recipe == find_recipe("mnist-deit_tiny-dec")
    assert type(recipe) is Recipe
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.seed = 1  # type: ignore[misc]


# Images larger than the backbone's input


def test_recipes_take_a_source_size():
    for name in ("imagenet-deit_tiny-dec", "imagenet-deit_tiny-base", "imagenet-deit_tiny-canon"):
        recipe = dataclasses.replace(find_recipe(name), source_size=448)
        recipe.check()
        assert recipe.loaded_data.image_size == 448
        assert from_dict(json.loads(json.dumps(to_dict(recipe)))) == recipe
    older = to_dict(find_recipe("mnist-deit_tiny-aug"))
    del older["source_size"]
    assert from_dict(older).source_size is None
    with pytest.raises(ConfigError, match="--source-size is 200"):
        dataclasses.replace(recipe, source_size=200).check()
    latent = DEC(DECConfig.paper(sites=("blocks.0",)))
    with pytest.raises(ConfigError, match=r"needs a canonicalizer at input, but the sites are blocks\.0"):
        dataclasses.replace(recipe, method=latent, source_size=448).check()
