"""A task of a user's own: it trains, resumes and loads again, also in a program that was started anew."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tiny_recipes import BACKBONE, Noise

from localscale.errors import CheckpointError, ConfigError
from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.methods import FineTune
from localscale.lab.recipes import Recipe
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.runs import load_run, read_run
from localscale.lab.runs.groups import open_groups
from localscale.lab.tasks import TASKS, MNISTData, TaskData, register
from localscale.lab.training import train


@dataclass(frozen=True)
class NoiseData(TaskData):
    image_size: int = 32
    count: int = 8
    sides: tuple[int, ...] = (1, 2)
    folder: Path = Path("noise")

    def task(self, normalise: Normalise, batch_size: int) -> Noise:
        return Noise(self.count, self.image_size)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "noise", NoiseData)
    del TASKS["noise"]
    register("noise")(NoiseData)


def tiny_recipe(**changes) -> Recipe:
    optimization = Optimization(epochs=1, batch_size=4)
    recipe = Recipe("noise", BACKBONE, "none", data=NoiseData(), optimization=optimization, precision="no")
    return replace(recipe, **changes)


@pytest.mark.usefixtures("registered")
def test_it_trains_resumes_and_loads_again(tmp_path: Path):
    recipe, images = tiny_recipe(data=NoiseData(count=12)), torch.rand(2, 3, 32, 32)
    result = train(recipe, tmp_path, cpu=True)
    assert result["data"] == "noise"
    assert train(recipe, tmp_path, cpu=True, resume=True) == result
    assert read_run(tmp_path).recipe == recipe
    assert read_run(tmp_path).task == "noise"
    expected = load_run(tmp_path)(images)
    del TASKS["noise"]  # as in a program that was started anew
    with pytest.raises(CheckpointError, match=r"data is of kind 'NoiseData'.*; if it is your own, import the module"):
        load_run(tmp_path)
    register("noise")(NoiseData)
    assert torch.equal(load_run(tmp_path)(images), expected)


def test_the_recipe_names_a_class_and_no_module():
    from localscale.lab.recipes.recipe import to_dict

    assert NoiseData.__module__ not in json.dumps(to_dict(tiny_recipe()))


@pytest.mark.usefixtures("registered")
def test_commands_that_know_only_the_papers_data_say_so(tmp_path: Path):
    train(tiny_recipe(), tmp_path, cpu=True)
    run = read_run(tmp_path)
    with pytest.raises(ConfigError, match="the task noise has no images at several scales to show"):
        open_groups(run)
    with pytest.raises(ConfigError, match="NoiseData has no field test_root"):
        run.with_data(tmp_path)


def test_what_could_not_be_loaded_is_refused_before_it_trains(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"NoiseData is not registered, .* put @localscale\.lab\.tasks\.register"):
        train(tiny_recipe(), tmp_path, cpu=True)

    class Mine(FineTune):
        pass

    with pytest.raises(ConfigError, match="Mine is not registered, so the run could not be loaded again"):
        train(tiny_recipe(data=MNISTData(), method=Mine()), tmp_path, cpu=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("registered")
def test_only_frozen_dataclasses_of_a_new_name_are_registered():
    known = dict(TASKS)
    with pytest.raises(ConfigError, match="expected a frozen dataclass derived from TaskData"):
        register("list")(list)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="ChangingData can be changed"):
        register("changing")(dataclass(type("ChangingData", (TaskData,), {})))
    with pytest.raises(ConfigError, match=r"OpenData\.count has no default"):
        register("open")(dataclass(frozen=True)(type("OpenData", (TaskData,), {"__annotations__": {"count": int}})))
    other = dataclass(frozen=True)(type("NoiseData", (NoiseData,), {"__module__": "elsewhere"}))
    for name in ("noise", "loud"):
        with pytest.raises(ConfigError, match="is the task 'noise'; choose another name"):
            register(name)(other)
    with pytest.raises(ConfigError, match="is the task 'mnist'; choose another name"):
        register("mnist")(other)
    assert register("noise")(NoiseData) is NoiseData, "a cell of a notebook may run twice"
    assert known == TASKS
