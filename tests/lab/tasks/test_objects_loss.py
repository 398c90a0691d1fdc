"""The loss per pixel, compared with torch's cross entropy on the pixels that are not ignored."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.lab.tasks.objects import IGNORED, pixel_cross_entropy

CLASSES = 5


def answers(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits ``(3, 5, 6, 7)`` and labels, a third of them background."""
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3, CLASSES, 6, 7, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (3, 6, 7), generator=rng)
    return logits.to(dtype), labels * (torch.rand(3, 6, 7, generator=rng) > 0.2)


def ignoring(labels: Tensor) -> Tensor:
    return labels.masked_fill(torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)) < 0.3, IGNORED)


def loss(logits: Tensor, labels: Tensor, weight: float = 0.1, smoothing: float = 0.0) -> Tensor:
    return pixel_cross_entropy(logits, labels, background_weight=weight, label_smoothing=smoothing)


def oracle(logits: Tensor, labels: Tensor, weight: float = 0.1) -> float:
    """Return Σ wₗ·(−log pₗ) / Σ wₗ over the pixels that are not ignored, one at a time."""
    total = weights = 0.0
    for n, i, j in (labels != IGNORED).nonzero().tolist():
        label = int(labels[n, i, j])
        w = weight if label == 0 else 1.0
        total -= w * float(logits[n, :, i, j].log_softmax(0)[label])
        weights += w
    return total / weights


@pytest.mark.parametrize("weight", [0.1, 1.0, 3.0, 0.0])
def test_the_loss_is_the_weighted_mean_over_pixels_that_count(weight: float):
    logits, labels = answers()
    for truth in (labels, ignoring(labels)):
        assert loss(logits, truth, weight).item() == pytest.approx(oracle(logits, truth, weight), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_torchs_weighted_mean(smoothing: float):
    logits, labels = answers()
    weights = torch.tensor([0.1, 1, 1, 1, 1], dtype=torch.float64)
    for truth in (labels, ignoring(labels)):
        expected = F.cross_entropy(logits, truth, weights, ignore_index=IGNORED, label_smoothing=smoothing)
        assert loss(logits, truth, smoothing=smoothing).item() == pytest.approx(expected.item(), rel=1e-6)


def test_ignored_pixels_count_for_nothing():
    """Neither the loss nor its gradient depends on the answers at ignored pixels."""
    logits, labels = answers(torch.float32)
    truth = ignoring(labels)
    out = (truth == IGNORED).unsqueeze(1)
    other = torch.where(out, 50.0, logits).requires_grad_()
    found = loss(other, truth)
    assert found.item() == pytest.approx(loss(logits, truth).item(), rel=1e-6)
    (slope,) = torch.autograd.grad(found, other)
    assert not slope[out.expand_as(slope)].any()
    assert (slope.abs().sum(1)[~out.squeeze(1)] > 0).all()


def test_a_background_pixel_pulls_a_tenth_as_much():
    logits = torch.zeros(1, CLASSES, 1, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(logits, torch.tensor([[[0, 3]]])), logits)
    background, thing = slope[0, :, 0].norm(dim=0)
    assert background.item() == pytest.approx(0.1 * thing.item(), rel=1e-5)


@pytest.mark.parametrize(("label", "weight", "smoothing"), [(IGNORED, 0.1, 0.0), (IGNORED, 0.1, 0.1), (0, 0.0, 0.1)])
def test_a_batch_in_which_nothing_counts_is_zero_and_pulls_nowhere(label: int, weight: float, smoothing: float):
    logits = answers(torch.float32)[0].requires_grad_()
    found = loss(logits, torch.full((3, 6, 7), label), weight, smoothing)
    assert found == 0
    (slope,) = torch.autograd.grad(found, logits)
    assert not slope.any()
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("label", [0, 2])
def test_a_batch_of_one_class_is_its_plain_mean(label: int):
    """If all pixels have the same weight, it cancels."""
    logits, labels = answers()[0], torch.full((3, 6, 7), label)
    assert loss(logits, labels).item() == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-6)


def test_half_precision_answers_are_judged_in_single():
    logits, labels = answers(torch.bfloat16)
    found = loss(logits, labels)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(oracle(logits.double(), labels), rel=1e-5)
