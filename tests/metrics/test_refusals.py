"""Metrics of no images, of labels outside the range, and of tensors that do not belong together."""

import pytest
import torch

import localscale as ls
from localscale import metrics
from localscale.errors import ConfigError, ShapeError

IDENTITY = ls.identity_map()


@pytest.mark.parametrize("images", [0, 2])
def test_the_mean_error_of_nothing(images: int):
    classes = 3 if images == 0 else 0
    with pytest.raises(ShapeError, match="at least one image"):
        metrics.invariance_error(torch.zeros(images, classes), torch.zeros(images, 2, classes))
    with pytest.raises(ShapeError, match="at least one image"):
        metrics.equivariance_error(*2 * [torch.zeros(images, classes, 4, 4)], IDENTITY)


def test_no_images():
    nothing = torch.zeros(0, 4, 4, dtype=torch.long)
    with pytest.raises(ShapeError, match="at least one image"):
        metrics.equivariance_floor(nothing, IDENTITY, 3)
    with pytest.raises(ShapeError, match="at least one image"):
        metrics.per_scale_accuracy(torch.zeros(0, 3), torch.zeros(0), torch.zeros(0))
    assert metrics.image_iou(nothing, nothing, 3).shape == (0,)


def test_an_empty_batch_changes_no_running_metric():
    for metric, full, empty in (
        (metrics.top1(3), (torch.eye(3), torch.arange(3)), (torch.zeros(0, 3), torch.zeros(0).long())),
        (metrics.mean_iou(3), 2 * (torch.arange(3).view(1, 1, 3),), 2 * (torch.zeros(0, 1, 3).long(),)),
        (metrics.InvarianceError(), (torch.eye(2), torch.zeros(2, 1, 2)), (torch.zeros(0, 2), torch.zeros(0, 1, 2))),
    ):
        metric.update(*full)
        before = metric.compute().item()
        metric.update(*empty)
        assert metric.compute().item() == before == 1.0


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_outside_the_range(label: int):
    labels = torch.tensor([0, label])
    maps = labels.view(1, 1, 2)
    for call in (
        lambda: metrics.per_scale_accuracy(torch.zeros(2, 3), labels, torch.ones(2)),
        lambda: metrics.top1(3).update(torch.zeros(2, 3), labels),
        lambda: metrics.PerScaleAccuracy((1.0,)).update(torch.zeros(2, 3), labels, 1.0),
        lambda: metrics.mean_iou(3).update(torch.zeros_like(maps), maps),
        lambda: metrics.mean_iou(3).update(maps, torch.zeros_like(maps)),
    ):
        with pytest.raises(ConfigError, match=r"^labels .* came; expected 0 … 2$"):
            call()
    metrics.mean_iou(3, ignore_index=label).update(torch.zeros_like(maps), maps)


def test_shapes_that_do_not_fit():
    for logits, labels in (((2, 3), (5,)), ((2, 4), (2,)), ((2, 3, 4), (2, 4))):
        with pytest.raises(ShapeError, match=r"expected \(images, 3\) and \(images,\)"):
            metrics.top1(3).update(torch.zeros(logits), torch.zeros(labels).long())
    for predicted, labels in (((1, 2, 2), (1, 2, 3)), ((1, 4, 2, 2), (1, 2, 2)), ((4,), (4,))):
        with pytest.raises(ShapeError, match=r"expected \(images, height, width\) for both"):
            metrics.mean_iou(3).update(torch.zeros(predicted).long(), torch.zeros(labels).long())


def test_wrong_types_and_devices():
    for make in (metrics.top1, metrics.mean_iou, metrics.EquivarianceFloor):
        for classes in (0, 2.5, True):
            with pytest.raises(ConfigError, match=f"^classes is {classes}"):
                make(classes)
    with pytest.raises(ConfigError, match="all finite"):
        metrics.PerScaleAccuracy((1.0, float("nan")))
    with pytest.raises(ShapeError, match="floating point"):
        metrics.invariance_error(torch.ones(1, 2).long(), torch.ones(1, 1, 2).long())
    mask = torch.rand(1, 3, 4, 4)
    with pytest.raises(ShapeError, match="on meta"):
        metrics.equivariance_error(mask, mask.to("meta"), IDENTITY)
    labels = torch.zeros(1, 2, 2).long()
    with pytest.raises(ShapeError, match="on meta"):
        metrics.image_iou(labels, labels.to("meta"), 3)


def test_kinds_of_tensors():
    labels = torch.zeros(2).long()
    for logits in (torch.zeros(2, 3, dtype=torch.complex64), torch.zeros(2, 3, dtype=torch.bool)):
        for call in (
            lambda x: metrics.top1(3).update(x, labels),
            lambda x: metrics.per_scale_accuracy(x, labels, labels),
            lambda x: metrics.PerScaleAccuracy((0.0,)).update(x, labels, labels),
        ):
            with pytest.raises(ShapeError, match="expected real numbers, integers for labels, and one device"):
                call(logits)
    for other in (labels.float(), labels.to("meta")):
        with pytest.raises(ShapeError, match="expected real numbers, integers for labels, and one device"):
            metrics.top1(3).update(torch.zeros(2, 3), other)
    masks = torch.ones(1, 3, 4, 4, dtype=torch.bool)
    with pytest.raises(ShapeError, match="expected floating point"):
        metrics.equivariance_error(masks, masks, IDENTITY)
    maps = torch.zeros(1, 2, 2).long()
    for metric in (metrics.SmallObjectIoU(2, 4), metrics.mean_iou(2)):
        for one, other in ((maps, maps.to("meta")), 2 * (maps.to("meta"),)):
            with pytest.raises(ShapeError, match="one device"):
                metric.update(one, other)
