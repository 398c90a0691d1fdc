"""Finished runs: unreadable ones are refused, and loaded ones give the answers of their evaluation."""

import math
from pathlib import Path

import pytest
import torch
from tiny_reports import copied, tiny_objects

from localscale.errors import CheckpointError, DataError
from localscale.lab.runs import read_run
from localscale.lab.runs.answers import measure_changes, open_model
from localscale.lab.runs.finished import check_control
from localscale.lab.runs.groups import ImageGroup, open_groups


def changes_of(folder: Path) -> list[float]:
    """Return the change of the answer in every group of test images."""
    run = read_run(folder)
    groups = open_groups(run)
    return measure_changes(open_model(run), map(groups.read, range(groups.count)))[0]


def test_folders_without_a_finished_run_are_refused(numbers: Path, tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"is not a run: it has no recipe\.json; name one that"):
        read_run(tmp_path)
    run = copied(numbers / "dec", tmp_path / "run")
    (run / "result.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"result\.json has no metrics"):
        read_run(run)
    (run / "result.json").unlink()
    with pytest.raises(CheckpointError, match=r"is not finished; finish it with localscale train … --resume"):
        read_run(run)


def test_controls_of_another_task_or_size_are_refused(numbers: Path, scenes: Path, tmp_path: Path):
    run = read_run(numbers / "dec")
    with pytest.raises(CheckpointError, match=r"has another task: objects, where .* has mnist; give --control a run"):
        check_control(run, read_run(scenes / "dec"))
    with pytest.raises(CheckpointError, match=r"has another image size: 96, where .* has 64"):
        check_control(run, read_run(copied(numbers / "aug", tmp_path / "run", data__image_size=96)))


def test_changes_over_all_groups_are_the_measured_errors(numbers: Path, scenes: Path):
    changes, metrics = changes_of(numbers / "dec"), read_run(numbers / "dec").metrics
    assert sum(changes) / len(changes) == pytest.approx(metrics["invariance_error"]["squared"], rel=1e-3)
    changes, metrics = changes_of(scenes / "dec"), read_run(scenes / "dec").metrics
    assert sum(changes) / len(changes) == pytest.approx(metrics["group_deviation"], rel=1e-3, abs=1e-6)


def test_answers_are_compared_with_the_unscaled_image(numbers: Path):
    model = open_model(read_run(numbers / "dec"))
    images = open_groups(read_run(numbers / "dec")).read(0).images
    group = ImageGroup("x", torch.cat((images[1:2], images[:1], images[1:2])), ["", "", ""], reference=1, label=0)
    expected = model.ask(ImageGroup("x", images[:2], ["", ""], label=0)).change
    assert model.ask(group).change == pytest.approx(expected, rel=1e-3)


def test_other_images_are_noted_or_refused(numbers: Path, scenes: Path, tmp_path: Path):
    assert open_groups(read_run(numbers / "dec")).note == ""
    moved = read_run(copied(numbers / "dec", tmp_path / "run", data__data_seed=1))
    assert "The images shown are of LocallyScaledMNIST(test, 8 images, seed 1" in open_groups(moved).note
    run = read_run(scenes / "dec")
    single = run.with_data(tiny_objects.write_objects(tmp_path / "single", groups=1, members=1))
    assert math.isnan(open_model(run).ask(open_groups(single).read(0)).change)
    others = tiny_objects.write_objects(
        tmp_path / "others", groups=1, names=("blue", "green"), spoil={0: lambda p, c: (p, 0 * c)}
    )
    with pytest.raises(DataError, match=r"these images have 3 classes and the run 4"):
        open_groups(run.with_data(others))
