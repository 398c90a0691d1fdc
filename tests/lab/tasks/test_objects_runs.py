"""Segmentation runs on discs whose colour is their class: every method learns, resumes and can be loaded."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_objects import CLASSES, METHODS, SIZE, tiny, write_both, write_objects
from tiny_processes import die_at_step, die_while_evaluating, die_while_saving, killed
from tiny_recipes import log_of
from torch import Tensor, nn

from localscale.adaptation import AdaptedModel
from localscale.checkpoints import write_weights
from localscale.cli import main
from localscale.errors import CheckpointError
from localscale.heads import Segmenter
from localscale.lab.methods import DiscreteCanonicalizer
from localscale.lab.recipes import Recipe
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.runs import Run, load_run
from localscale.lab.runs.models import create_model
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.training import evaluate_run, train
from localscale.lab.training.runner import make_backbone
from localscale.metrics import VARIANTS

OTHERS = [name for name in METHODS if name != "plain"]


@pytest.fixture(scope="module")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_both(tmp_path_factory.mktemp("discs"))


@pytest.fixture(scope="module")
def aug(discs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aug") / "run"
    train(tiny(discs, epochs=20, learning_rate=5e-3), folder, cpu=True)
    return folder


@pytest.fixture(scope="module")
def runs(aug: Path, discs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train a short run of each method, starting from the run ``aug``."""
    folders = {name: tmp_path_factory.mktemp("from_aug") / name for name in OTHERS}
    for name, folder in folders.items():
        train(tiny(discs, name, start=aug), folder, cpu=True)
    return {"plain": aug, **folders}


def images(batch: int = 3) -> Tensor:
    return torch.rand(batch, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def answers(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(images())


def first_model(recipe: Recipe) -> nn.Module:
    """Return the model before its first step."""
    torch.manual_seed(recipe.seed)
    return recipe.build(make_backbone(recipe)[0])


def result_of(folder: Path) -> dict:
    result = Run(folder).result()
    assert result is not None
    return result


# Learning


def test_the_classes_are_learned(aug: Path, discs: Path):
    """The score is more than twice that of answering background everywhere."""
    losses = [line["loss"] for line in log_of(aug)]
    assert losses[-1] < 0.4 * losses[0]
    chance = (tiny(discs).data.task(None, 4).test.labels == 0).float().mean().item() / CLASSES  # type: ignore[arg-type]
    assert chance < 0.25
    assert result_of(aug)["metrics"]["mean_iou"] > 2 * chance


@pytest.mark.parametrize("name", OTHERS)
def test_every_method_begins_where_its_start_run_ended(name: str, aug: Path, discs: Path):
    model = first_model(tiny(discs, name, start=aug))
    assert torch.equal(answers(model), answers(load_run(aug)))
    fresh = first_model(tiny(discs, name))
    assert not torch.equal(answers(model), answers(fresh))


@pytest.mark.parametrize("name", OTHERS)
def test_every_method_goes_on_from_there(name: str, runs: dict[str, Path], aug: Path):
    lines = log_of(runs[name])
    first = lines[0].get("task", lines[0]["loss"])
    assert first < 0.6 * log_of(aug)[0]["loss"]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert result_of(runs[name])["skipped_steps"] == 0
    before, after = load_file(Run(aug).weights), load_run(runs[name])
    unwrapped = after.unwrap() if isinstance(after, AdaptedModel) else getattr(after, "base", after)
    assert set(unwrapped.state_dict()) == set(before)
    assert any(not torch.equal(tensor, before[key]) for key, tensor in unwrapped.state_dict().items())


def test_each_method_learns_what_it_is_for(runs: dict[str, Path]):
    canon, direct, compose = (load_run(runs[name]) for name in ("canon", "direct", "compose"))
    assert isinstance(canon, DiscreteCanonicalizer)
    assert canon.mode == "equivariant"
    assert canon.energy.to_energy.weight.any()
    for model, name in ((direct, "direct"), (compose, "compose")):
        assert isinstance(model, AdaptedModel)
        assert isinstance(model.base, Segmenter)
        assert set(model.canonicalizers) == set(METHODS[name].config.sites)  # type: ignore[attr-defined]
        with torch.no_grad():
            _, report = model(images(), return_report=True)
        # The latent site has 2×2 patches: all are corners, which do not move.
        assert report["input"].map.mean_displacement().min() > 1e-6
    assert {"task", "equivariance"} <= set(log_of(runs["augl"])[0])
    assert {"task", "supervision", "prior", "input/residual"} <= set(log_of(runs["compose"])[0])
    assert result_of(runs["canon"])["learned_energies"]["steps"] == 5
    assert "learned_sizes" not in result_of(runs["canon"])
    learned = result_of(runs["sizes"])["learned_sizes"]
    assert learned["steps"] == 4
    assert learned["thing_error"] > 0
    assert 0 < float(load_run(runs["sizes"]).size_canonicalizer().network.mean_size.exp()) < 1  # type: ignore[operator]
    assert "backbone.blocks.0/displacement" in log_of(runs["direct"])[0]


# The files of a run


@pytest.mark.parametrize("name", METHODS)
def test_the_result_has_every_metric_and_its_floor(name: str, runs: dict[str, Path]):
    result = json.loads(Run(runs[name]).result_file.read_text())
    metrics = result["metrics"]
    assert set(metrics) == {
        "images", "variants", "mean_iou", "small_object_iou", "equivariance_error", "equivariance_floor",
        "group_deviation", "groups", "mean_iou_objects", "displacement", "uniform",
    }  # fmt: skip
    assert (metrics["images"], metrics["variants"], metrics["groups"], result["classes"]) == (12, 2, 4, CLASSES)
    assert set(metrics["equivariance_error"]) == set(metrics["equivariance_floor"]) == set(VARIANTS)
    assert min(*metrics["equivariance_error"].values(), *metrics["equivariance_floor"].values()) > 1e-4
    assert metrics["equivariance_floor"] == result_of(runs["plain"])["metrics"]["equivariance_floor"]
    assert 0 < metrics["mean_iou"] < 1
    assert metrics["uniform"]["displacement"] > 2 * metrics["displacement"]
    assert result["data"].startswith("24 training images; 12 test images of 4 scenes; 4 classes")


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_run_answers_for_every_pixel(name: str, runs: dict[str, Path]):
    model = load_run(runs[name])
    assert not model.training
    found = answers(model)
    assert found.shape == (3, CLASSES, SIZE, SIZE)
    assert torch.isfinite(found).all()
    assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["canon", "direct"])
def test_a_run_measured_again_is_the_same(name: str, runs: dict[str, Path]):
    metrics = evaluate_run(runs[name], Run(runs[name]).recipe(), cpu=True)
    assert metrics == result_of(runs[name])["metrics"]


def test_a_run_measured_with_other_data(aug: Path, discs: Path, tmp_path: Path):
    found = evaluate_run(aug, tiny(discs, test_limit=6, variants=1), cpu=True)
    assert (found["images"], found["groups"], found["variants"]) == (6, 2, 1)
    names = ("blue", "green", "red", "yellow")
    for part in ("train", "test"):
        write_objects(tmp_path / part, names=names)
    with pytest.raises(CheckpointError, match="has 4 classes, and these data have 5"):
        evaluate_run(aug, tiny(tmp_path), cpu=True)


def test_other_settings_are_refused_as_a_start(aug: Path, discs: Path, tmp_path: Path):
    odd = tmp_path / "odd"
    for part in ("train", "test"):
        write_objects(odd / part, size=48)
    with pytest.raises(CheckpointError, match=r"trained on images of 32 px, not 48; add --data.image-size 32"):
        train(tiny(odd, start=aug, image_size=48), tmp_path / "a", cpu=True)
    with pytest.raises(CheckpointError, match=r"trained a head of 16 channels, not 8; add --head-width 16"):
        train(tiny(discs, start=aug, head_width=8), tmp_path / "b", cpu=True)
    classifier = dataclasses.replace(tiny(discs), data=MNISTData(image_size=SIZE))
    run = Run(tmp_path / "classifier")
    with run.locked():
        run.claim(classifier, resume=False)
    run.result_file.write_text(Run(aug).result_file.read_text())
    write_weights(run.weights, create_model(classifier, CLASSES, pretrained="none"), {})
    with pytest.raises(CheckpointError, match=r"weights.safetensors is of another model: "):
        train(tiny(discs, start=run.folder), tmp_path / "c", cpu=True)


# Interruptions


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_result(discs: Path, tmp_path: Path):
    recipe = tiny(discs, "compose", regularization=Regularization(drop_path=0.2, label_smoothing=0.1))
    train(recipe, tmp_path / "whole", cpu=True)
    run = Run(tmp_path / "run")
    assert killed(recipe, run.folder, die_while_saving, 1)
    assert killed(recipe, run.folder, die_at_step, 4)
    assert run.checkpoint.exists()
    assert killed(recipe, run.folder, die_while_evaluating)
    result = train(recipe, run.folder, resume=True, cpu=True)
    one, two = load_file(run.weights), load_file(Run(tmp_path / "whole").weights)
    assert set(one) == set(two)
    assert [key for key in one if not torch.equal(one[key], two[key])] == []
    assert log_of(run.folder) == log_of(tmp_path / "whole")
    assert result["metrics"] == result_of(tmp_path / "whole")["metrics"]


# Sizes


def test_images_that_are_no_multiple_of_the_patch(tmp_path: Path):
    """Images of 37 px are resized to 48 px for patches of 16, and the masks back to 37 px."""
    for part in ("train", "test"):
        write_objects(tmp_path / part, size=37)
    result = train(tiny(tmp_path, METHODS["direct"], image_size=37), tmp_path / "run", cpu=True)
    assert result["skipped_steps"] == 0
    found = load_run(tmp_path / "run")(torch.rand(2, 3, 37, 37))
    assert found.shape == (2, CLASSES, 37, 37)
    displacements = {name: value for name, value in result["last_epoch"].items() if name.endswith("/displacement")}
    assert len(displacements) == 2
    assert all(value > 0 for value in displacements.values())


# The command line


def test_the_commands_train_and_measure(discs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    roots = ("--data.train-root", str(discs / "train"), "--data.test-root", str(discs / "test"))
    small = ("--backbone", "test_vit", "--head-width", "8", "--data.image-size", str(SIZE), "--batch-size", "8")
    plain = ("--pretrained", "none", "--precision", "no", "--epochs", "1", "--cpu", "--quiet")
    folder = str(tmp_path / "run")
    main(["train", "objects-deit_tiny-augl", *roots, *small, *plain, "--start", folder_of(discs), "--out", folder])
    metrics = result_of(Path(folder))["metrics"]
    assert f"mIoU {100 * metrics['mean_iou']:.2f} % of 12 images" in capsys.readouterr().out
    main(["evaluate", folder, "--cpu", "--data.test-limit", "3", "--data.ignore-index", "2"])
    printed = capsys.readouterr().out
    assert "% of 3 images" in printed
    assert "1 scenes" in printed


def folder_of(discs: Path) -> str:
    """Train a run with the head width that the command uses, and return its folder."""
    folder = discs / "width8"
    train(tiny(discs, epochs=1, head_width=8), folder, cpu=True)
    return str(folder)
