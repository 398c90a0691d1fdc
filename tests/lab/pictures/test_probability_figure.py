"""Probability of the correct class against scale: the answers of the model, and errors."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tiny_imagenet import SCALES, write_scaled_discs
from tiny_recipes import tiny

from localscale.cli import main
from localscale.errors import ConfigError
from localscale.lab.pictures.probability import run_probabilities
from localscale.lab.runs import load_run, read_run
from localscale.lab.tasks.imagenet import ImageNetData
from localscale.lab.training import train


def test_probabilities_are_the_models_answers_on_digits_of_one_size(numbers: Path):
    scales, found = run_probabilities(numbers / "aug", images=3, scales=(0.5, 1.0))
    assert scales == [0.5, 1.0]
    assert found.shape == (3, 2)
    task = read_run(numbers / "aug").make_task()
    images, labels = task._bracket((0.5, 0.5), 3).renderer()(torch.arange(3))
    with torch.no_grad():
        answers = load_run(numbers / "aug")(task.normalise(images)).softmax(1)
    assert torch.allclose(found[:, 0], answers[torch.arange(3), labels], atol=1e-6)


def test_the_figure_is_drawn(numbers: Path, tmp_path: Path):
    out = tmp_path / "probability.svg"
    named = [f"control={numbers / 'aug'}", f"DEC={numbers / 'dec'}"]
    sizes = ["--images", "2", "--scales", "0.5", "1", "2"]
    main(["figure", "probability", "--runs", *named, *sizes, "--quiet", "--out", str(out)])
    assert "probability of the correct class" in out.read_text()


def test_photographs_have_the_scales_of_their_dataset(numbers: Path, tmp_path: Path):
    made = write_scaled_discs(tmp_path)
    data = ImageNetData(train_root=tmp_path / "images", test_root=made, image_size=64, workers=0)
    recipe = tiny(numbers, "plain", epochs=1, batch_size=6, pretrained="none")
    train(dataclasses.replace(recipe, data=data), tmp_path / "run", cpu=True)
    scales, found = run_probabilities(tmp_path / "run", images=2)
    assert scales == list(SCALES)
    assert found.shape == (2, len(SCALES))
    assert ((found > 0) & (found < 1)).all()
    with pytest.raises(ConfigError, match="leave --scales out"):
        run_probabilities(tmp_path / "run", images=2, scales=(1.0,))


def test_bad_input_is_refused_with_a_sentence(numbers: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="images is 0"):
        run_probabilities(numbers / "aug", images=0)
    with pytest.raises(SystemExit, match="expected NAME=FOLDER"):
        main(["figure", "probability", "--runs", str(numbers / "aug"), "--quiet"])
    with pytest.raises(SystemExit, match="no folder"):
        main(["figure", "probability", "--runs", f"x={tmp_path / 'none'}", "--quiet"])
