"""Streaming metrics over batches and processes equal the functions on the whole dataset."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from metric_processes import batches, in_two_processes
from torch import Tensor

from localscale.errors import ConfigError, ShapeError
from localscale.metrics import (
    VARIANTS,
    InvarianceError,
    PerScale,
    PerScaleAccuracy,
    invariance_error,
    per_scale_accuracy,
    top1,
)

SCALES = (0.7, 1.0, 1.3)
BEFORE_DATA = pytest.warns(UserWarning, match="was called before the ``update`` method")


def answers(images: int = 23) -> dict[str, Tensor]:
    """Return probabilities for images and three variants of each, and logits, labels and scales."""
    rng = torch.Generator().manual_seed(0)
    return {
        "reference": torch.randn(images, 5, generator=rng).softmax(1),
        "variants": torch.randn(images, 3, 5, generator=rng).softmax(2),
        "logits": torch.randn(images, 5, generator=rng),
        "labels": torch.randint(0, 5, (images,), generator=rng),
        "scales": torch.tensor(SCALES)[torch.randint(0, 3, (images,), generator=rng)],
    }


def streamed(shares: list[dict[str, Tensor]]) -> dict[str, Any]:
    """Return every metric after all ``shares``, as numbers."""
    accuracy, per_scale = top1(5), PerScaleAccuracy(SCALES)
    errors = {variant: InvarianceError(variant) for variant in VARIANTS}
    for share in shares:
        accuracy.update(share["logits"], share["labels"])
        per_scale.update(share["logits"], share["labels"], share["scales"])
        for error in errors.values():
            error.update(share["reference"], share["variants"])
    found = {variant: error.compute().item() for variant, error in errors.items()}
    at_scales = {str(scale): value for scale, value in per_scale.compute().accuracy.items()}
    return {"top1": accuracy.compute().item()} | found | at_scales


def functional() -> dict[str, Any]:
    whole = answers()
    right = (whole["logits"].argmax(1) == whole["labels"]).double().mean().item()
    reference, variants = whole["reference"].double(), whole["variants"].double()
    errors = {variant: invariance_error(reference, variants, variant=variant).item() for variant in VARIANTS}
    scales = per_scale_accuracy(whole["logits"], whole["labels"], whole["scales"])
    return {"top1": right} | errors | {str(scale): value for scale, value in scales.items()}


# By hand.


def test_top1_counts_images_and_not_classes():
    """Three of four right; the mean over the two classes would be a half."""
    metric = top1(2)
    metric.update(torch.tensor([[2.0, 1.0]] * 4), torch.tensor([0, 0, 0, 1]))
    assert metric.compute().item() == 0.75


def test_every_pair_of_image_and_variant_has_equal_weight():
    """One image with three variants at distance 0, one with a single variant at squared distance 8."""
    metric = InvarianceError()
    metric.update(torch.zeros(1, 2), torch.zeros(1, 3, 2))
    metric.update(torch.zeros(1, 2), torch.full((1, 1, 2), 2.0))
    assert metric.compute().item() == 2.0


def test_per_scale_accuracy_by_hand():
    metric = PerScaleAccuracy((0.5, 2.0))
    metric.update(torch.eye(3), torch.tensor([0, 1, 0]), torch.tensor([0.5, 0.5, 2.0]))
    metric.update(torch.eye(3)[:2], torch.tensor([0, 0]), 0.5)
    assert metric.compute() == PerScale({0.5: 0.75, 2.0: 0.0}, 0.375, 0.375)


@pytest.mark.parametrize(
    ("hundredths", "mean", "std"),
    [
        ((9164, 9632, 9384), 93.93, 1.91),
        ((7466, 7644, 7807, 7955, 7948, 7888, 7853), 77.94, 1.65),
    ],
)
def test_mean_and_deviation_are_those_of_the_papers_tables(hundredths: tuple[int, ...], mean: float, std: float):
    """The accuracies are those of the paper's per-scale columns; a sample standard deviation would be 2.34 and 1.79."""
    metric = PerScaleAccuracy(tuple(range(len(hundredths))))
    for scale, right in enumerate(hundredths):
        labels = (torch.arange(10_000) >= right).long()
        metric.update(torch.tensor([1.0, 0.0]).expand(10_000, 2), labels, float(scale))
    found = metric.compute()
    assert [round(10_000 * value) for value in found.accuracy.values()] == list(hundredths)
    assert 100 * found.mean == pytest.approx(mean, abs=0.005)
    assert 100 * found.std == pytest.approx(std, abs=0.01)


# Streaming.


@pytest.mark.parametrize("sizes", [(23,), (1, 7, 15), (11, 11, 1)])
def test_uneven_batches_equal_the_functions_on_the_whole_dataset(sizes: tuple[int, ...]):
    assert streamed(batches(answers(), *sizes)) == pytest.approx(functional(), rel=1e-6)


def share_of(rank: int) -> dict[str, Any]:
    first, second, last = batches(answers(), 9, 8, 6)
    return streamed([first, second] if rank == 0 else [last])


def test_two_processes_with_uneven_shares_equal_one(tmp_path: Path):
    for found in in_two_processes(share_of, tmp_path):
        assert found == pytest.approx(functional(), rel=1e-6)


def test_half_precision_answers_are_compared_in_float64():
    parts = {name: answers()[name].bfloat16() for name in ("reference", "variants")}
    metric = InvarianceError("l2")
    metric.update(**parts)
    expected = invariance_error(parts["reference"].double(), parts["variants"].double(), variant="l2")
    assert metric.compute().dtype == torch.float64
    assert metric.compute().item() == pytest.approx(expected.item(), rel=1e-12)


def test_float32_scales_are_found():
    metric = PerScaleAccuracy((0.7, 1.1))
    metric.update(torch.eye(2), torch.arange(2), torch.tensor([0.7, 1.1], dtype=torch.float32))
    assert metric.compute().accuracy == {0.7: 1.0, 1.1: 1.0}


def test_reset_forgets():
    metric = PerScaleAccuracy((1.0,))
    metric.update(torch.eye(2), torch.tensor([1, 0]), 1.0)
    metric.reset()
    metric.update(torch.eye(2), torch.tensor([0, 1]), 1.0)
    assert metric.compute().accuracy == {1.0: 1.0}


# Metrics without data, and wrong inputs.


def test_metrics_are_nan_before_data():
    with BEFORE_DATA:
        assert math.isnan(InvarianceError().compute())
    with BEFORE_DATA:
        found = PerScaleAccuracy((1.0, 2.0)).compute()
    assert all(math.isnan(value) for value in (*found.accuracy.values(), found.mean, found.std))


def test_a_scale_without_images_is_nan_and_so_is_the_mean():
    metric = PerScaleAccuracy((1.0, 2.0))
    metric.update(torch.eye(2), torch.arange(2), 2.0)
    found = metric.compute()
    assert found.accuracy[2.0] == 1.0
    assert math.isnan(found.accuracy[1.0])
    assert math.isnan(found.mean)


def test_a_batch_without_images_changes_nothing():
    metric = InvarianceError()
    metric.update(torch.zeros(0, 2), torch.zeros(0, 3, 2))
    metric.update(torch.zeros(1, 2), torch.ones(1, 1, 2))
    assert metric.compute() == 2.0


def test_unknown_variants_name_the_near_miss():
    with pytest.raises(ConfigError, match=r"^no variant 'square': did you mean squared\?$"):
        InvarianceError("square")
    with pytest.raises(ConfigError, match=r"^no variant 'mean': known: squared, l2, relative$"):
        InvarianceError("mean")


@pytest.mark.parametrize("scales", [(), (1.0, 2.0, 1.0), (1, 1.0)])
def test_scales_are_given_once_each(scales: tuple[float, ...]):
    with pytest.raises(ConfigError, match=r"scales are .*; expected at least one scale, without repetitions"):
        PerScaleAccuracy(scales)


@pytest.mark.parametrize(
    ("logits", "labels", "scales"),
    [((4,), (4,), (4,)), ((4, 3), (4, 1), (4,)), ((4, 3), (5,), ()), ((4, 3), (4,), (3,)), ((4, 3), (4,), (4, 1))],
)
def test_per_scale_accuracy_names_the_shapes(logits, labels, scales):
    metric = PerScaleAccuracy(SCALES)
    with pytest.raises(ShapeError, match=re.escape(f"logits have shape {logits}, labels {labels}, scales {scales}")):
        metric.update(torch.zeros(logits), torch.zeros(labels), torch.ones(scales))


# Imports.


def test_torchmetrics_is_imported_only_when_used():
    assert "torchmetrics" in sys.modules, "here they are used"
    code = "import sys, localscale; print('torchmetrics' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
