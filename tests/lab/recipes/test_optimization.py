"""The schedule by hand, and the parameter groups of the optimizer."""

import dataclasses
import math
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from tiny_recipes import COMPOSE, Linear
from torch import nn

from localscale.errors import ConfigError
from localscale.lab.recipes.optimization import Optimization, Schedule


def vit() -> nn.Module:
    return timm.create_model("test_vit", num_classes=10, img_size=64)


def rates(settings: Optimization, steps: range, per_epoch: int = 10) -> list[float]:
    schedule = Schedule(settings, settings.optimizer(settings.backbone_groups(Linear()), Linear()), per_epoch)
    return [schedule.factor(step) for step in steps]


def group_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    (found,) = (g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    return found


# The learning rate over time


def test_cosine_falls_from_one_to_almost_nothing():
    found = rates(Optimization(epochs=4, schedule="cosine"), range(0, 41, 10))
    assert found == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0])
    assert rates(Optimization(epochs=4), range(39, 40))[0] == pytest.approx(math.sin(math.pi / 80) ** 2)


def test_warm_up_rises_in_equal_steps_to_where_the_course_begins():
    found = rates(Optimization(epochs=4, warmup_epochs=1), range(11))
    assert found == pytest.approx([step / 11 for step in range(1, 12)])
    after = rates(Optimization(epochs=5, warmup_epochs=1), range(10, 51, 10))
    assert after == pytest.approx(rates(Optimization(epochs=4), range(0, 41, 10)))
    assert rates(Optimization(epochs=2, warmup_epochs=0.2), range(3)) == pytest.approx([1 / 3, 2 / 3, 1])


def test_step_drops_every_so_many_epochs():
    settings = Optimization(epochs=120, schedule="step", decay_epochs=30, decay_rate=0.7)
    found = rates(settings, range(0, 1200, 299))
    assert found == pytest.approx([1, 1, 0.7, 0.49, 0.343])
    assert rates(settings, range(299, 301)) == pytest.approx([1, 0.7])


def test_constant_stays():
    assert set(rates(Optimization(epochs=3, schedule="constant"), range(30))) == {1.0}


def plateau(losses: list[float], waiting: float = 2) -> Schedule:
    settings = Optimization(epochs=9, schedule="plateau", decay_epochs=waiting, decay_rate=0.5)
    schedule = Schedule(settings, settings.optimizer(settings.backbone_groups(Linear()), Linear()), 10)
    for loss in losses:
        schedule.after_epoch(loss)
    return schedule


@pytest.mark.parametrize(
    ("losses", "factor"),
    [
        ([], 1),
        ([3, 2, 1], 1),
        ([1, 2], 1),
        ([1, 2, 1], 0.5),  # an equal loss is not an improvement
        ([1, 2, 0.9, 1, 0.8, 0.9], 1),
        ([1, 2, 2, 2, 2], 0.25),
        ([1, 2, 2, 0.5, 2], 0.5),
        ([1, math.nan, math.nan], 0.5),
    ],
)
def test_plateau_drops_when_nothing_gets_better(losses: list[float], factor: float):
    assert plateau(losses).factor(80) == factor


def test_a_restored_plateau_goes_on_waiting():
    before, after = plateau([1, 2]), plateau([])
    after.restore(before.state())
    after.after_epoch(2)
    assert after.factor(0) == 0.5
    fresh = plateau([])
    fresh.restore(plateau([]).state())
    fresh.after_epoch(1e9)
    assert fresh.state() == {"best": 1e9, "waited": 0, "drops": 0}


def test_other_courses_take_no_note_of_the_loss():
    schedule = plateau([])
    schedule.settings = dataclasses.replace(schedule.settings, schedule="constant")
    for _ in range(5):
        schedule.after_epoch(1.0)
    assert schedule.factor(0) == 1


@pytest.mark.parametrize("tensor_rates", [False, True])
def test_every_group_follows_at_its_own_height(tensor_rates: bool):
    settings = Optimization(epochs=4, learning_rate=0.25, canonicalizer_rate=0.5, layer_decay=0.5)
    backbone = vit()
    groups = settings.backbone_groups(backbone)
    model = COMPOSE.build(backbone)
    optimizer = settings.optimizer(groups, model)
    if tensor_rates:  # as with replayed steps
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
    schedule = Schedule(settings, optimizer, per_epoch=10)
    kept = [group["lr"] for group in optimizer.param_groups]
    schedule.before_step(20)
    for group, before in zip(optimizer.param_groups, kept, strict=True):
        assert float(group["lr"]) == pytest.approx(0.5 * (0.25 * group["lr_scale"] if "lr_scale" in group else 0.5))
        assert (group["lr"] is before) == tensor_rates, "changed in place, where it is a tensor"


@pytest.mark.parametrize("tensor_rates", [False, True])
def test_canonicalizers_can_start_later_than_the_backbone(tensor_rates: bool):
    settings = Optimization(epochs=4, learning_rate=0.25, canonicalizer_rate=0.5, canonicalizer_start=0.5)
    backbone = vit()
    groups = settings.backbone_groups(backbone)
    optimizer = settings.optimizer(groups, COMPOSE.build(backbone), torch.device("cpu") if tensor_rates else None)
    schedule = Schedule(settings, optimizer, per_epoch=10)
    rates = []
    for step in (0, 19, 20):
        schedule.before_step(step)
        rates += [float(optimizer.param_groups[place]["lr"]) / schedule.factor(step) for place in (0, -1)]
    assert rates == pytest.approx([0.25, 0, 0.25, 0, 0.25, 0.5])


# Groups


@pytest.mark.parametrize("decay", [1.0, 0.75])
@pytest.mark.parametrize("adapted", [True, False])
def test_every_parameter_is_in_one_group(decay: float, adapted: bool):
    settings, backbone = Optimization(layer_decay=decay), vit()
    groups = settings.backbone_groups(backbone)
    model = COMPOSE.build(backbone) if adapted else backbone
    grouped = [id(p) for group in settings.optimizer(groups, model).param_groups for p in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in model.parameters()}


def test_layer_decay_is_timms():
    settings, backbone = Optimization(learning_rate=1e-3, layer_decay=0.75), vit()
    optimizer = settings.optimizer(settings.backbone_groups(backbone), backbone)
    schedule = Schedule(settings, optimizer, per_epoch=10)
    schedule.before_step(0)
    skipped = backbone.no_weight_decay()
    for group in param_groups_layer_decay(backbone, 0.05, no_weight_decay_list=skipped, layer_decay=0.75):
        for parameter in group["params"]:
            assert group_of(optimizer, parameter)["lr"] == pytest.approx(1e-3 * group["lr_scale"])
    # 6 blocks, the embedding below them and the norm above: by hand.
    for parameter, depth in (
        (backbone.patch_embed.proj.weight, 7),
        (backbone.blocks[0].attn.qkv.weight, 6),
        (backbone.blocks[5].attn.qkv.weight, 1),
        (backbone.head.weight, 0),
    ):
        assert group_of(optimizer, parameter)["lr"] == pytest.approx(1e-3 * 0.75**depth)


def test_what_a_method_adds_has_a_rate_of_its_own_and_no_decay():
    settings, backbone = Optimization(learning_rate=1e-4, canonicalizer_rate=1e-2), vit()
    groups = settings.backbone_groups(backbone)
    model = COMPOSE.build(backbone)
    optimizer = settings.optimizer(groups, model)
    own = [p for canonicalizer in model.canonicalizers.values() for p in canonicalizer.parameters()]
    assert own
    assert {id(p) for p in optimizer.param_groups[-1]["params"]} == {id(p) for p in own}
    assert (optimizer.param_groups[-1]["lr"], optimizer.param_groups[-1]["weight_decay"]) == (1e-2, 0)
    assert {group["lr"] for group in optimizer.param_groups[:-1]} == {1e-4}


@pytest.mark.parametrize("decay", [1.0, 0.75])
def test_vectors_and_what_timm_names_are_not_decayed(decay: float):
    settings, backbone = Optimization(weight_decay=0.1, layer_decay=decay), vit()
    optimizer = settings.optimizer(settings.backbone_groups(backbone), backbone)
    spared = backbone.no_weight_decay()
    assert "pos_embed" in spared
    for name, parameter in backbone.named_parameters():
        expected = 0 if parameter.dim() < 2 or name in spared else 0.1
        assert group_of(optimizer, parameter)["weight_decay"] == expected, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "--epochs is 0; expected a positive number"),
        ({"batch_size": -1}, "--batch-size is -1"),
        ({"decay_rate": 0.0}, "--decay-rate is 0.0"),
        ({"learning_rate": -1.0}, "--learning-rate is -1.0; expected a finite number, 0 or more"),
        ({"canonicalizer_rate": math.inf}, "--canonicalizer-rate is inf"),
        ({"weight_decay": math.nan}, "--weight-decay is nan"),
        ({"layer_decay": 0.0}, "--layer-decay is 0.0; expected more than 0 and at most 1"),
        ({"layer_decay": 1.1}, "--layer-decay is 1.1"),
        ({"canonicalizer_start": 1.0}, "--canonicalizer-start is 1.0; expected 0 or more and below 1"),
    ],
)
def test_settings_that_cannot_be_trained_with(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Optimization(**changes).check()
