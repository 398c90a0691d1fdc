"""One step interface for all methods of the tables."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from baseline_inputs import LABELS, cross_entropy, dec, draws, images, randomise, vit
from torch import Tensor, nn

from localscale.lab.methods import (
    Canon,
    CentreZoom,
    FineTune,
    InvL,
    Method,
    RandomScaling,
    RandomWarp,
    TrainingStep,
    Zoom,
)

STRONG = RandomScaling(strength=2.0)
RANDOM = {
    "InvL": InvL(scaling=STRONG),
    "InvL, KL": InvL(divergence="kl", scaling=STRONG),
    "RandomWarp": RandomWarp(scaling=STRONG),
    "DEC, supervised": dec(update="compose", supervision=1.0, prior=0.1, supervised_scaling=STRONG),
}
METHODS: dict[str, Method] = {
    "FineTune": FineTune(),
    "Canon": Canon(configurations=9, tuned=True),
    "DEC": dec(sites=("input", "blocks.0")),
    "DEC, separable": dec(family="separable", update="compose"),
    "Zoom": Zoom(grid=9),
    "CentreZoom": CentreZoom(magnification=1.0),
    "Optim": dec(update="descent", gradient="unrolled"),
} | RANDOM
EACH = pytest.mark.parametrize("name", METHODS)
INDEX = torch.tensor([4, 11, 7])


def step_of(name: str) -> TrainingStep:
    """Return the training step of a method, on a model whose canonicalizers are not the identity."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = METHODS[name].build(vit())
    if name in ("Canon", "Zoom") or isinstance(METHODS[name], type(dec())):
        randomise(model, std=1.0)
    return TrainingStep(model, METHODS[name], cross_entropy)


@EACH
def test_a_step_returns_finite_scalars_and_a_loss_to_minimise(name: str):
    METHODS[name].check()
    step = step_of(name)
    found = step(images(), LABELS, 0, INDEX)
    assert all(value.shape == () and torch.isfinite(value) for value in found.values())
    found["loss"].backward()
    # The bias of a saliency is lost in its softmax.
    learning = [p for key, p in step.named_parameters() if key != "model.saliency.to_saliency.bias"]
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in learning)


@EACH
def test_the_step_holds_every_parameter_of_its_model(name: str):
    """Data parallel and autocast wrap the step, so it must hold all parameters."""
    step = step_of(name)
    assert {f"model.{key}" for key in step.model.state_dict()} == set(step.state_dict())
    assert len(list(step.parameters())) >= len(list(vit().parameters()))


@EACH
def test_the_backbones_answers_come_first(name: str):
    built, backbone = METHODS[name].build(vit()), vit()
    if name == "Zoom":  # its grid is a quotient of sums
        torch.testing.assert_close(built(images()), backbone(images()), atol=1e-5, rtol=1e-4)
    else:
        assert torch.equal(built(images()), backbone(images()))


@EACH
def test_seed_and_samples_decide_everything(name: str):
    """Neither torch's generator nor earlier draws matter."""
    step = step_of(name)
    once = step(images(), LABELS, 3, INDEX)
    torch.manual_seed(12345)
    again = step(images(), LABELS, 3, INDEX)
    assert all(torch.equal(again[key], value) for key, value in once.items())
    for other in (step(images(), LABELS, 4, INDEX), step(images(), LABELS, 3, INDEX + 1)):
        assert (other["loss"] != once["loss"]) == (name in RANDOM)


@EACH
def test_the_order_of_a_batch_does_not_matter(name: str):
    """The random numbers of a sample depend on its number, not on its position in the batch."""
    step, order = step_of(name), torch.tensor([2, 0, 1])
    straight = step(images(), LABELS, 0, INDEX)
    shuffled = step(images()[order], LABELS[order], 0, INDEX[order])
    for key, value in straight.items():
        torch.testing.assert_close(shuffled[key], value, atol=1e-5, rtol=1e-4)


@EACH
def test_autocast_rounds_the_loss_and_not_the_maps(name: str):
    """The scalars that are computed from the image's map stay bitwise equal."""
    step = step_of(name)
    exact = step(images(), LABELS, 0, INDEX)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = step(images(), LABELS, 0, INDEX)
    for key, value in exact.items():
        if key.startswith("input/") or key in ("prior", "supervision"):
            assert torch.equal(found[key], value), key
        torch.testing.assert_close(found[key], value, atol=0.02, rtol=0.01)
    found["loss"].backward()
    assert all(torch.isfinite(p.grad).all() for p in step.parameters())


@EACH
def test_soft_labels_weigh_the_losses_of_their_classes(name: str):
    step = step_of(name)

    def task(labels: Tensor) -> Tensor:
        found = step(images(), labels, 0, INDEX)
        return found.get("task", found["loss"])

    other = torch.tensor([1, 1, 2])
    mixed = 0.3 * F.one_hot(LABELS, 4) + 0.7 * F.one_hot(other, 4)
    torch.testing.assert_close(task(F.one_hot(LABELS, 4).float()), task(LABELS))
    torch.testing.assert_close(task(mixed), 0.3 * task(LABELS) + 0.7 * task(other))


def test_fine_tuning_is_the_criterion_on_the_backbones_answers():
    backbone = vit()
    assert FineTune().build(backbone) is backbone
    found = FineTune().losses(backbone, images(), LABELS, cross_entropy, draws())
    assert found == {"loss": cross_entropy(backbone(images()), LABELS)}


def test_a_method_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        InvL().weight = 2.0  # type: ignore[misc]


@pytest.mark.parametrize("method", [FineTune(), Canon()])
def test_the_tasks_loss_alone_is_what_is_minimised_by_default(method: Method):
    model = method.build(vit())
    found = TrainingStep(model, method, cross_entropy)(images(), LABELS, 0, INDEX)
    assert set(found) == {"loss"}
    assert found["loss"] == cross_entropy(model(images()), LABELS)


def test_a_method_of_ones_own_needs_losses_only():
    class Twice(Method):
        def losses(self, model: nn.Module, images: Tensor, labels: Tensor, criterion, draws) -> dict[str, Tensor]:
            return {"loss": 2 * criterion(model(images), labels)}

    backbone = vit()
    step = TrainingStep(Twice().build(backbone), Twice(), cross_entropy)
    assert step(images(), LABELS, 0, INDEX)["loss"] == 2 * cross_entropy(backbone(images()), LABELS)
