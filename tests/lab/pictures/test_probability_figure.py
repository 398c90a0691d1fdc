"""Probability of the right class against scale: a model's own answers, and what cannot be drawn."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tiny_imagenet import SCALES, write_scaled_discs
from tiny_recipes import tiny, write_backbone, write_digits

from localscale.cli import main
from localscale.errors import ConfigError
from localscale.lab.pictures.probability import run_probabilities
from localscale.lab.runs import load_run
from localscale.lab.runs.models import make_task
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.training import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probability")
    write_digits(folder)
    write_backbone(folder / "backbone.safetensors")
    for method in ("dec", "plain"):
        train(tiny(folder, method, epochs=1), folder / method, cpu=True)
    return folder


def test_they_are_the_models_answers_on_digits_of_one_size(runs: Path):
    scales, found = run_probabilities(runs / "plain", images=3, scales=(0.5, 1.0))
    assert scales == [0.5, 1.0]
    assert found.shape == (3, 2)
    task = make_task(tiny(runs, "plain"))
    images, labels = task._bracket((0.5, 0.5), 3).renderer()(torch.arange(3))
    with torch.no_grad():
        answers = load_run(runs / "plain")(task.normalise(images)).softmax(1)
    assert torch.allclose(found[:, 0], answers[torch.arange(3), labels], atol=1e-6)


def test_the_figure_is_drawn(runs: Path, tmp_path: Path):
    out = tmp_path / "probability.svg"
    named = [f"control={runs / 'plain'}", f"DEC={runs / 'dec'}"]
    sizes = ["--images", "2", "--scales", "0.5", "1", "2"]
    main(["figure", "probability", "--runs", *named, *sizes, "--quiet", "--out", str(out)])
    assert "probability of the correct class" in out.read_text()


def test_photographs_have_the_scales_they_were_made_with(runs: Path, tmp_path: Path):
    made = write_scaled_discs(tmp_path)
    data = ImageNetData(train_root=tmp_path / "images", test_root=made, image_size=64, workers=0)
    recipe = tiny(runs, "plain", epochs=1, batch_size=6, pretrained="none")
    train(dataclasses.replace(recipe, data=data), tmp_path / "run", cpu=True)
    scales, found = run_probabilities(tmp_path / "run", images=2)
    assert scales == list(SCALES)
    assert found.shape == (2, len(SCALES))
    assert ((found > 0) & (found < 1)).all()
    with pytest.raises(ConfigError, match="leave --scales out"):
        run_probabilities(tmp_path / "run", images=2, scales=(1.0,))


def test_what_cannot_be_drawn_is_said(runs: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="images is 0"):
        run_probabilities(runs / "plain", images=0)
    with pytest.raises(SystemExit, match="expected NAME=FOLDER"):
        main(["figure", "probability", "--runs", str(runs / "plain"), "--quiet"])
    with pytest.raises(SystemExit, match="no folder"):
        main(["figure", "probability", "--runs", f"x={tmp_path / 'none'}", "--quiet"])
