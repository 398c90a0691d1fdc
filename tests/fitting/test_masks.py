"""``fit`` on masks: sizes, dtypes, the label 255, losses of one's own, and modes that do not fit."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import localscale as ls
from localscale.errors import DataError, ShapeError
from localscale.fitting.targets import classes_of, cross_entropy

TINY = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 8, 8], "decoder_hidden_size": 8, "num_attention_heads": [1] * 4}


class Pixels(nn.Module):
    """A segmenter whose class maps have the side of the images divided by ``stride``."""

    def __init__(self, stride: int = 1, classes: int = 2) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, classes, stride, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(dim=(2, 3)))


def fit(model: nn.Module, images: Tensor, labels: Tensor, **settings: Any) -> ls.Fitted:
    fast = {"epochs": 30, "learning_rate": 0.05, "cpu": True, "progress": False} | settings
    return ls.fit(model, [(images, labels)], [(images, labels)], **fast)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def masks(images: Tensor) -> Tensor:
    torch.manual_seed(0)
    return (images[:, 0] > 0.5).long()


def test_class_maps_of_a_quarter_are_enlarged(images: Tensor):
    half = images.clone()
    half[..., :8] += 1.0
    masks = torch.zeros(4, 16, 16, dtype=torch.long)
    masks[..., :8] = 1
    found = fit(Pixels(4), half, masks)
    assert found.best.metrics["accuracy"] > 0.9
    assert "equivariance_error" in found.best.metrics


def test_logits_are_enlarged_with_corners_on_corners():
    logits = torch.randn(1, 3, 4, 4)
    masks = torch.zeros(1, 16, 16, dtype=torch.long)
    large = nn.functional.interpolate(logits, (16, 16), mode="bilinear", align_corners=True)
    assert torch.allclose(cross_entropy(logits, masks, (16, 16)), nn.functional.cross_entropy(large, masks))


def test_a_segformer_learns_from_masks_at_the_size_of_the_images(images: Tensor):
    images = torch.cat([images, images], dim=-1).repeat(1, 1, 2, 1)
    base = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(num_labels=2, **TINY))
    config = ls.DECConfig(knots=6, network=ls.SizeNetwork(width=8, blocks=0), mode="equivariant")
    model = ls.adapt(base, config, input_size=(3, 32, 32))
    model.size_canonicalizer().network.trust.fill_(0.5)
    found = fit(model, images, (images[:, 0] > 0.5).byte()[:, None], epochs=2, learning_rate=1e-3)
    assert set(found.best.metrics) == {"loss", "accuracy", "equivariance_error"}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("channel", [False, True])
def test_masks_of_any_whole_type(images: Tensor, masks: Tensor, dtype: torch.dtype, channel: bool):
    given = masks.to(dtype)[:, None] if channel else masks.to(dtype)
    assert fit(Pixels(), images, given).best.metrics["accuracy"] > 0.9


@pytest.mark.parametrize("void", [255, -100])
def test_void_pixels_do_not_count(images: Tensor, masks: Tensor, void: int):
    holes = masks.clone()
    holes[:, :8] = void
    logits = torch.randn(4, 2, 16, 16)
    assert torch.allclose(
        cross_entropy(logits, holes, (16, 16)), nn.functional.cross_entropy(logits[:, :, 8:], masks[:, 8:])
    )
    assert fit(Pixels(), images, holes).best.metrics["accuracy"] > 0.9


def test_masks_in_which_nothing_counts_are_no_nan(images: Tensor):
    found = fit(Pixels(), images, torch.full((4, 16, 16), 255), epochs=1)
    assert (found.best.loss, found.best.metrics["loss"]) == (0, 0)


def test_class_255_counts_where_a_model_has_it():
    labels = torch.full((1, 2, 2), 255)
    assert torch.equal(classes_of(torch.zeros(1, 256, 2, 2), labels), labels)


def test_a_class_that_the_model_lacks_is_named_without_255(images: Tensor, masks: Tensor):
    masks[0, 0, 0], masks[0, 0, 1] = 255, 7
    with pytest.raises(DataError, match=r"labels run from 0 to 7, .* 2 classes; .*num_classes=8; the label 255 counts"):
        fit(Pixels(), images, masks)


def test_a_loss_of_ones_own_gets_the_labels_as_they_are(images: Tensor):
    seen: set[tuple[Any, ...]] = set()

    def depth(answers: Tensor, labels: Tensor) -> Tensor:
        seen.add((labels.dtype, tuple(answers.shape)))
        return (answers - labels).abs().mean()

    found = fit(Pixels(2, classes=1), images, images[:, :1] * 300, loss=depth, monitor="loss", epochs=2)
    assert seen == {(torch.float32, (4, 1, 16, 16))}
    assert set(found.best.metrics) == {"loss", "equivariance_error"}


def test_labels_that_cannot_be(images: Tensor, masks: Tensor):
    with pytest.raises(ShapeError, match=r"masks are 20×30, images 16×16 and .*; resize each mask like its image"):
        fit(Pixels(), images, torch.zeros(4, 20, 30, dtype=torch.long))
    with pytest.raises(DataError, match=r"labels are torch.float32 .*; expected masks of whole numbers.*PILToTensor"):
        fit(Pixels(), images, masks.float())
    with pytest.raises(ShapeError, match=r"which are masks, .* a classifier; expected a model that predicts masks"):
        fit(Classifier(), images, masks)
    with pytest.raises(ShapeError, match=r"one for each image, .* a segmenter; expected masks"):
        fit(Pixels(), images, masks[:, 0, 0])
    with pytest.raises(DataError, match=r"labels are torch.float32 of shape \(4,\); expected whole numbers, one class"):
        fit(Classifier(), images, masks[:, 0, 0].float())
    with pytest.raises(DataError, match=r"images have dtype torch.uint8; expected floating-point images, normalised"):
        fit(Pixels(), (255 * images).byte(), masks)


def test_a_segmenter_that_answers_for_canonical_forms_is_told(images: Tensor, masks: Tensor):
    model = ls.adapt(Pixels(), ls.DECConfig(network=ls.SizeNetwork(width=8, blocks=0)), input_size=(3, 16, 16))
    model.size_canonicalizer().network.trust.fill_(0.5)
    with pytest.warns(UserWarning, match=r'masks.*mode="invariant".*DECConfig\(mode="equivariant"\)'):
        fit(model, images, masks, epochs=1)


def test_an_image_without_a_label_that_counts_has_no_accuracy(images: Tensor):
    model, masks = Pixels(), torch.zeros(4, 16, 16, dtype=torch.long)
    masks[1:] = 255
    model.head.weight.data.zero_()
    model.head.bias.data.copy_(torch.tensor([5.0, -5.0]))
    assert fit(model, images, masks, epochs=1, learning_rate=0.0).best.metrics["accuracy"] == 1


class Single(nn.Module):
    """A model with one logit for each pixel, or for each image."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self.shape, self.head = shape, nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        answer = self.head(x)
        mean = answer.square().mean(dim=(2, 3))
        return {"masks": answer, "columns": mean, "numbers": mean[:, 0]}[self.shape]


@pytest.mark.parametrize("shape", ["masks", "columns", "numbers"])
def test_a_single_logit_changes_under_scaling(shape: str, images: Tensor):
    """The softmax of one logit is always 1, and would never change."""
    torch.manual_seed(0)
    labels = {"masks": torch.ones(4, 1, 16, 16), "columns": torch.ones(4, 1), "numbers": torch.ones(4)}[shape]
    own: dict[str, Any] = {"loss": nn.functional.binary_cross_entropy_with_logits, "monitor": "loss"}
    found = fit(Single(shape), images, labels, epochs=1, learning_rate=0.0, **own)
    assert found.best.metrics["equivariance_error" if shape == "masks" else "invariance_error"] > 1e-10


def test_a_model_without_classes_is_refused(images: Tensor):
    with pytest.raises(ShapeError, match=r"the model answers with shape \(4,\)"):
        fit(Single("numbers"), images, torch.zeros(4, dtype=torch.long))
