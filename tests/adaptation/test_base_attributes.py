"""An adapted model answers for the attributes of its base."""

import copy
import pickle

import pytest
import torch
import transformers
from backbones import HF_VIT, RESNET, VIT, vit
from dec_configs import dec_config
from torch import nn

from localscale import adapt


def test_a_transformers_model_keeps_its_attributes():
    base = transformers.ViTForImageClassification(transformers.ViTConfig(**HF_VIT))
    config = dec_config(sites=("vit.layers.0",), knots=4)
    model = adapt(base, config)
    assert model.config is base.config
    assert model.dec_config is config
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    assert model.main_input_name == "pixel_values"
    model.gradient_checkpointing_enable()
    assert base.is_gradient_checkpointing


def test_a_timm_model_keeps_its_attributes():
    model = VIT.adapted()
    assert model.num_classes == 5
    assert model.get_classifier() is model.base.head
    images = VIT.images()
    assert torch.equal(model.forward_features(images), model.base.forward_features(images))
    assert model.patch_embed is model.base.patch_embed


def test_a_base_without_a_config_has_none():
    assert getattr(RESNET.adapted(), "config", None) is None


def test_an_unknown_attribute_names_both_classes():
    with pytest.raises(
        AttributeError, match=r"'AdaptedModel' object has no attribute 'num_clases'.*'VisionTransformer'"
    ):
        _ = VIT.adapted().num_clases


class WithItsOwnCopies(nn.Sequential):
    def __deepcopy__(self, memo):
        return self


def test_special_methods_of_the_base_are_not_those_of_the_adapted_model():
    base = WithItsOwnCopies(nn.Conv2d(3, 4, 1))
    model = adapt(base, dec_config(sites=("input",), knots=4), input_size=(3, 16, 16))
    assert copy.deepcopy(model) is not model


def test_an_adapted_model_can_be_pickled():
    model, images = VIT.adapted(vit()), VIT.images()
    again = pickle.loads(pickle.dumps(model))
    assert again.num_classes == 5
    assert torch.equal(again(images), model(images))
