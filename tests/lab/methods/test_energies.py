"""The energies of Canon: what they learn from, that they undo known scalings, and what stays as it was."""

import pytest
import torch
from baseline_inputs import LABELS, cnn, cross_entropy, draws, images, randomise
from torch import Tensor

from localscale.cli.training import describe_energies
from localscale.errors import ConfigError, DataError
from localscale.lab.methods import Canon, DiscreteCanonicalizer
from localscale.lab.methods.energies import known_scores, learn_energies
from localscale.warp import scale, unscale

SIDE = 16


def discs(count: int, seed: int) -> Tensor:
    """Return images of two equal discs, one on the left and one on the right, whose size and height vary."""
    rng = torch.Generator().manual_seed(seed)
    place = torch.linspace(0, 1, SIDE)
    radius, height = 0.1 + 0.06 * torch.rand(count, 1, 1, generator=rng), torch.rand(count, 1, 1, generator=rng)
    shown = [
        ((place - x) ** 2 + (place[:, None] - 0.45 - 0.1 * height) ** 2).sqrt().sub(radius).mul(-40).sigmoid()
        for x in (0.27, 0.73)
    ]
    return sum(shown).unsqueeze(1)


def small(**settings) -> DiscreteCanonicalizer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DiscreteCanonicalizer(cnn(), channels=1, configurations=9, resolution=SIDE, **settings)


def batches() -> list[tuple[Tensor, None]]:
    return [(discs(32, seed), None) for seed in range(12)]


@torch.no_grad()
def undone(model: DiscreteCanonicalizer, shown: Tensor) -> float:
    """Return how often the chosen map is the one that scaled the image, over all configurations and images."""
    maps, right = model.configurations(), []
    for number in range(len(maps.state())):
        chosen = model.choose(scale(shown, maps[number])).state()
        right.append((chosen == maps.state()[number]).all(dim=1).float().mean())
    return float(torch.stack(right).mean())


@torch.no_grad()
def test_scores_are_energies_of_images_that_known_maps_scaled():
    model = randomise(DiscreteCanonicalizer(cnn(), configurations=9, resolution=24, temperature=2.0), std=3.0)
    shown, known = images(3, 24), torch.tensor([0, 4, 7])
    scores, maps = known_scores(model, shown, known), model.configurations()
    assert scores.shape == (3, 9)
    for image, number, found in zip(shown, known, scores, strict=True):
        scaled = scale(image[None], maps[int(number)])
        expected = torch.cat([-model.energy(unscale(scaled, maps[j])) / 2 for j in range(9)])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_the_least_energy_undoes_a_known_scaling_on_new_images():
    """Chance is one in nine; the energies have never seen these images."""
    model, new = small(), discs(20, seed=100)
    assert undone(model, new) == pytest.approx(1 / 9), "at first every choice is the identity"
    found = learn_energies(model, batches(), steps=50)
    assert (found.steps, found.chance) == (50, pytest.approx(1 / 9))
    assert found.undone > 0.6
    assert undone(model, new) > 0.6
    kept = (model.choose(new).mean_displacement() == 0).float().mean()
    assert kept > 0.6, "an image that nothing has scaled is left alone"


def test_learning_trains_the_energies_alone_and_the_same_for_the_same_seed():
    method = Canon(configurations=9, learning_steps=2)
    models = [method.build(cnn()) for _ in range(2)]
    models[1].energy.load_state_dict(models[0].energy.state_dict())
    shown = [(images(4, 24), LABELS)]
    before = [parameter.clone() for parameter in models[0].parameters()]
    results = [method.prepare(model, shown, progress=False) for model in models]
    assert results[0] == results[1]
    assert results[0]["steps"] == 2, "a single batch is repeated"
    for (name, new), old, other in zip(models[0].named_parameters(), before, models[1].parameters(), strict=True):
        assert torch.equal(new, other), name
        assert torch.equal(new, old) == new.requires_grad == name.startswith("base."), name


@pytest.mark.parametrize("tuned", [False, True])
def test_the_task_trains_the_energies_only_if_they_are_tuned(tuned: bool):
    method = Canon(configurations=9, tuned=tuned)
    model = randomise(method.build(cnn()))
    method.losses(model, images(), LABELS, cross_entropy, draws())["loss"].backward()
    assert all((p.grad is not None and bool(p.grad.any())) == tuned for p in model.energy.parameters())
    assert all(p.grad.any() for p in model.base.parameters())


def test_energies_that_learn_nothing_are_warned_about(caplog: pytest.LogCaptureFixture):
    method = Canon(configurations=25, learning_steps=1)
    model = method.build(cnn())
    found = method.prepare(model, [torch.zeros(64, 3, 16, 16)], progress=False)
    assert found["undone"] < 0.08
    assert "raise --method.learning-steps 1" in caplog.text
    assert "energies learned in 1 steps" in describe_energies(found)
    assert "chance 4.0 %" in describe_energies(found)


def test_no_learning_is_refused_or_skipped():
    with pytest.raises(ConfigError, match="nothing trains the energies"):
        Canon(learning_steps=0).check()
    with pytest.raises(ConfigError, match=r"--method\.learning-steps is -1"):
        Canon(learning_steps=-1).check()
    method = Canon(learning_steps=0, tuned=True)
    method.check()
    assert method.prepare(method.build(cnn()), [], progress=False) is None
    with pytest.raises(DataError, match="no batch to learn energies from"):
        learn_energies(small(), [], steps=1)
