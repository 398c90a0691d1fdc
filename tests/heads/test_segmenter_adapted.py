"""Canonicalizers in a segmenter: identity at first, scores scaled back, gradients, saving."""

from pathlib import Path

import pytest
import torch
from backbones import randomise_heads
from tiny_segmenters import FAMILIES, Family, adapted, without_gradient

from localscale import AdaptedModel, scale, sites, unscale

DIFFERENT = {name: family for name, family in FAMILIES.items() if name not in ("DeiT", "DINOv2")}  # blocks like ViT's
EACH_FAMILY = pytest.mark.parametrize("family", DIFFERENT.values(), ids=DIFFERENT)


@EACH_FAMILY
def test_an_adapted_segmenter_starts_as_its_base(family: Family):
    mode = "equivariant" if family.site.startswith("backbone.blocks") else "invariant"
    base, images = family.segmenter().eval(), family.images()
    with torch.no_grad():
        expected = base(images)
        model = adapted(base, family.site, mode=mode)
        assert torch.equal(model(images), expected)


@pytest.mark.parametrize("name", ["ViT", "Swin", "ResNet"])
def test_an_adapted_segmenter_starts_as_its_base_at_an_odd_size(name: str):
    family = FAMILIES[name]
    base, images = family.segmenter(any_size=True).eval(), family.images(1, (65, 50))
    with torch.no_grad():
        expected = base(images)
        assert torch.equal(adapted(base, family.site, mode="equivariant")(images), expected)


@EACH_FAMILY
def test_gradients_reach_canonicalizers_backbone_and_head(family: Family):
    model = randomise_heads(adapted(family.segmenter(), family.site, mode="equivariant"))
    scores, report = model(family.images(), return_report=True)
    assert list(report) == ["input", family.site]
    assert min(site.map.mean_displacement().min() for site in report.values()) > 1e-4
    scores.square().sum().backward()
    assert without_gradient(model) == []


def test_scores_are_scaled_back_as_the_image_was():
    family = FAMILIES["ViT"]
    base, images = family.segmenter().eval(), family.images()
    model = randomise_heads(adapted(base, family.site, sites=("input",), mode="equivariant"))
    with torch.no_grad():
        scores, report = model(images, return_report=True)
        found = report["input"].applied
        torch.testing.assert_close(scores, scale(base(unscale(images, found)), found))
        assert (scores - base(images)).abs().max() > 1e-4


def test_sites_are_found_inside_the_backbone():
    found = {str(site): site for site in sites(FAMILIES["DINOv2 registers"].segmenter())}
    block = found["backbone.blocks.0"]
    assert (block.layout, block.prefix, block.stride, block.shape) == ("tokens", 5, (14, 14), (2, 21, 24))
    found = {str(site): site for site in sites(FAMILIES["Swin"].segmenter())}
    assert (found["backbone.layers.1"].layout, found["backbone.layers.1"].channels) == ("NHWC", 12)


def test_saved_and_loaded(tmp_path: Path):
    family = FAMILIES["ViT"]
    model = randomise_heads(adapted(family.segmenter().eval(), family.site, mode="equivariant"))
    with torch.no_grad():
        model.base.head.classifier.bias.add_(1)
        model.save_pretrained(tmp_path)
        again = AdaptedModel.from_pretrained(tmp_path, family.segmenter().eval())
        assert torch.equal(again(family.images()), model(family.images()))


def test_unwrap_returns_the_segmenter():
    family = FAMILIES["Swin"]
    base, images = family.segmenter().eval(), family.images()
    with torch.no_grad():
        expected, names = base(images), list(base.state_dict())
        model = randomise_heads(adapted(base, family.site, mode="equivariant"))
        assert not torch.equal(model(images), expected)
        assert model.unwrap() is base
        assert torch.equal(base(images), expected)
    assert list(base.state_dict()) == names
