"""IoU of images against counting by hand, and the equivariance error of a perfect segmenter."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torchmetrics.functional.classification import multiclass_jaccard_index

from localscale.errors import ConfigError, ShapeError
from localscale.maps import Map, identity_map, map_from_logits, random_map
from localscale.metrics import VARIANTS, equivariance_error, equivariance_floor, image_iou
from localscale.warp import scale

NAN = math.nan


def rows(*of: list[int]) -> Tensor:
    """Return label maps of one row each."""
    return torch.tensor(of).unsqueeze(1)


def nearly(*expected: float):
    return pytest.approx(list(expected), rel=1e-6, nan_ok=True)


# IoU of an image.


def slow_iou(predicted: Tensor, labels: Tensor, classes: int, background: int | None, ignore_index: int | None) -> list:
    """Compare sets of pixels, one image and one class after the other."""
    found = []
    for guess, truth in zip(predicted.flatten(1).tolist(), labels.flatten(1).tolist(), strict=True):
        counted = [pixel for pixel, label in enumerate(truth) if label != ignore_index]
        terms = []
        for c in range(classes):
            true, predicted_as_c = {p for p in counted if truth[p] == c}, {p for p in counted if guess[p] == c}
            if c != background and true:
                terms.append(len(true & predicted_as_c) / len(true | predicted_as_c))
        found.append(sum(terms) / len(terms) if terms else NAN)
    return found


def test_image_iou_by_hand():
    """Class 1 has IoU 2/3, class 2 has 1/2; class 3 is only predicted and class 4 is absent, so both are left out."""
    labels = rows([0, 1, 1, 2, 2, 0])
    predicted = rows([1, 1, 1, 3, 2, 0])
    assert image_iou(predicted, labels, 5).tolist() == nearly((2 / 3 + 1 / 2) / 2)


def test_an_image_without_objects_is_nan_whatever_is_predicted():
    labels, predicted = rows([0, 0], [0, 0], [1, 0]), rows([0, 0], [1, 1], [1, 1])
    assert image_iou(predicted, labels, 2).tolist() == nearly(NAN, NAN, 1 / 2)


def test_any_class_can_be_the_background():
    labels, predicted = rows([0, 0, 1, 1]), rows([0, 0, 0, 1])
    assert image_iou(predicted, labels, 2).tolist() == nearly(1 / 2)
    assert image_iou(predicted, labels, 2, background=1).tolist() == nearly(2 / 3)
    assert image_iou(predicted, labels, 2, background=None).tolist() == nearly((1 / 2 + 2 / 3) / 2)


def test_ignored_pixels_are_not_counted():
    """They count neither as missed, nor as wrongly predicted, nor as objects."""
    labels, predicted = rows([1, 1, 9, 9], [9, 0, 0, 0], [9, 9, 9, 9]), rows([1, 0, 1, 2], [1, 0, 0, 0], [1, 1, 1, 1])
    assert image_iou(predicted, labels, 3, ignore_index=9).tolist() == nearly(1 / 2, NAN, NAN)
    as_minus = torch.where(labels == 9, -100, labels)
    assert image_iou(predicted, as_minus, 3, ignore_index=-100).tolist() == nearly(1 / 2, NAN, NAN)


def test_labels_outside_the_classes_are_never_right():
    """A label outside the classes lowers the predicted class's IoU; a prediction outside lowers the label's."""
    assert image_iou(rows([1, 1, 7]), rows([1, -100, 7]), 2).tolist() == nearly(1 / 2)
    assert image_iou(rows([1, -1, 7]), rows([1, 1, 1]), 2).tolist() == nearly(1 / 3)


def test_uint8_labels_are_compared_as_integers():
    """In uint8, −100 would be 156."""
    labels = rows([156, 1]).to(torch.uint8)
    assert image_iou(labels, labels, 200, ignore_index=-100).tolist() == nearly(1)
    predicted = rows([1, 1]).to(torch.uint8)
    assert image_iou(predicted, labels, 200, ignore_index=-100).tolist() == nearly(1 / 4)
    assert image_iou(predicted, rows([255, 1]).to(torch.uint8), 200, ignore_index=255).tolist() == nearly(1)


@given(st.data())
def test_image_iou_matches_sets_of_pixels(data: st.DataObject):
    classes = data.draw(st.integers(1, 5), label="classes")
    images, height, width = (data.draw(st.integers(low, high)) for low, high in ((0, 3), (1, 3), (1, 4)))
    background = data.draw(st.none() | st.integers(0, classes - 1), label="background")
    ignore_index = data.draw(st.sampled_from((None, -100, 0, classes - 1, 255)), label="ignore_index")
    value = st.integers(0, classes - 1) | st.sampled_from((-100, 255))
    pixels = images * height * width
    predicted, labels = (
        torch.tensor(data.draw(st.lists(value, min_size=pixels, max_size=pixels)), dtype=torch.int64).view(
            images, height, width
        )
        for _ in range(2)
    )
    found = image_iou(predicted, labels, classes, background=background, ignore_index=ignore_index)
    assert found.shape == (images,)
    assert found.tolist() == nearly(*slow_iou(predicted, labels, classes, background, ignore_index))


def test_image_iou_matches_torchmetrics_if_all_classes_are_present(rng: torch.Generator):
    labels, predicted = (torch.randint(0, 4, (3, 8, 8), generator=rng) for _ in range(2))
    for n, found in enumerate(image_iou(predicted, labels, 4)):
        terms = multiclass_jaccard_index(predicted[n], labels[n], 4, average=None)
        assert found.item() == pytest.approx(terms[1:].mean().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("predicted", "labels"),
    [((2, 4, 4), (2, 4, 5)), ((2, 3, 4, 4), (2, 4, 4)), ((4, 4), (4, 4)), ((1, 4, 4), (2, 4, 4))],
)
def test_image_iou_names_the_shapes(predicted: tuple[int, ...], labels: tuple[int, ...]):
    with pytest.raises(ShapeError, match=re.escape(f"predicted has shape {predicted} and labels {labels}; expected")):
        image_iou(torch.zeros(predicted).long(), torch.zeros(labels).long(), 3)


def test_image_iou_names_what_else_is_wrong():
    labels = rows([0, 1])
    with pytest.raises(ShapeError, match=r"^predicted has dtype torch.float32; expected integers"):
        image_iou(labels.float(), labels, 2)
    with pytest.raises(ShapeError, match=r"^labels has dtype torch.float32; expected integers"):
        image_iou(labels, labels.float(), 2)
    with pytest.raises(ConfigError, match=r"^classes is 0; expected .* at least 1"):
        image_iou(labels, labels, 0)
    for background in (-1, 2):
        with pytest.raises(
            ConfigError, match=f"background is {background}; expected one of the classes 0 … 1, or None"
        ):
            image_iou(labels, labels, 2, background=background)


# The floor.


def middle_to_a_quarter() -> Map:
    """Return a map whose l⁻¹ reads positions 0, 2, 8/3, 10/3, 4 of a row of five pixels."""
    return map_from_logits(torch.tensor([[1.0, 3.0]]).log(), torch.zeros(1, 1), family="separable")


def test_the_floor_by_hand():
    """Labels 0 0 0 1 1: at 8/3, bilinear is (1/3, 2/3) and nearest says 1; everywhere else they agree."""
    labels, m = rows([0, 0, 0, 1, 1]), middle_to_a_quarter()
    assert equivariance_floor(labels, m, 2).item() == pytest.approx(2 / 9 / 5, rel=1e-4)
    assert equivariance_floor(labels, m, 7).item() == pytest.approx(2 / 9 / 5, rel=1e-4)
    length = math.sqrt(2) / 3
    assert equivariance_floor(labels, m, 2, variant="l2").item() == pytest.approx(length / 5, rel=1e-4)
    relative = length / (math.sqrt(5) / 3)
    assert equivariance_floor(labels, m, 2, variant="relative").item() == pytest.approx(relative / 5, rel=1e-4)


def test_a_label_outside_the_classes_is_a_vector_of_zeros():
    """At 8/3, (1/3, 0) is compared with zeros, or (0, 2/3) with (0, 1); zeros against zeros have no error."""
    m = middle_to_a_quarter()
    for missing in (-100, 255):
        at_the_end, at_the_start = rows([0, 0, 0, missing, missing]), rows([missing, missing, missing, 1, 1])
        for labels in (at_the_end, at_the_start):
            assert equivariance_floor(labels, m, 2).item() == pytest.approx(1 / 9 / 5, rel=1e-4)
        relative = [equivariance_floor(x, m, 2, variant="relative").item() for x in (at_the_end, at_the_start)]
        assert relative == pytest.approx([1 / 5, 1 / 2 / 5], rel=1e-4)
        nowhere = torch.full((1, 4, 4), missing)
        assert [equivariance_floor(nowhere, m, 2, variant=variant).item() for variant in VARIANTS] == [0, 0, 0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_floor_is_zero_under_the_identity_and_for_one_class(variant: str, rng: torch.Generator):
    labels = torch.randint(0, 5, (2, 9, 9), generator=rng)
    assert equivariance_floor(labels, identity_map(), 5, variant=variant) == 0
    m = random_map(2, 5, strength=1.0, generator=rng)
    assert equivariance_floor(torch.zeros_like(labels), m, 1, variant=variant).item() == pytest.approx(0, abs=1e-6)
    assert equivariance_floor(labels, m, 5, variant=variant) > 0.1


@pytest.mark.parametrize(("variant", "dtype"), [*zip(VARIANTS, (torch.uint8, torch.int32, torch.int64), strict=True)])
def test_the_floor_is_eque_of_one_hot_masks(variant: str, dtype: torch.dtype, rng: torch.Generator):
    labels, m = torch.randint(0, 4, (3, 7, 9), generator=rng), random_map(3, 4, strength=1.0, generator=rng)

    def masks(of: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(of, 4).movedim(-1, 1).float()

    expected = equivariance_error(masks(labels), masks(scale(labels, m, mode="nearest")), m, variant=variant)
    found = equivariance_floor(labels.to(dtype), m, 4, variant=variant)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_the_floor_names_what_is_wrong():
    labels, m = rows([0, 1]), identity_map()
    with pytest.raises(ShapeError, match=r"^labels have shape \(1, 1, 1, 2\); expected \(images, height, width\)$"):
        equivariance_floor(labels.unsqueeze(0), m, 2)
    with pytest.raises(ShapeError, match=r"^labels has dtype torch.float32; expected integers"):
        equivariance_floor(labels.float(), m, 2)
    with pytest.raises(ConfigError, match=r"^classes is 0; expected .* at least 1"):
        equivariance_floor(labels, m, 0)
    with pytest.raises(ConfigError, match=r"^no variant 'square': did you mean squared\?$"):
        equivariance_floor(labels, m, 2, variant="square")


# Networks against the floor.


def regions(images: int = 2, size: int = 64, cells: int = 4) -> Tensor:
    """Return label maps of square regions in four classes."""
    coarse = torch.randint(0, 4, (images, cells, cells), generator=torch.Generator().manual_seed(1))
    return coarse.repeat_interleave(size // cells, 1).repeat_interleave(size // cells, 2)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_pointwise_network_is_near_the_floor_and_others_far_above(variant: str, rng: torch.Generator):
    """Images show their labels, so a pointwise network is equivariant up to interpolation."""
    labels, m = regions(), random_map(2, 5, strength=1.0, generator=rng)
    image = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1).float()
    kernel = torch.randn(4, 4, 15, 15, generator=rng)
    stripes = torch.nn.functional.one_hot(torch.arange(64) // 4 % 4, 4).T.unsqueeze(1)

    def pointwise(x: Tensor) -> Tensor:
        return (12 * x).softmax(1)

    def wide_convolution(x: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, kernel, padding="same").softmax(1)

    def position_dependent(x: Tensor) -> Tensor:
        return (12 * (x + stripes)).softmax(1)

    def error(network) -> float:
        return equivariance_error(network(image), network(scale(image, m)), m, variant=variant).item()

    floor = equivariance_floor(labels, m, 4, variant=variant).item()
    assert floor / 3 < error(pointwise) < 1.5 * floor < 0.2
    assert error(wide_convolution) > 5 * floor
    assert error(position_dependent) > 5 * floor


# On a GPU.


def test_no_host_synchronisation():
    """Fake tensors have no values, so ``.item()``, boolean indexing and ``bincount`` would raise."""
    with FakeTensorMode():
        labels = torch.zeros(2, 8, 8, dtype=torch.int64, device="cuda")
        m = random_map(2, 4).to("cuda")
        found = [
            image_iou(labels, labels, 3, ignore_index=ignored, background=b) for ignored in (None, 1) for b in (0, None)
        ]
        found += [equivariance_floor(labels, m, 3, variant=variant) for variant in VARIANTS]
        assert {str(value.device) for value in found} == {"cuda:0"}
