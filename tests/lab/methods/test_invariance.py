"""InvL: the task's loss and the change of the answers, both computed by hand."""

import math

import pytest
import torch
from baseline_inputs import LABELS, cnn, cross_entropy, draws, images
from torch import Tensor, nn

from localscale.errors import ConfigError
from localscale.lab.methods import InvL, RandomScaling
from localscale.lab.methods.invariance import answer_divergence
from localscale.metrics import invariance_error
from localscale.warp import unscale

KINDS = ("squared", "kl")
# Softmax gives (1/2, 1/2) and (1/4, 3/4); the second image's answers are the same.
ANSWERS = torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log() + 3.0
SCALED = torch.tensor([[0.25, 0.75], [0.2, 0.8]]).log() - 1.0


class Witness(nn.Module):
    """A network that keeps what it was shown and what it answered."""

    def __init__(self) -> None:
        super().__init__()
        self.network = cnn()

    def forward(self, x: Tensor) -> Tensor:
        self.shown, self.answer = x, self.network(x)
        return self.answer


@pytest.mark.parametrize(
    ("kind", "one_way", "other_way"),
    [
        ("squared", 0.125 / 2, 0.125 / 2),
        ("kl", 0.5 * math.log(4 / 3) / 2, (0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)) / 2),
    ],
)
def test_divergences_by_hand(kind: str, one_way: float, other_way: float):
    """The mean is over two images, one with unchanged answers; KL is from the image to the scaled image."""
    assert answer_divergence(ANSWERS, SCALED, kind).item() == pytest.approx(one_way, rel=1e-5)
    assert answer_divergence(SCALED, ANSWERS, kind).item() == pytest.approx(other_way, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_both_answers_are_pulled_together(kind: str):
    """Both sides get a gradient."""
    sides = [ANSWERS.clone().requires_grad_(), SCALED.clone().requires_grad_()]
    answer_divergence(*sides, kind).backward()
    assert all(side.grad[0].abs().min() > 0.01 for side in sides)
    assert all(side.grad[1].abs().max() < 1e-6 for side in sides)


def test_the_squared_one_is_the_metric(rng: torch.Generator):
    logits, scaled = torch.randn(2, 6, 5, generator=rng).unbind()
    expected = invariance_error(logits.softmax(1), scaled.softmax(1).unsqueeze(1))
    torch.testing.assert_close(answer_divergence(logits, scaled, "squared"), expected)


# The method.


@pytest.mark.parametrize("weight", [0.0, 2.5])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_tasks_plus_weight_times_divergence(kind: str, weight: float):
    """Images and scaled images pass the model in one batch; the task's loss is computed for the images only."""
    method, model = InvL(weight=weight, divergence=kind, scaling=RandomScaling(strength=2.0)), Witness()
    pictures = images()
    found = method.losses(model, pictures, LABELS, cross_entropy, draws())
    scaled = unscale(pictures, method.scaling.maps(draws(), "invariance"))
    assert torch.equal(model.shown, torch.cat((pictures, scaled)))
    assert (scaled - pictures).abs().max() > 0.1
    logits, scaled_logits = model.answer.chunk(2)
    assert found["task"] == cross_entropy(logits, LABELS)
    assert found["invariance"] == answer_divergence(logits, scaled_logits, kind)
    assert found["invariance"] > 0
    assert found["loss"] == found["task"] + weight * found["invariance"]
    assert set(found) == {"loss", "task", "invariance"}


def test_images_that_are_not_scaled_have_nothing_to_move():
    method = InvL(scaling=RandomScaling(probability=0.0))
    assert method.losses(cnn(), images(), LABELS, cross_entropy, draws())["invariance"] < 1e-12


# Settings that cannot work.


def test_unknown_divergences_name_the_near_miss():
    with pytest.raises(ConfigError, match=r"'square': did you mean squared"):
        InvL(divergence="square").check()
    with pytest.raises(ConfigError, match=r"'js': known: squared, kl$"):
        answer_divergence(ANSWERS, SCALED, "js")


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_a_weight_below_zero_is_refused(weight: float):
    InvL(weight=0.0).check()
    with pytest.raises(ConfigError, match=f"--method.weight is {weight}"):
        InvL(weight=weight).check()


def test_a_scaling_that_cannot_be_drawn_is_refused():
    with pytest.raises(ConfigError, match="probability is 2"):
        InvL(scaling=RandomScaling(probability=2.0)).check()
