"""Every variant of InvE and EquE against a calculation by hand (paper, Eqs. inv_err and eq:eque)."""

import math
import re

import pytest
import torch

from localscale.errors import ConfigError, ShapeError
from localscale.maps import identity_map, map_from_logits, random_map
from localscale.metrics import VARIANTS, equivariance_error, invariance_error, per_scale_accuracy
from localscale.warp import scale

# InvE.

REFERENCE = torch.tensor([[0.6, 0.8], [1.0, 0.0]])
ANSWERS = torch.tensor([[[0.6, 0.8], [0.6, 0.3], [0.2, 0.5]], [[0.0, 0.0], [1.0, 1.0], [0.25, 0.0]]])
DISTANCES = [0.0, 0.5, 0.5, 1.0, 1.0, 0.75]


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("squared", sum(d * d for d in DISTANCES) / 6),
        ("l2", sum(DISTANCES) / 6),
        ("relative", sum(DISTANCES) / 6),  # both references have norm one
    ],
)
def test_invariance_error_by_hand(variant: str, expected: float):
    assert invariance_error(REFERENCE, ANSWERS, variant=variant).item() == pytest.approx(expected, rel=1e-6)


def test_relative_divides_by_the_norm_of_the_reference_alone():
    """3-4-5: distances 5 and 5 from references of norm 10 and 2.5."""
    reference = torch.tensor([[6.0, 8.0], [1.5, 2.0]])
    answers = torch.tensor([[[9.0, 12.0]], [[4.5, 6.0]]])
    assert invariance_error(reference, answers, variant="relative").item() == pytest.approx((0.5 + 2.0) / 2)
    assert invariance_error(reference, answers, variant="l2").item() == pytest.approx(5.0)
    assert invariance_error(reference, answers, variant="squared").item() == pytest.approx(25.0)


def test_equal_answers_have_error_zero_and_opposite_ones_two():
    certain = torch.eye(3)
    assert invariance_error(certain, certain.unsqueeze(1).expand(-1, 4, -1)) == 0
    assert invariance_error(certain, certain.roll(1, dims=0).unsqueeze(1)) == 2
    assert invariance_error(certain, certain.roll(1, dims=0).unsqueeze(1), variant="l2").item() == pytest.approx(2**0.5)


def test_the_reference_is_not_left_out_of_the_variants():
    """With the reference among V variants the mean shrinks by (V − 1)/V: 6/7 in the published ImageNet tables."""
    with_reference = torch.cat((REFERENCE.unsqueeze(1), ANSWERS), dim=1)
    ratio = invariance_error(REFERENCE, with_reference) / invariance_error(REFERENCE, ANSWERS)
    assert ratio.item() == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("reference", "variants"),
    [((2, 3), (2, 3)), ((2, 3), (2, 4, 5)), ((2, 3), (3, 4, 3)), ((2, 1, 3), (2, 4, 3)), ((2, 3), (2, 0, 3))],
)
def test_invariance_error_names_the_shapes(reference: tuple[int, ...], variants: tuple[int, ...]):
    with pytest.raises(
        ShapeError, match=re.escape(f"reference has shape {reference} and variants {variants}; expected")
    ):
        invariance_error(torch.zeros(reference), torch.zeros(variants))


# EquE.


def test_equivariance_error_by_hand():
    """Under the identity, one pixel of four differs by (0.3, −0.4), so the squared error is 0.25/4."""
    answer = torch.tensor([0.6, 0.8]).view(1, 2, 1, 1).repeat(1, 1, 2, 2)
    moved = answer.clone()
    moved[0, :, 1, 0] += torch.tensor([0.3, -0.4])
    m = identity_map()
    assert equivariance_error(answer, moved, m).item() == pytest.approx(0.25 / 4)
    assert equivariance_error(answer, moved, m, variant="l2").item() == pytest.approx(0.5 / 4)
    assert equivariance_error(2 * answer, 2 * moved, m, variant="l2").item() == pytest.approx(1.0 / 4)
    assert equivariance_error(2 * answer, 2 * moved, m, variant="relative").item() == pytest.approx(0.5 / 4)


def test_equivariance_error_scales_the_answer_by_hand():
    """A row of five pixels whose middle goes to 1/4: l⁻¹ reads positions 0, ½, ⅔, ⅚, 1 of the row."""
    m = map_from_logits(torch.tensor([[1.0, 3.0]]).log(), torch.zeros(1, 1), family="separable")
    row = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    answer = torch.stack((row, -row)).view(1, 2, 1, 5)
    scaled = torch.tensor([0.0, 2.0, 8 / 3, 10 / 3, 4.0])
    expected = torch.stack((scaled, -scaled)).view(1, 2, 1, 5)
    assert equivariance_error(answer, expected, m).item() == pytest.approx(0.0, abs=1e-10)
    by_hand = 2 * sum((s - r) ** 2 for s, r in zip(scaled.tolist(), row.tolist(), strict=True)) / 5
    assert equivariance_error(answer, answer, m).item() == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_pointwise_model_is_equivariant_and_a_constant_one_is_not(variant: str, rng: torch.Generator):
    images, m = torch.rand(2, 3, 12, 12, generator=rng), random_map(2, 5, strength=1.0, generator=rng)
    assert equivariance_error(images, scale(images, m), m, variant=variant) == 0
    assert equivariance_error(images, images, m, variant=variant) > 0.01


def test_each_image_has_its_own_map(rng: torch.Generator):
    images, m = torch.rand(2, 3, 12, 12, generator=rng), random_map(2, 5, strength=1.0, generator=rng)
    swapped = scale(images.flip(0), m).flip(0)
    assert equivariance_error(images, swapped, m) > 0.001


@pytest.mark.parametrize(("one", "two"), [((2, 3, 4), (2, 3, 4)), ((2, 3, 4, 4), (2, 3, 4, 5)), ((2, 3), (2, 3, 4, 4))])
def test_equivariance_error_names_the_shapes(one: tuple[int, ...], two: tuple[int, ...]):
    with pytest.raises(ShapeError, match=re.escape(f"masks have shapes {one} and {two}; expected")):
        equivariance_error(torch.zeros(one), torch.zeros(two), identity_map())


# Both.


def test_unknown_variants_name_the_near_miss():
    mask = torch.rand(1, 2, 3, 3)
    with pytest.raises(ConfigError, match=r"^no variant 'square': did you mean squared\?$"):
        invariance_error(REFERENCE, ANSWERS, variant="square")
    with pytest.raises(ConfigError, match=r"^no variant 'mean': known: squared, l2, relative$"):
        equivariance_error(mask, mask, identity_map(), variant="mean")


def test_errors_can_be_used_as_losses():
    reference, answers = REFERENCE.clone().requires_grad_(), ANSWERS.clone().requires_grad_()
    invariance_error(reference, answers).backward()
    torch.testing.assert_close(answers.grad, 2 * (ANSWERS - REFERENCE.unsqueeze(1)) / 6)
    torch.testing.assert_close(reference.grad, -answers.grad.sum(dim=1))


# Accuracy by scale.


def test_per_scale_accuracy_by_hand():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 5.0, 1.0], [0.0, 0.0, 1.0], [3.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    labels = torch.tensor([0, 1, 0, 0, 2])
    scales = torch.tensor([0.5, 2.0, 0.5, 0.5, 1.0])
    accuracy = per_scale_accuracy(logits, labels, scales)
    assert list(accuracy) == [0.5, 1.0, 2.0], "in order"
    assert accuracy == {0.5: pytest.approx(2 / 3), 1.0: 0.0, 2.0: 1.0}


def test_per_scale_accuracies_average_to_the_accuracy(rng: torch.Generator):
    logits = torch.randn(200, 5, generator=rng)
    labels, scales = (torch.randint(0, 5, (200,), generator=rng) for _ in range(2))
    accuracy = per_scale_accuracy(logits, labels, scales)
    total = sum(accuracy[float(s)] * int((scales == s).sum()) for s in scales.unique()) / 200
    assert math.isclose(total, float((logits.argmax(dim=1) == labels).double().mean()), rel_tol=1e-12)


@pytest.mark.parametrize(
    ("logits", "labels", "scales"),
    [((4,), (4,), (4,)), ((4, 3), (4, 1), (4,)), ((4, 3), (4,), (3,)), ((4, 3), (4,), (4, 1)), ((2, 4, 3), (2,), (2,))],
)
def test_per_scale_accuracy_names_the_shapes(logits, labels, scales):
    with pytest.raises(ShapeError, match=re.escape(f"logits have shape {logits}, labels {labels}, scales {scales}")):
        per_scale_accuracy(torch.zeros(logits), torch.zeros(labels), torch.zeros(scales))
