"""Backbones with a segmentation head, at image sizes that are not multiples of the patch."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tiny_objects import DIRECT, tiny, write_both

from localscale.adaptation import AdaptedModel
from localscale.heads import Segmenter
from localscale.lab.methods import Canon
from localscale.lab.recipes.regularization import Regularization
from localscale.lab.runs.models import create_model, make_task
from localscale.lab.tasks.mnist import MNISTData


def images(size: int) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("size", "whole"), [(32, 32), (33, 48), (37, 48), (48, 48)])
def test_the_backbone_is_made_for_whole_patches(size: int, whole: int):
    recipe = tiny(Path("nowhere"), image_size=size)
    model = create_model(recipe, 6, pretrained="none")
    assert isinstance(model, Segmenter)
    assert model.input_size == (3, whole, whole)
    assert model(images(size)).shape == (2, 6, size, size)


def test_a_backbone_with_patches_of_14_answers_at_32_pixels_and_can_be_adapted_inside():
    recipe = tiny(Path("nowhere"), DIRECT, backbone="vit_small_patch14_dinov2")
    model = create_model(recipe, 3, pretrained="none")
    assert isinstance(model, Segmenter)
    assert model.input_size == (3, 42, 42)
    with torch.no_grad():
        expected = model.eval()(images(32))
        adapted = recipe.build(model)
        assert isinstance(adapted, AdaptedModel)
        assert torch.equal(adapted(images(32)), expected)
    assert expected.shape == (2, 3, 32, 32)


def test_the_head_is_as_wide_as_asked_for_and_has_the_classes():
    recipe = tiny(Path("nowhere"), head_width=24)
    model = create_model(recipe, 9, pretrained="none")
    assert isinstance(model, Segmenter)
    assert (model.head.classifier.in_channels, model.head.classifier.out_channels) == (24, 9)


def test_drop_path_reaches_the_backbone():
    recipe = tiny(Path("nowhere"), regularization=Regularization(drop_path=0.5))
    rates = [m.drop_prob for m in create_model(recipe, 3, pretrained="none").modules() if hasattr(m, "drop_prob")]
    assert max(rates) > 0.2


def test_one_label_per_image_gives_a_classifier_without_a_head_for_masks():
    recipe = dataclasses.replace(tiny(Path("nowhere")), data=MNISTData(image_size=48))
    model = create_model(recipe, 7, pretrained="none")
    assert not isinstance(model, Segmenter)
    assert model(images(48)).shape == (2, 7)


def test_canon_is_built_to_scale_masks_back():
    model = Canon(configurations=4, mode="equivariant").build(
        create_model(tiny(Path("nowhere")), 5, pretrained="none").eval()
    )
    assert model.mode == "equivariant"
    assert model.eval()(images(32)).shape == (2, 5, 32, 32)


def test_images_are_normalised_as_the_backbone_was_pretrained(tmp_path: Path):
    task = make_task(tiny(write_both(tmp_path), backbone="vit_tiny_patch16_224", batch_size=6))
    assert (task.normalise.mean, task.normalise.std) == ((0.5,) * 3, (0.5,) * 3)
    assert task.batch_size == 6
    assert make_task(tiny(tmp_path, backbone="resnet18")).normalise.mean == (0.485, 0.456, 0.406)
