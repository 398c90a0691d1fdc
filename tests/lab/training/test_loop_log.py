"""The log of sites and learning rates, the error when memory is full, and the evaluation."""

import dataclasses
import math
from typing import Any

import pytest
import timm
import torch
from accelerate import Accelerator
from dec_configs import dec_config
from tiny_loops import RECIPE, epochs_of, loop_of
from tiny_recipes import COMPOSE, Linear, Noise
from torch import Tensor, nn

from localscale.errors import TrainingError
from localscale.lab.methods import DEC
from localscale.lab.training.evaluation import evaluate


def vit() -> Any:
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=5, img_size=64)


DIRECT = DEC(
    dec_config(
        sites=("input", "blocks.0"), knots=(4, 3), channels=(8,), resolution=56, max_steps=2, tolerance=1e-3,
        fixed_steps=True,
    )
)  # fmt: skip


@pytest.mark.parametrize("method", [COMPOSE, DIRECT], ids=["compose", "direct"])
def test_every_site_is_logged(method: DEC):
    task = Noise(size=64)
    loop = loop_of(task, vit(), method=method)
    scalars: list[dict[str, Tensor]] = []
    for indices, loaded in task.load(loop.batches.steps(0, 3), 0):
        images, labels = task.images(indices, loaded, loop.device)
        with torch.no_grad():
            report = loop.model(images, return_report=True)[1]
        scalars.append(loop.one_step(indices.step, indices.samples, (images, labels)))
    sites = {
        f"{site}/{what}"
        for site in method.config.sites
        for what in ("residual", "steps", "displacement", "variation", "gradient")
    }
    losses = {"loss", "task", "prior", "supervision"} if method.supervision else {"loss", "task"}
    assert set(scalars[-1]) == sites | losses | {"gradient", "taken"}
    for site in method.config.sites:
        assert float(scalars[0][f"{site}/displacement"]) == 0, "at first a canonicalizer does nothing"
        assert float(scalars[-1][f"{site}/displacement"]) > 0
        for what, value in (("residual", report[site].residual), ("steps", report[site].steps)):
            assert float(scalars[-1][f"{site}/{what}"]) == pytest.approx(float(value.float().mean()), rel=1e-4)
    weighed = {"task": 1.0, "prior": method.prior, "supervision": method.supervision}
    total = sum(weight * float(scalars[-1][name]) for name, weight in weighed.items() if weight)
    assert float(scalars[-1]["loss"]) == pytest.approx(total, rel=1e-5)


def test_a_canonicalizer_without_a_gradient_is_told(caplog: pytest.LogCaptureFixture):
    config = dataclasses.replace(DIRECT.config, detached=("input",))
    loop = loop_of(Noise(size=64), vit(), method=DEC(config))  # DEC.check refuses it; a method of one's own may not
    first, _ = epochs_of(loop)
    assert first.scalars["input/gradient"] == 0 < first.scalars["blocks.0/gradient"]
    assert "epoch 1: the canonicalizer at input received no gradient" in caplog.text
    assert "canonicalizer at blocks.0" not in caplog.text


def test_the_rate_is_logged():
    found = epochs_of(loop_of())
    expected = [1e-2 * (1 + math.cos(math.pi * step / 6)) / 2 for step in (2, 5)]
    assert [epoch.scalars["learning_rate"] for epoch in found] == pytest.approx(expected)


def test_the_rate_that_is_logged_is_the_backbones_highest():
    settings = dataclasses.replace(RECIPE.optimization, layer_decay=0.5, schedule="constant")
    assert epochs_of(loop_of(Noise(size=64), vit(), optimization=settings))[0].scalars["learning_rate"] == 1e-2


# Memory


class Full(Noise):
    def images(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def test_out_of_memory_names_a_smaller_batch():
    with pytest.raises(TrainingError, match="out of GPU memory with batch size 4; try --batch-size 2") as caught:
        epochs_of(loop_of(Full()))
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_out_of_memory_in_the_evaluation_names_a_smaller_batch():
    def forward(images: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model = Linear()
    model.forward = forward  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="out of GPU memory with batch size 6; try --batch-size 3"):
        evaluate(model, Noise(), Accelerator(cpu=True), batch_size=6, progress=False)


def test_other_errors_pass_as_they_are():
    class Broken(Noise):
        def images(self, *arguments: Any) -> tuple[Tensor, Tensor]:
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match=r"^something else$"):
        epochs_of(loop_of(Broken()))


def test_evaluation_is_out_of_training():
    model = nn.Sequential(nn.Dropout(0.5), Linear())
    found = {
        evaluate(model, Noise(), Accelerator(cpu=True), batch_size=4, progress=False)["accuracy"] for _ in range(3)
    }
    assert len(found) == 1
    assert not model.training
