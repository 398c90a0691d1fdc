"""Detectors of transformers, whose boxes are (centre x, centre y, width, height) in fractions of the image's sides."""

from typing import Any

import pytest
import torch
import transformers
from backbones import SMALL, randomise_heads
from dec_configs import dec_config
from torch import Tensor, nn

import localscale as ls

CORNERS = torch.tensor([[[0.1, 0.2, 0.6, 0.5], [0.0, 0.0, 1.0, 1.0]]]).repeat(2, 1, 1)  # (left, top, right, bottom)
NOISE = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
IMAGES = 3 * nn.functional.interpolate(NOISE, size=(48, 64), mode="bilinear", align_corners=True)
PIXELS = torch.tensor([64.0, 48.0, 64.0, 48.0])


def centred(corners: Tensor) -> Tensor:
    first, second = corners.unflatten(-1, (2, 2)).unbind(-2)
    return torch.cat(((first + second) / 2, second - first), dim=-1)


class Finder(nn.Module):
    """Answers with the same boxes for every image, and keeps the labels that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, pixel_values: Tensor, labels: Any = None, mask_labels: Any = None) -> Any:
        self.labels, self.mask_labels, self.seen = labels, mask_labels, pixel_values
        boxes = centred(CORNERS) + self.bias
        logits = torch.zeros(2, 2, 3)
        auxiliary = [{"logits": logits, "pred_boxes": boxes}]
        return transformers.models.detr.modeling_detr.DetrObjectDetectionOutput(
            logits=logits, pred_boxes=boxes, auxiliary_outputs=auxiliary
        )


def adapted(base: nn.Module, mode: str = "equivariant", **settings: Any) -> ls.AdaptedModel:
    config = dec_config(sites=("input",), mode=mode, fixed_steps=True, **SMALL)
    return randomise_heads(ls.adapt(base.eval(), config, input_size=(3, 48, 64), **settings), std=3.0)


def test_boxes_are_mapped_back() -> None:
    model = adapted(Finder())
    found, report = model(IMAGES, return_report=True)
    m = report["input"].map
    expected = centred(ls.scale_boxes(CORNERS * PIXELS, m, size=(48, 64)) / PIXELS)
    assert (found.pred_boxes[:, 0] - centred(CORNERS)[:, 0]).abs().max() > 0.01
    torch.testing.assert_close(found.pred_boxes, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.auxiliary_outputs[0]["pred_boxes"], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.pred_boxes[:, 1], centred(CORNERS)[:, 1], atol=1e-4, rtol=0)  # the whole image
    assert torch.equal(found.logits, torch.zeros(2, 2, 3))


def test_boxes_of_large_photographs_are_mapped_back() -> None:
    """Fractions do not depend on the size of the canonical form."""
    model = adapted(Finder(), source_size=(96, 128))
    large = nn.functional.interpolate(IMAGES, scale_factor=2)
    found, report = model(large, return_report=True)
    expected = centred(ls.scale_boxes(CORNERS * 2 * PIXELS, report["input"].map, size=(96, 128)) / (2 * PIXELS))
    torch.testing.assert_close(found.pred_boxes, expected, atol=0.01, rtol=0)


def test_labels_are_mapped_to_canonical_forms() -> None:
    base = Finder()
    given = [{"class_labels": torch.tensor([1, 2]), "boxes": centred(corners)} for corners in CORNERS]
    masks = [torch.zeros(1, 48, 64), torch.zeros(2, 48, 64)]
    masks[0][0, 10:20, 10:40], masks[1][1, 5:25, 30:50] = 1, 1
    _, report = adapted(base)(IMAGES, labels=given, mask_labels=masks, return_report=True)
    for index, (seen, mask) in enumerate(zip(base.labels, base.mask_labels, strict=True)):
        m = report["input"].map[index]
        expected = centred(ls.scale_boxes(CORNERS[index] * PIXELS, m.inverse(), size=(48, 64)) / PIXELS)
        torch.testing.assert_close(seen["boxes"], expected, atol=1e-4, rtol=0)
        assert torch.equal(mask, ls.unscale(masks[index], m))
        assert not torch.equal(mask, masks[index])


def test_boxes_need_the_equivariant_mode() -> None:
    model = adapted(Finder(), mode="invariant")
    with pytest.warns(UserWarning, match='with mode="invariant" the boxes are places in the canonical forms'):
        model(IMAGES)


def test_yolos_learns_and_answers() -> None:
    torch.manual_seed(0)
    tiny = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.YolosConfig(image_size=[48, 64], patch_size=16, num_detection_tokens=5, num_labels=3, **tiny)
    model = adapted(transformers.YolosForObjectDetection(config))
    labels = [{"class_labels": torch.tensor([1, 2]), "boxes": centred(corners)} for corners in CORNERS]
    found, report = model(IMAGES, labels=labels, return_report=True)
    canonical = model.base(ls.unscale(IMAGES, report["input"].map))
    assert torch.equal(found.logits, canonical.logits)
    assert not torch.allclose(found.pred_boxes, canonical.pred_boxes, atol=1e-3)
    found.loss.backward()
    gradient = next(model.base.parameters()).grad
    assert gradient is not None
    assert gradient.abs().max() > 0
