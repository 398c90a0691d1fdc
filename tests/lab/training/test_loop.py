"""The training loop against one written by hand, and steps that are skipped."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from timm.data import Mixup
from tiny_loops import RECIPE, epochs_of, loop_of
from tiny_recipes import Linear, Noise
from torch import Tensor, nn

from localscale.errors import ConfigError, TrainingError
from localscale.lab.methods import RandomScaling
from localscale.lab.randomness import Draws
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.tasks.task import Batches, seed_of
from localscale.lab.training.loop import Epoch, Loop, Position


def state_of(loop: Loop) -> dict[str, Tensor]:
    """Return weights, buffers and Adam's moments; moments that do not exist yet count as zero."""
    found = dict(loop.model.state_dict())
    for name, parameter in loop.model.named_parameters():
        values = loop.optimizer.state.get(parameter, {})
        for key in ("exp_avg", "exp_avg_sq"):
            found[f"{name}.{key}"] = values.get(key, torch.zeros_like(parameter))
        found[f"{name}.step"] = values.get("step", torch.zeros(()))
    return {name: tensor.clone() for name, tensor in found.items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


# One step


@pytest.mark.parametrize("clip", [0.5, 0.0])
def test_training_equals_a_plain_pytorch_loop(clip: float):
    settings = dataclasses.replace(RECIPE.optimization, clip=clip)
    loop, task = loop_of(optimization=settings), Noise()
    found = epochs_of(loop)
    torch.manual_seed(0)
    model = Linear()
    groups = [{"params": [model.head.weight], "weight_decay": 0.1}, {"params": [model.head.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, fused=False)
    losses, norms = [], []
    for indices in Batches(12, 4, seed=0).steps(0, 6):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 + math.cos(math.pi * indices.step / 6)) / 2
        optimizer.zero_grad()
        loss = F.cross_entropy(model(task.pixels[indices.images]), task.labels[indices.images])
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip or 1e9)))
        optimizer.step()
        losses.append(loss.item())
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(loop.model.state_dict()[name], tensor, atol=1e-6, rtol=1e-5)
    assert max(norms) > 0.5, "there was something to clip"
    for epoch, taken in zip(found, (slice(3), slice(3, 6)), strict=True):
        assert epoch.scalars["loss"] == pytest.approx(sum(losses[taken]) / 3, rel=1e-5)
        assert epoch.scalars["gradient"] == pytest.approx(sum(norms[taken]) / 3, rel=1e-5)
    assert [epoch.number for epoch in found] == [1, 2]
    assert [epoch.skipped for epoch in found] == [0, 0]
    assert loop.position.step == loop.total_steps == 6


def test_images_are_augmented_by_their_sample_number():
    scaling, task = RandomScaling(strength=2.0, knots=3), Noise(size=8)
    loop = loop_of(task, Linear(3 * 64), augmentation=scaling, seed=7)
    model = Linear(3 * 64)
    model.load_state_dict(loop.model.state_dict())
    indices = next(loop.batches.steps(4, 5))
    batch = task.images(indices, None, loop.device)
    found = loop.one_step(4, indices.samples, batch)["loss"]
    scaled = scaling(batch[0], Draws(7, torch.arange(16, 20)))
    assert found.item() == pytest.approx(F.cross_entropy(model(scaled), batch[1]).item(), rel=1e-6)
    assert found.item() != pytest.approx(F.cross_entropy(model(batch[0]), batch[1]).item(), rel=1e-3)


def test_labels_are_smoothed():
    loop, task = loop_of(regularization=Regularization(label_smoothing=0.3)), Noise()
    model = Linear()
    model.load_state_dict(loop.model.state_dict())
    indices = next(loop.batches.steps(0, 1))
    images, labels = task.images(indices, None, loop.device)
    found = loop.one_step(0, indices.samples, (images, labels))["loss"]
    assert found.item() == pytest.approx(F.cross_entropy(model(images), labels, label_smoothing=0.3).item())


def test_mixup_is_timms_with_the_steps_own_chance():
    loop, task = loop_of(regularization=Regularization(mixup=0.8, label_smoothing=0.1)), Noise()
    model = Linear()
    model.load_state_dict(loop.model.state_dict())
    indices = next(loop.batches.steps(3, 4))
    images, labels = task.images(indices, None, loop.device)
    found = loop.one_step(3, indices.samples, (images.clone(), labels))["loss"]
    set_seed(seed_of(0, "step", 3, 0))
    mixed, soft = Mixup(0.8, 0.0, label_smoothing=0.1, num_classes=5)(images.clone(), labels)
    assert not torch.equal(mixed, images)
    assert found.item() == pytest.approx(F.cross_entropy(model(mixed), soft).item())


def test_mixup_of_odd_batches_is_refused():
    settings = dataclasses.replace(RECIPE.optimization, batch_size=5)
    recipe = dataclasses.replace(RECIPE, optimization=settings, regularization=Regularization(cutmix=1.0))
    with pytest.raises(ConfigError, match="mixup needs an even batch size; try --batch-size 6"):
        recipe.check()


def test_a_norm_before_the_classifier_needs_two_images():
    settings = dataclasses.replace(RECIPE.optimization, batch_size=1)
    with pytest.raises(ConfigError, match="in each process, not 1; try --batch-size 2"):
        loop_of(optimization=settings, head_norm=True)


def test_mixup_of_odd_shares_is_refused():
    settings = dataclasses.replace(RECIPE.optimization, batch_size=6)
    recipe = dataclasses.replace(RECIPE, optimization=settings, regularization=Regularization(mixup=0.8))
    recipe.check()
    two = SimpleNamespace(
        process_index=0, num_processes=2, device=torch.device("cpu"), prepare=lambda *parts: parts, reduce=None
    )
    with pytest.raises(ConfigError, match="even"):
        Loop(recipe, Linear(), Noise(), two).run(print, progress=False)  # type: ignore[arg-type]


def test_a_restored_loop_goes_on_where_it_was():
    whole, first = loop_of(), loop_of()
    epochs_of(whole)
    with pytest.raises(KeyboardInterrupt):
        first.run(interrupt, progress=False)
    second = loop_of()
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.restore(Position(**vars(first.position)))
    assert [epoch.number for epoch in epochs_of(second)] == [2]
    assert changed(state_of(whole), state_of(second)) == set()


def test_a_restored_loop_has_the_rate_it_had():
    settings = dataclasses.replace(RECIPE.optimization, schedule="plateau", decay_rate=0.5, decay_epochs=1)
    loop = loop_of(optimization=settings)
    loop.restore(Position(step=3, skipped=2, schedule={"best": 0.0, "waited": 0, "drops": 2}))
    (epoch,) = epochs_of(loop)
    assert epoch.scalars["learning_rate"] == 1e-2 / 4
    assert loop.position == Position(step=6, skipped=2, schedule={"best": 0.0, "waited": 0, "drops": 3})


def interrupt(epoch: Epoch) -> None:
    raise KeyboardInterrupt


# Steps that are skipped


class Steep(Linear):
    """A model whose loss is finite but whose gradient is infinite if an image is very bright."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images.clamp(max=1))
        if (images > 10).any():
            logits.register_hook(lambda gradient: gradient * math.inf)
        return logits


@pytest.mark.parametrize(("spoiled", "value"), [(0, math.nan), (5, math.nan), (5, math.inf), (5, 100.0)])
def test_what_is_not_finite_changes_nothing(spoiled: int, value: float):
    task = Noise()
    task.pixels[spoiled] = value
    loop = loop_of(task, Steep())
    skipped = 0
    for indices, loaded in task.load(loop.batches.steps(0, 6), 0):
        before = state_of(loop)
        scalars = loop.one_step(indices.step, indices.samples, task.images(indices, loaded, loop.device))
        after = state_of(loop)
        assert all(torch.isfinite(tensor).all() for tensor in after.values())
        if spoiled in indices.images:
            skipped += 1
            assert changed(before, after) == set()
            assert {name: float(value) for name, value in scalars.items()} == {"loss": 0, "gradient": 0, "taken": 0}
        else:
            assert changed(before, after) == set(before)
            assert scalars["taken"]
    assert skipped == 2


def test_what_is_not_finite_leaves_running_statistics_alone():
    task = Noise()
    task.pixels[5] = math.nan
    loop = loop_of(task, nn.Sequential(nn.BatchNorm2d(3), Linear()))
    epochs_of(loop)
    assert loop.position.skipped == 2
    assert all(torch.isfinite(buffer).all() for buffer in loop.model.buffers())


def test_skipped_steps_are_counted_and_left_out_of_the_means():
    task = Noise()
    task.pixels[5] = math.nan
    loop = loop_of(task, max_skipped=2)
    taken: list[list[float]] = [[], []]
    step = loop.one_step

    def listen(number: int, samples: Tensor, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        scalars = step(number, samples, batch)
        if scalars["taken"]:
            taken[number // 3].append(float(scalars["loss"]))
        return scalars

    loop.one_step = listen  # type: ignore[method-assign]
    found = epochs_of(loop)
    assert [epoch.skipped for epoch in found] == [1, 1]
    assert loop.position.skipped == 2
    assert [len(losses) for losses in taken] == [2, 2]
    for epoch, losses in zip(found, taken, strict=True):
        assert epoch.scalars["loss"] == pytest.approx(sum(losses) / 2)


def test_too_many_skipped_steps_end_the_training():
    task = Noise()
    task.pixels[5] = math.nan
    found: list[Epoch] = []
    message = r"2 steps had a loss or gradient that is not finite and were skipped, more than --max-skipped 1 allows"
    with pytest.raises(TrainingError, match=message):
        loop_of(task, max_skipped=1).run(found.append, progress=False)
    assert len(found) == 1, "the first was allowed"


def test_an_epoch_without_any_step_has_no_means():
    task = Noise()
    task.pixels[:] = math.nan
    found = epochs_of(loop_of(task))
    assert [epoch.skipped for epoch in found] == [3, 3]
    assert all(math.isnan(epoch.scalars["loss"]) for epoch in found)


# Compiled blocks


def test_a_backbone_without_repeated_blocks_is_reported(caplog: pytest.LogCaptureFixture):
    loop_of(compile_blocks=True)
    assert "Linear has no repeated blocks" in caplog.text


class Wider(nn.Module):
    """A block whose output has one feature more than its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(width, 8), nn.Linear(8, width + 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(F.gelu(self.expand(x)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own doing
def test_a_loop_with_compiled_blocks_of_many_shapes_learns_the_same():
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    losses = []
    with torch._dynamo.config.patch(recompile_limit=8):  # as before torch 2.12
        for compile_blocks in (False, True):
            torch.manual_seed(0)
            backbone = nn.Sequential(nn.Flatten(), *(Wider(width) for width in range(12, 22)), Linear(22))
            found = epochs_of(loop_of(backbone=backbone, compile_blocks=compile_blocks))
            losses.append([epoch.scalars["loss"] for epoch in found])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert counters["stats"]["unique_graphs"] == 10, "each shape has its graph"
