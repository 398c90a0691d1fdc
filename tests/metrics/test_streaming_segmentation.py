"""Streaming segmentation metrics over batches and processes equal the functions on the whole dataset."""

import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_processes import batches, in_two_processes
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from localscale.errors import ConfigError, MapError, ShapeError
from localscale.maps import Map, identity_map, map_from_logits, random_map
from localscale.metrics import (
    VARIANTS,
    EquivarianceError,
    EquivarianceFloor,
    GroupConsistency,
    SmallObjectIoU,
    equivariance_error,
    equivariance_floor,
    image_iou,
    mean_iou,
)

CLASSES = 4
IGNORED = -100
BEFORE_DATA = pytest.warns(UserWarning, match="was called before the ``update`` method")


def rows(*of: list[int]) -> Tensor:
    """Return label maps of one row each."""
    return torch.tensor(of).unsqueeze(1)


# By hand.


def test_mean_iou_by_hand_over_batches():
    """Over both batches class 0 has IoU 3/5 and class 1 has 2/4; the mean over batches would differ."""
    metric = mean_iou(2)
    metric.update(rows([0, 0, 0, 1]), rows([0, 0, 0, 0]))
    metric.update(rows([0, 1, 1]), rows([1, 1, 1]))
    assert metric.compute().item() == pytest.approx((3 / 5 + 2 / 4) / 2)


def test_the_iou_of_small_objects_by_hand_over_batches():
    """Objects have 1, 2, 2 and 4 pixels and the IoUs 1, 1/2, 0 and 1/4; the background is none."""
    metric = SmallObjectIoU(3, pixels=5, ignore_index=IGNORED)
    metric.update(rows([1, 2, 0, 0, 0], [0, 0, 0, 0, 1]), rows([1, 2, 2, 0, 0], [0, 0, 0, 2, 2]))
    assert metric.compute().item() == pytest.approx((1 + 1 / 2 + 0) / 3), "the median is 2 pixels"
    metric.update(rows([1, 0, 0, 0, 2]), rows([1, 1, 1, 1, IGNORED]))
    assert metric.compute().item() == pytest.approx((1 + 1 / 2 + 0) / 3)
    metric.update(rows([2, 0, 0, 0]), rows([2, 0, 0, 0]))
    assert metric.compute().item() == pytest.approx((2 + 1 / 2 + 0) / 4)


def test_the_iou_of_small_objects_without_objects():
    metric = SmallObjectIoU(3, pixels=4)
    metric.update(rows([1, 2, 0, 0]), rows([0, 0, 0, 0]))
    assert math.isnan(metric.compute())
    with pytest.raises(ShapeError, match="at most 4 pixels"):
        metric.update(rows([0] * 5), rows([0] * 5))


def test_mean_iou_takes_logits_and_label_maps(rng: torch.Generator):
    logits, labels = torch.randn(2, 3, 5, 5, generator=rng), torch.randint(0, 3, (2, 5, 5), generator=rng)
    of_logits, of_maps = mean_iou(3), mean_iou(3)
    of_logits.update(logits, labels)
    of_maps.update(logits.argmax(1), labels)
    assert 0 < of_logits.compute() == of_maps.compute() < 1


def test_mean_iou_without_the_background_by_hand():
    """Class 1 has IoU 1/3, because a background pixel is taken for it, and class 2 IoU 1/2; class 3 is nowhere."""
    metric = mean_iou(4, background=0, ignore_index=IGNORED)
    metric.update(rows([1, 1, 0, 0, 2, 1]), rows([1, 0, 0, 0, 2, 2]))
    metric.update(rows([0, 1]), rows([0, IGNORED]))
    assert metric.compute().item() == pytest.approx((1 / 3 + 1 / 2) / 2)
    with pytest.raises(ConfigError, match="background is 4; expected one of the classes 0 … 3"):
        mean_iou(4, background=4)


def test_mean_iou_without_objects_is_nan():
    metric = mean_iou(2, background=0)
    metric.update(rows([0, 0]), rows([0, 0]))
    assert math.isnan(metric.compute())


def test_an_absent_class_is_left_out_and_one_only_predicted_has_iou_zero():
    absent, predicted, truth_alone = mean_iou(3), mean_iou(3), mean_iou(3)
    absent.update(rows([0, 1]), rows([0, 1]))
    assert absent.compute() == 1.0
    predicted.update(rows([0, 2, 1, 1]), rows([0, 0, 1, 1]))
    assert predicted.compute().item() == pytest.approx((1 / 2 + 1 + 0) / 3)
    truth_alone.update(rows([0, 0, 1, 1]), rows([0, 2, 1, 1]))
    assert truth_alone.compute().item() == pytest.approx((1 / 2 + 1 + 0) / 3)


@pytest.mark.parametrize("ignored", [-100, 255, 1])
def test_mean_iou_ignores_pixels(ignored: int):
    """A class that is predicted only at ignored pixels is left out of the mean."""
    metric = mean_iou(3, ignore_index=ignored)
    metric.update(rows([0, 2, 0, 1]), rows([0, 2, 2, ignored]))
    assert metric.compute().item() == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_mean_iou_of_a_single_class_and_of_ignored_pixels_alone():
    single, nothing = mean_iou(1), mean_iou(2, ignore_index=IGNORED)
    single.update(rows([0, 0]), rows([0, 0]))
    nothing.update(rows([0, 1]), rows([IGNORED, IGNORED]))
    assert single.compute() == 1.0
    assert math.isnan(nothing.compute())


def test_images_of_all_sizes_have_equal_weight():
    metric = EquivarianceError()
    metric.update(torch.zeros(1, 2, 2, 2), torch.ones(1, 2, 2, 2), identity_map())
    metric.update(torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8), identity_map())
    assert metric.compute() == 1.0


def test_group_consistency_by_hand():
    """Two groups have deviations 0.1 and 0.2; one has a single counted image, one has none."""
    metric = GroupConsistency(5)
    metric.update(torch.tensor([0.5, 0.3, 0.9]), torch.tensor([0, 3, 1]))
    metric.update(torch.tensor([0.7, math.nan, 0.7, math.nan]), torch.tensor([0, 1, 3, 3]))
    assert metric.compute().item() == pytest.approx((0.1 + 0.2) / 2, rel=1e-6)


def test_groups_of_equal_values_have_deviation_zero():
    """Rounding makes the mean of three squares of 0.1 smaller than the square of their mean."""
    metric = GroupConsistency(2)
    metric.update(torch.tensor([0.1, 0.8] * 3, dtype=torch.float64), torch.tensor([0, 1] * 3))
    assert metric.compute().item() == pytest.approx(0, abs=1e-7)


@given(st.integers(1, 5), st.lists(st.tuples(st.floats(0, 1) | st.just(math.nan), st.integers(0, 4)), max_size=30))
def test_group_consistency_is_the_mean_of_deviations(groups: int, images: list[tuple[float, int]]):
    images = [(iou, group % groups) for iou, group in images]
    metric = GroupConsistency(groups)
    for part in (images[:7], images[7:]):
        metric.update(torch.tensor([iou for iou, _ in part]).double(), torch.tensor([g for _, g in part]).long())
    deviations = []
    for group in range(groups):
        counted = [iou for iou, g in images if g == group and not math.isnan(iou)]
        if len(counted) >= 2:
            deviations.append(statistics.pstdev(counted))
    expected = statistics.fmean(deviations) if deviations else math.nan
    assert metric.compute().item() == pytest.approx(expected, abs=1e-7, nan_ok=True)


# Streaming.


def pictures(images: int = 11) -> dict[str, Tensor]:
    """Return logits for images and scaled images, labels with ignored pixels, and the images' groups."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (images, 6, 7), generator=rng)
    return {
        "logits": torch.randn(images, CLASSES, 6, 7, generator=rng),
        "scaled": torch.randn(images, CLASSES, 6, 7, generator=rng),
        "labels": labels.masked_fill(torch.rand(labels.shape, generator=rng) < 0.2, IGNORED),
        "group": torch.randint(0, 3, (images,), generator=rng),
        "x": torch.randn(images, 2, generator=rng),
        "y": torch.randn(images, 2, generator=rng),
    }


def maps_of(share: dict[str, Tensor]) -> Map:
    return map_from_logits(share["x"], share["y"], family="separable")


def iou_of(share: dict[str, Tensor]) -> Tensor:
    return image_iou(share["logits"].argmax(1), share["labels"], CLASSES, ignore_index=IGNORED)


def streamed(shares: list[dict[str, Tensor]]) -> dict[str, Any]:
    overlap, consistency = mean_iou(CLASSES, ignore_index=IGNORED), GroupConsistency(3)
    errors = {variant: EquivarianceError(variant) for variant in VARIANTS}
    floors = {variant: EquivarianceFloor(CLASSES, variant) for variant in VARIANTS}
    for share in shares:
        overlap.update(share["logits"], share["labels"])
        consistency.update(iou_of(share), share["group"])
        for variant in VARIANTS:
            errors[variant].update(share["logits"].softmax(1), share["scaled"].softmax(1), maps_of(share))
            floors[variant].update(share["labels"], maps_of(share))
    found = {"iou": overlap.compute().item(), "consistency": consistency.compute().item()}
    found |= {f"{variant} error": metric.compute().item() for variant, metric in errors.items()}
    return found | {f"{variant} floor": metric.compute().item() for variant, metric in floors.items()}


def functional() -> dict[str, Any]:
    whole = pictures()
    m, guess, truth = maps_of(whole), whole["logits"].argmax(1), whole["labels"]
    terms = []
    for c in range(CLASSES):
        there, said = truth == c, (guess == c) & (truth != IGNORED)
        terms.append(((there & said).sum() / (there | said).sum()).item())
    iou = iou_of(whole).double()
    deviations = [iou[whole["group"] == group].std(correction=0).item() for group in range(3)]
    found = {"iou": statistics.fmean(terms), "consistency": statistics.fmean(deviations)}
    for v in VARIANTS:
        error = equivariance_error(whole["logits"].softmax(1), whole["scaled"].softmax(1), m, variant=v)
        found |= {f"{v} error": error.item(), f"{v} floor": equivariance_floor(truth, m, CLASSES, variant=v).item()}
    return found


@pytest.mark.parametrize("sizes", [(11,), (1, 7, 3), (5, 5, 1)])
def test_uneven_batches_equal_the_functions_on_the_whole_dataset(sizes: tuple[int, ...]):
    assert streamed(batches(pictures(), *sizes)) == pytest.approx(functional(), rel=1e-5)


def share_of(rank: int) -> dict[str, Any]:
    first, second, last = batches(pictures(), 4, 5, 2)
    return streamed([first, second] if rank == 0 else [last])


def test_two_processes_with_uneven_shares_equal_one(tmp_path: Path):
    for found in in_two_processes(share_of, tmp_path):
        assert found == pytest.approx(functional(), rel=1e-5)


def test_totals_are_kept_in_float64():
    """In float32, 1e-9 would vanish beside 1."""
    metric = EquivarianceError()
    big, small = torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 1e-9**0.5)
    metric.update(torch.zeros_like(big), big, identity_map())
    metric.update(torch.zeros_like(big), small, identity_map())
    assert 2 * metric.compute().item() - 1 == pytest.approx(1e-9, rel=1e-5)


def test_half_precision_masks_are_compared_in_float32():
    """Values interpolated between 0 and 1 have more bits than the eight of bfloat16."""
    answer = torch.tensor([0.0, 1.0]).repeat(4).bfloat16().view(1, 1, 1, 8)
    m = random_map(1, 5, strength=1.0, generator=torch.Generator().manual_seed(0))
    half, single = EquivarianceError(), EquivarianceError()
    half.update(answer, torch.zeros_like(answer), m)
    single.update(answer.float(), torch.zeros(1, 1, 1, 8), m)
    assert half.compute() == single.compute()
    assert single.compute().item() != pytest.approx(
        equivariance_error(answer, torch.zeros_like(answer), m).item(), rel=1e-4
    )


def test_masks_are_never_copied_to_float64():
    """Masks are large; only sums over classes may be in float64."""
    seen: set[tuple[int, ...]] = set()

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if isinstance(found, Tensor) and found.dtype == torch.float64:
                seen.add(tuple(found.shape))
            return found

    error, floor = EquivarianceError(), EquivarianceFloor(5)
    answer, m = torch.rand(2, 5, 6, 6), random_map(2, 4)
    with Watch():
        error.update(answer, answer, m)
        floor.update(answer.argmax(1), m)
    assert (2,) in seen, "means of images are in float64"
    assert not any(len(shape) == 4 and shape[1] == 5 for shape in seen)


def test_no_host_synchronisation_except_in_mean_iou():
    """Fake tensors have no values, so reading one on the host raises; ``mean_iou`` is documented to do so."""
    metrics = (EquivarianceError(), EquivarianceFloor(3), GroupConsistency(2), mean_iou(3), SmallObjectIoU(3, 64))
    with FakeTensorMode(allow_non_fake_inputs=True):
        error, floor, consistency, overlap, small = (metric.to("cuda") for metric in metrics)
        labels, mask = torch.zeros(2, 8, 8, dtype=torch.int64, device="cuda"), torch.rand(2, 3, 8, 8, device="cuda")
        m = random_map(2, 4).to("cuda")
        error.update(mask, mask, m)
        floor.update(labels, m)
        consistency.update(image_iou(labels, labels, 3), labels[:, 0, 0])
        small.update(labels, labels)
        assert consistency.compute().device == small.compute().device == torch.device("cuda:0")
        with pytest.raises(DataDependentOutputException):
            overlap.update(labels, labels)


# Metrics without data, and wrong inputs.


def test_metrics_are_nan_before_data():
    for metric in (mean_iou(2), EquivarianceError(), EquivarianceFloor(2), GroupConsistency(2)):
        with BEFORE_DATA:
            assert math.isnan(metric.compute())


def test_empty_batches_change_nothing():
    error, floor, consistency = EquivarianceError(), EquivarianceFloor(2), GroupConsistency(2)
    error.update(torch.zeros(0, 2, 4, 4), torch.zeros(0, 2, 4, 4), identity_map())
    floor.update(torch.zeros(0, 4, 4).long(), identity_map())
    consistency.update(torch.zeros(0), torch.zeros(0).long())
    for metric in (error, floor, consistency):
        assert math.isnan(metric.compute())
    error.update(torch.zeros(1, 2, 4, 4), torch.ones(1, 2, 4, 4), identity_map())
    assert error.compute() == 2.0


def test_there_is_at_least_one_class_and_one_group():
    with pytest.raises(ConfigError, match=r"^classes is 0; expected .* at least 1"):
        EquivarianceFloor(0)
    with pytest.raises(ConfigError, match=r"^groups is 0; expected .* at least 1"):
        GroupConsistency(0)


def test_wrong_shapes_are_named():
    with pytest.raises(ShapeError, match=r"^masks have shapes \(2, 3, 4, 4\) and \(2, 3, 4, 5\); expected"):
        EquivarianceError().update(torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 5), identity_map())
    with pytest.raises(ShapeError, match=r"^labels have shape \(2, 3, 4, 4\); expected \(images, height, width\)$"):
        EquivarianceFloor(3).update(torch.zeros(2, 3, 4, 4).long(), identity_map())
    with pytest.raises(MapError, match="3 maps were given for a batch of 2"):
        EquivarianceFloor(3).update(torch.zeros(2, 4, 4).long(), random_map(3))


@pytest.mark.parametrize(
    ("iou", "group"),
    [
        (torch.zeros(3), torch.zeros(4).long()),
        (torch.zeros(3, 1), torch.zeros(3, 1).long()),
        (torch.zeros(3), torch.zeros(())),
        (torch.zeros(3), torch.zeros(3)),
    ],
)
def test_group_consistency_names_the_shapes(iou: Tensor, group: Tensor):
    shapes = f"iou has shape {tuple(iou.shape)} and group {tuple(group.shape)} of {group.dtype}; expected"
    with pytest.raises(ShapeError, match=re.escape(shapes)):
        GroupConsistency(2).update(iou, group)


@pytest.mark.parametrize("group", [[0, 2], [-1, 1], [-1, 5]])
def test_wrong_group_numbers_are_named_on_a_cpu(group: list[int]):
    metric = GroupConsistency(2)
    with pytest.raises(ConfigError, match=f"group numbers {min(group)} … {max(group)} came; expected 0 … 1"):
        metric.update(torch.zeros(2), torch.tensor(group))
    assert not metric.count.any(), "nothing was added"
