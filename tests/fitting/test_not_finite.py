"""``fit`` and values that are not finite: no such epoch is kept, and the message names it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import localscale as ls
from localscale.errors import DataError, TrainingError


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2))


def batches(count: int = 2) -> list[tuple[Tensor, Tensor]]:
    return [(torch.rand(4, 3, 2, 2), torch.arange(4) % 2) for _ in range(count)]


def fit(*arguments: Any, **settings: Any) -> ls.Fitted:
    return ls.fit(*arguments, **{"epochs": 3, "cpu": True, "progress": False} | settings)


def nan_after(steps: int) -> Any:
    taken = 0

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        nonlocal taken
        taken += logits.requires_grad
        return nn.functional.cross_entropy(logits, labels) * (math.nan if taken > steps else 1.0)

    return loss


def test_the_epoch_before_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    trained = model()
    found = fit(trained, batches(), batches(), loss=nan_after(4), out=tmp_path)
    assert found.ended == "the training loss or its gradient was not finite in epoch 3"
    assert found.best.epoch in (1, 2)
    assert all(torch.isfinite(p).all() for p in trained.parameters())
    assert "in epoch 3; the model has the weights of epoch" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2], "the checkpoint is that of the epoch before"


def test_without_an_epoch_to_keep_it_is_an_error():
    with pytest.raises(TrainingError, match="not finite in epoch 1, and no epoch before it can be kept; lower"):
        fit(model(), batches(), batches(), loss=nan_after(1))


def test_a_gradient_that_is_not_finite_is_found_without_validation():
    """The square root of 0 has a finite value and an infinite derivative; the last step would be kept unseen."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return (0 * logits).sum().abs().sqrt()

    with pytest.raises(TrainingError, match="its gradient was not finite in epoch 1"):
        fit(model(), batches(1), loss=loss, epochs=1)


def test_images_that_are_not_finite(caplog: pytest.LogCaptureFixture):
    spoilt = batches()
    spoilt[1][0][0, 0, 0, 0] = math.nan
    with pytest.raises(TrainingError, match="in epoch 1"):
        fit(model(), spoilt)
    assert "images of epoch 1 contain NaN" in caplog.text
    untouched = model()
    with pytest.raises(DataError, match="images of the first batch contain NaN"):
        fit(untouched, spoilt[::-1])
    assert torch.equal(untouched[1].weight, model()[1].weight)


def test_a_validation_that_is_not_finite_is_never_the_best(caplog: pytest.LogCaptureFixture):
    spoilt = batches()
    spoilt[0][0][0] = math.nan
    with pytest.raises(TrainingError, match="no epoch can be kept"):
        fit(model(), batches(), spoilt)
    assert "epoch 1 is not kept, because its metrics are not finite (loss nan" in caplog.text
