"""Runs compared on one image: their answers as a marked part changes size, the figure, and errors."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_pairs import CLASSES

import localscale as ls
from localscale.cli import main
from localscale.errors import CheckpointError, ConfigError
from localscale.files import unseal
from localscale.lab.data.boxes import Box
from localscale.lab.pages.app.comparison import compare_runs
from localscale.lab.pages.app.models import open_run
from localscale.lab.pages.app.scaling import box_maps

BOX = Box(0.2, 0.3, 0.6, 0.7)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "noise.png"
    pixels = torch.randint(0, 256, (70, 64, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)
    return path


def test_lines_are_the_answers_of_each_run_to_the_scaled_image(folder: Path, picture: Path):
    runs = {"control": folder / "control", "sizes": folder / "model"}
    found = compare_runs(runs, picture, box=BOX)
    assert list(found.lines) == list(runs)
    label = int(found.name)
    for name, run in runs.items():
        pair = open_run(run, name=name)
        seen = pair.prepare(Image.open(picture))
        assert torch.equal(found.image, seen[0])
        for number in (0, found.factors.index(1.0), len(found.factors) - 1):
            scaled = ls.scale(seen, box_maps(BOX, [found.factors[number]]))
            with torch.no_grad():
                answers = pair.model(pair.normalise(scaled)).float().softmax(1)[0]
            assert found.lines[name][number] == pytest.approx(float(answers[label]), abs=1e-5)
            if (name, found.factors[number]) == ("control", 1.0):
                assert label == int(answers.argmax()), "the answer of the first run"


def test_a_single_run_is_compared_with_itself_without_canonicalizers(folder: Path, picture: Path):
    found = compare_runs({"sizes": folder / "model"}, picture, label=7)
    assert found.name == "007"
    assert list(found.lines) == ["sizes", "canonicalizer off"]
    assert found.lines["sizes"] != found.lines["canonicalizer off"]


def test_the_figure_is_drawn(folder: Path, picture: Path, tmp_path: Path):
    out = tmp_path / "part.svg"
    options = ["--box", "0.2", "0.3", "0.6", "0.7", "--label", "12", "--out", str(out)]
    main(["figure", "probability", "--runs", f"control={folder / 'control'}", "--image", str(picture), *options])
    assert "probability of 012" in out.read_text()


def test_runs_with_other_classes_are_refused(folder: Path, picture: Path, tmp_path: Path):
    other = shutil.copytree(folder / "control", tmp_path / "other")
    result = unseal((other / "result.json").read_text())
    names = [f"thing {number}" for number in range(CLASSES)]
    (other / "result.json").write_text(json.dumps(result | {"class_names": names}))
    with pytest.raises(ConfigError, match=r"calls class 3 thing 3 .* call it 003"):
        compare_runs({"control": folder / "control", "other": other}, picture, label=3)


def test_bad_input_is_refused_with_a_sentence(folder: Path, picture: Path, scenes: Path):
    with pytest.raises(ConfigError, match=f"label is {CLASSES}, .* 0 to {CLASSES - 1}"):
        compare_runs({"control": folder / "control"}, picture, label=CLASSES)
    with pytest.raises(CheckpointError, match="expected a run that classifies"):
        compare_runs({"dec": scenes / "dec"}, picture)
    command = ["figure", "probability", "--runs", f"control={folder / 'control'}"]
    with pytest.raises(SystemExit, match="name them with --image"):
        main([*command, "--label", "1"])
    with pytest.raises(SystemExit, match="leave them out with --image"):
        main([*command, "--image", str(picture), "--scales", "1"])
