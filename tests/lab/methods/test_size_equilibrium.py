"""The size equilibrium: its network learns sizes first and is then frozen, or trained with the backbone."""

import dataclasses
from pathlib import Path

import pytest
import torch
from baseline_inputs import LABELS, cross_entropy, draws, images, vit
from tiny_recipes import tiny
from torch import nn

from localscale.canonicalizer import DECConfig, SizeNetwork
from localscale.equilibrium import Picard
from localscale.errors import ConfigError
from localscale.lab.methods import RandomScaling, SizeEquilibrium
from localscale.lab.recipes import find_recipe
from localscale.lab.runs import load_run
from localscale.lab.training import train
from localscale.warp import unscale

CONFIG = DECConfig(
    knots=4,
    network=SizeNetwork(width=8, blocks=0),
    solver=Picard(max_steps=2, tolerance=1e-3, fixed_steps=True),
)
METHOD = SizeEquilibrium(CONFIG, learning_steps=3)


def test_it_starts_as_the_backbone_and_learns_sizes_before_training():
    model = METHOD.build(vit())
    with torch.no_grad():
        torch.testing.assert_close(model(images()), vit()(images()), atol=1e-5, rtol=0)
    before = model.size_canonicalizer().network.head.weight.clone()
    METHOD.prepare(model, [images(), images(seed=1)], progress=False)
    assert not torch.equal(model.size_canonicalizer().network.head.weight, before)
    assert not any(p.requires_grad for p in model.size_canonicalizer().parameters()), "held still again"


@pytest.mark.parametrize(
    ("changes", "told"), [({"learning_steps": 0}, True), ({"learning_steps": 0, "along": 1.0}, False)]
)
def test_sizes_that_nothing_teaches_are_told(changes: dict, told: bool, caplog: pytest.LogCaptureFixture):
    method = dataclasses.replace(METHOD, **changes)
    assert method.prepare(method.build(vit()), [images()], progress=False) is None
    assert ("raise --method.learning-steps 0" in caplog.text) == told


@pytest.mark.parametrize("along", [0.0, 1.0])
def test_the_size_network_is_held_still_or_learns_along(along: float):
    method = dataclasses.replace(METHOD, along=along)
    model = method.build(vit())
    found = method.losses(model, images(), LABELS, cross_entropy, draws())
    found["loss"].backward()
    reached = [p.grad is not None and bool(p.grad.any()) for p in model.size_canonicalizer().parameters()]
    assert any(reached) == bool(along)
    assert ("sizes" in found) == bool(along)
    assert {"input/residual", "input/steps", "input/displacement"} <= set(found)


@pytest.mark.parametrize("gradient", ["implicit", "phantom(1)", "unrolled"])
@pytest.mark.parametrize("detached", [(), ("input",)])
def test_the_task_tunes_sizes_that_were_learned(gradient: str, detached: tuple[str, ...]):
    config = dataclasses.replace(CONFIG, gradient=gradient, detached=detached)
    method = dataclasses.replace(METHOD, config=config, along=1.0)
    model = method.build(vit())
    network = model.size_canonicalizer().network
    torch.nn.init.normal_(network.head.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    network.trust.fill_(0.8)
    method.losses(model, images(), LABELS, cross_entropy, draws())["task"].backward()  # without the size loss
    reached = {name: p.grad is not None and bool(p.grad.any()) for name, p in network.named_parameters()}
    assert set(reached.values()) == {not detached}, reached
    assert all(bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None)


def test_the_row_that_tunes_lets_the_backbone_settle_first():
    row = find_recipe("mnist-deit_tiny-sizes_tuned")
    assert row.method.learning_steps > 0
    assert row.method.along > 0
    assert not row.method.config.detached
    assert row.optimization.canonicalizer_start == 0.5


@pytest.mark.parametrize("along", [0.0, 1.0])
def test_the_size_networks_of_all_sites_are_held_still_or_learn_along(along: float):
    config = dataclasses.replace(CONFIG, sites=("input", "blocks.0"))
    model = dataclasses.replace(METHOD, config=config, along=along).build(vit())
    trained = {path: any(p.requires_grad for p in c.parameters()) for path, c in model.canonicalizers.items()}
    assert trained == {"input": bool(along), "blocks.0": bool(along)}


TAUGHT = dataclasses.replace(
    METHOD,
    config=dataclasses.replace(
        CONFIG, mode="equivariant", network=SizeNetwork(width=8, blocks=0, weight="learned", sure=0.1)
    ),
    masks=True,
)


@pytest.mark.parametrize("along", [0.0, 1.0])
def test_masks_teach_sizes_before_training_or_along(along: float):
    method = dataclasses.replace(TAUGHT, along=along)
    model = method.build(nn.Conv2d(3, 5, 3, padding=1), input_size=tuple(images().shape[1:]))
    masks = torch.zeros(len(images()), *images().shape[2:], dtype=torch.long)
    masks[:, 5:20, 8:30], masks[:, :2] = 3, -100
    found = method.prepare(model, [(images(), masks)], progress=False)
    assert set(found) > {"thing_error", "thing_overlap", "thing_spread"}
    network, things = model.size_canonicalizer().network, 3 * len(images())
    assert float(network.things) == things, "three steps"
    losses = method.losses(model, images(), masks, cross_entropy_of_pixels, draws())
    losses["loss"].backward()
    assert ("sizes" in losses) == bool(along)
    assert float(network.things) == things + (len(images()) if along else 0)


def cross_entropy_of_pixels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, labels)


def test_masks_need_masks_and_learned_weights():
    with pytest.raises(ConfigError, match="needs masks, but this task"):
        dataclasses.replace(TAUGHT, config=dataclasses.replace(TAUGHT.config, mode="invariant")).check_answers(
            dense=False
        )
    with pytest.raises(ConfigError, match="weight learned"):
        dataclasses.replace(METHOD, masks=True).check()


def test_canonical_forms_are_scaled_at_random():
    method = dataclasses.replace(METHOD, canonical_scaling=RandomScaling(strength=1.0))
    model = method.build(vit()).eval()
    with torch.no_grad():
        found = method.losses(model, images(), LABELS, cross_entropy, draws())
        u = method.canonical_scaling.maps(draws(), "canonical")
        expected = cross_entropy(model.base(unscale(images(), u)), LABELS)  # the size network has learned nothing
        without = cross_entropy(model(images()), LABELS)
    assert float(found["loss"]) == pytest.approx(float(expected), abs=1e-5)
    assert float(found["loss"]) != pytest.approx(float(without), abs=1e-5)


def test_a_run_is_trained_and_loaded(digits: Path, tmp_path: Path):
    result = train(tiny(digits, METHOD, epochs=1), tmp_path / "run", cpu=True)
    assert 0 <= result["metrics"]["accuracy"] <= 1
    assert set(result["learned_sizes"]) == {"steps", "error", "spread", "converged"}
    assert result["learned_sizes"]["steps"] == 3
    assert result["learned_sizes"]["error"] > 0
    canonical = result["metrics"]["canonical_sizes"]
    assert canonical["spread"] == pytest.approx(1, abs=0.2), "three steps hardly teach a size"
    assert 0 <= canonical["converged"] <= 1
    model = load_run(tmp_path / "run")
    assert model.preprocessing.input_size == model.input_size == (3, 64, 64)
    assert float(model.size_canonicalizer().network.trust) >= 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"config": DECConfig.paper()}, "needs a SizeNetwork"),
        ({"learning_steps": -1}, "learning-steps is -1"),
        ({"along": -1.0}, "along -1.0"),
        ({"config": DECConfig(mode="equivariant"), "canonical_scaling": RandomScaling()}, "must be 0, unless"),
    ],
)
def test_bad_settings_are_refused(changes: dict, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        dataclasses.replace(METHOD, **changes).check()
