"""``localscale train … --source-size``: photographs larger than the backbone's input, from training to the app."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_folders import write_folder
from tiny_masks import write_masks

from localscale.adaptation import AdaptedModel
from localscale.cli import main
from localscale.conventions import resize_cubic
from localscale.files import unseal
from localscale.lab.methods.method import Resized
from localscale.lab.runs import load_run, read_run
from localscale.lab.tasks.task import Indices

FAST = (
    *("--backbone", "test_vit", "--pretrained", "none", "--precision", "no", "--cpu", "--quiet", "--epochs", "1"),
    *("--batch-size", "4", "--data.image-size", "32", "--data.workers", "0", "--data.variants", "1"),
    *("--source-size", "64", "--method.learning-steps", "2", "--control"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    write_folder(folder / "train")
    main(["train", "folder", "--data.train-root", str(folder / "train"), *FAST, "--out", str(folder / "run")])
    return folder / "run"


def test_both_models_take_large_images(run: Path):
    model, control = load_run(run), load_run(run.with_name("run-control"))
    assert isinstance(model, AdaptedModel)
    assert (model.input_size, model.source_size) == ((3, 32, 32), (64, 64))
    assert model.preprocessing.input_size == (3, 64, 64)
    assert isinstance(control, Resized)
    task = read_run(run).make_task()
    (indices, loaded), *_ = task.load(iter([Indices(0, torch.tensor([0, 1]), torch.tensor([0, 1]))]), 0)
    images, _ = task.images(indices, loaded, torch.device("cpu"))
    assert images.shape == (2, 3, 64, 64)
    with torch.no_grad(), model.disabled():
        assert torch.equal(control(images), control.base(resize_cubic(images, 32, 32)))
        assert torch.equal(model(images), model.base(resize_cubic(images, 32, 32)))


def test_it_is_evaluated_predicted_and_drawn(run: Path, capsys: pytest.CaptureFixture, tmp_path: Path):
    pytest.importorskip("matplotlib")
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    main(["evaluate", str(run), "--cpu", "--json", str(tmp_path / "again.json")])
    assert json.loads((tmp_path / "again.json").read_text())["accuracy"] == metrics["accuracy"]
    main(["predict", str(run), str(next((run.parent / "train" / "red").iterdir())), "--out", str(tmp_path)])
    with Image.open(next(tmp_path.glob("*_canonical.png"))) as both:
        assert both.size == (64 + 32, 64)
    figure, page = tmp_path / "canonical.png", tmp_path / "report.html"
    main(["figure", "canonical", "--run", str(run), "--numbers", "2", "--sizes", "2", "--out", str(figure)])
    main(["report", str(run), "--images", "1", "--quiet", "--out", str(page)])
    assert figure.exists()
    assert "Left out" not in page.read_text()


def test_the_app_shows_what_the_backbone_sees(run: Path):
    from localscale.lab.pages.app.examples import read_examples
    from localscale.lab.pages.app.models import open_pair
    from localscale.lab.pages.app.views import scale_part, view_example

    pair = open_pair(str(run), control=run.with_name("run-control"))
    view = view_example(pair, read_examples()[0])
    scaled = scale_part(pair, view, 1.5)
    assert view.input.shape == scaled.image.shape == (1, 3, 64, 64)
    assert scaled.canonical.image.shape == (1, 3, 32, 32)


@pytest.mark.slow
def test_masks_are_learned_and_measured_at_the_large_size(tmp_path: Path):
    write_masks(tmp_path / "train")
    where = ("--task", "segmentation", "--head-width", "8", "--data.train-root", str(tmp_path / "train"))
    main(["train", "folder", *where, *FAST, "--out", str(tmp_path / "run")])
    images = torch.rand(1, 3, 64, 64)
    for folder in (tmp_path / "run", tmp_path / "run-control"):
        with torch.no_grad():
            assert load_run(folder)(images).shape == (1, 3, 64, 64)


def test_a_control_of_another_size_is_refused(run: Path, capsys: pytest.CaptureFixture, tmp_path: Path):
    shutil.copytree(run.with_name("run-control"), tmp_path / "small")
    recipe = tmp_path / "small" / "recipe.json"
    recipe.write_text(json.dumps(unseal(recipe.read_text()) | {"source_size": None}))
    with pytest.raises(SystemExit) as stop:
        main(["report", str(run), "--control", str(tmp_path / "small"), "--quiet"])
    assert "another image size: 32" in f"{stop.value} {capsys.readouterr().err}"
