"""Images larger than the backbone's input: canonical forms of its size, answers at the images' size."""

import json
from pathlib import Path

import pytest
import torch
import torchvision
from backbones import RESNET, VIT, sized
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import localscale as ls
from localscale import AdaptedModel, DECConfig, Preprocessing, SizeNetwork, adapt
from localscale.adaptation.state import from_tensor
from localscale.conventions import resize_cubic, stretch
from localscale.errors import CheckpointError, ConfigError

SMALL = {"knots": 4, "network": SizeNetwork(width=8, blocks=0, resolution=16)}
LARGE = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(1))


def answer(model: nn.Module, images, **arguments):
    with torch.no_grad():
        return model(images, **arguments)


def moving(model: AdaptedModel, trust: float = 0.5) -> AdaptedModel:
    """Give the size network at the input random estimates, so that its maps move things."""
    network, generator = model.canonicalizers["input"].network, torch.Generator().manual_seed(2)
    with torch.no_grad():
        network.head.weight.copy_(0.5 * torch.randn(network.head.weight.shape, generator=generator))
        network.trust.fill_(trust)
    return model


# What the base sees


@pytest.mark.parametrize("size", [(128, 128), (97, 180), (64, 64), (64, 100), (40, 52)])
def test_untouched_it_is_the_base_on_resized_images(size: tuple[int, int]):
    base, images = VIT.build(), torch.rand(2, 3, *size)
    expected = answer(base, resize_cubic(images, 64, 64))
    model = adapt(base, DECConfig(**SMALL), source_size=128).eval()
    assert model.source_size == (128, 128)
    assert torch.equal(answer(model, images), expected)
    with model.disabled():
        assert torch.equal(answer(moving(model), images), expected)
    assert not torch.equal(answer(model, images), expected)


def test_the_canonicalizer_looks_at_the_large_image():
    model = moving(adapt(VIT.build(), DECConfig(**SMALL), source_size=128)).eval()
    found, report = answer(model, LARGE, return_report=True)
    m = report["input"].map
    assert m.mean_displacement().min() > 1e-3
    assert torch.equal(m.state(), answer(model.canonicalizers["input"], LARGE).map.state())
    torch.testing.assert_close(found, answer(model.base, ls.unscale(LARGE, m, size=(64, 64))))
    model(LARGE).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_images_of_the_usual_size_are_answered_as_without_it():
    alone, model = sized("input"), sized("input", source_size=100)
    assert torch.equal(answer(model, VIT.images()), answer(alone, VIT.images()))


def test_latent_sites_see_the_canonical_form():
    model = sized("input", "blocks.0", source_size=(100, 130))
    images = torch.rand(2, 3, 100, 130)
    _, report = answer(model, images, return_report=True)
    assert set(report) == {"input", "blocks.0"}
    learned = ls.learn_sizes(model, [*images, torch.rand(3, 90, 300)], steps=1, progress=False)
    assert learned.steps == 1
    model.size_loss(images).backward()


# Answers at the size of the images


class Pixels(nn.Module):
    """Logits, labels and a quarter-size map of pixels, with a loss of the labels that are given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.coarse = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 4, stride=4)
        self.seen: Tensor | None = None

    def forward(self, images: Tensor, labels: Tensor | None = None):
        self.seen = labels
        logits = self.conv(images)
        return {"logits": logits, "labels": logits.argmax(1), "coarse": self.coarse(images), "depth": images[:, 0]}


def equivariant(base: nn.Module) -> AdaptedModel:
    config = DECConfig(**SMALL, mode="equivariant")
    return adapt(base.eval(), config, input_size=(3, 64, 64), source_size=128).eval()


@pytest.mark.parametrize("size", [(128, 128), (90, 150)])
def test_maps_of_pixels_come_back_at_the_size_of_the_images(size: tuple[int, int]):
    base, images = Pixels(), stretch(torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(1)), *size)
    before = answer(base, resize_cubic(images, 64, 64))
    model = equivariant(base)
    enlarged = stretch(before["logits"], *size)
    torch.testing.assert_close(answer(model, images)["logits"], enlarged, atol=1e-5, rtol=0)
    moving(model)
    labels = (8 * images[:, 0]).long()
    found, report = answer(model, images, labels=labels, return_report=True)
    m = report["input"].map
    assert torch.equal(base.seen, ls.unscale(labels, m, size=(64, 64), mode="nearest"))
    canonical = answer(base, ls.unscale(images, m, size=(64, 64)))
    for name in ("logits", "depth"):
        whole = canonical[name] if canonical[name].dim() == 4 else canonical[name][:, None]
        expected = ls.scale(stretch(whole, *size), m).view_as(found[name])
        torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=0)
        assert found[name].shape[-2:] == size
    assert found["labels"].shape == (2, *size)
    assert (found["labels"] == found["logits"].argmax(1)).float().mean() > 0.9
    torch.testing.assert_close(found["coarse"], ls.scale(canonical["coarse"], m), atol=1e-5, rtol=0)
    with model.disabled():
        off = answer(model, images, labels=labels)
    torch.testing.assert_close(off["logits"], enlarged, atol=1e-5, rtol=0)
    assert base.seen.shape == (2, 64, 64)


def test_a_thing_is_found_where_the_large_image_shows_it():
    """A segmenter that marks bright pixels marks the bright disc of the large image, wherever the map put it."""

    class Bright(nn.Conv2d):
        def forward(self, images: Tensor) -> Tensor:
            return 20 * (images[:, :1] - 0.5)

    rows, columns = torch.meshgrid(torch.arange(128.0), torch.arange(128.0), indexing="ij")
    shown = (((rows - 50) ** 2 + (columns - 80) ** 2).sqrt() < 20).float()
    model = moving(equivariant(Bright(3, 1, 1)))
    images = shown.expand(1, 3, 128, 128)
    assert answer(model, images, return_report=True)[1]["input"].map.mean_displacement().min() > 1e-3
    found = answer(model, images)[0, 0] > 0
    overlap = (found & (shown > 0)).sum() / (found | (shown > 0)).sum()
    assert overlap > 0.9


class Corner(nn.Module):
    """A detector that answers with the box and centre of the bright pixels of each image, and learns from targets."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.seen = nn.Parameter(torch.ones(())), None

    def forward(self, images: list[Tensor], targets=None):
        self.seen, found = targets, []
        for image in images:
            rows, columns = (image[0] > 0.5).nonzero().unbind(dim=1)
            box = torch.stack((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)).float()
            points = torch.stack((box[0] + box[2], box[1] + box[3], torch.tensor(2.0))) / 2
            mask = (image[:1] > 0.5).float()[None]
            found.append({"boxes": self.scale * box[None], "masks": mask, "keypoints": points[None, None]})
        return found


def test_boxes_come_back_in_pixels_of_large_images():
    images, boxes = [torch.zeros(3, 120, 160), torch.zeros(3, 200, 130)], [(40, 30, 90, 70), (0, 100, 130, 200)]
    for image, (left, top, right, bottom) in zip(images, boxes, strict=True):
        image[:, top:bottom, left:right] = 1
    model = equivariant(Corner())
    targets = [{"boxes": torch.tensor([box], dtype=torch.float32)} for box in boxes]
    for trust in (0.2, 0.0):
        found, report = answer(moving(model, trust), images, targets=targets, return_report=True)
        for index, (image, one, box) in enumerate(zip(images, found, targets, strict=True)):
            m, size = report["input"].map[index], (image.shape[1], image.shape[2])
            shown = ls.scale_boxes(box["boxes"], m.inverse(), size=size)
            around = ls.scale_boxes(shown, m, size=size)  # larger than the thing, because the map bends its outline
            torch.testing.assert_close(one["boxes"], around, atol=3, rtol=0)  # about a pixel of the canonical form
            assert one["masks"].shape == (1, 1, *size)
            assert ((one["masks"][0, 0] > 0.5) == (image[0] > 0.5)).float().mean() > 0.95
            assert one["keypoints"].shape == (1, 1, 3)
            assert one["keypoints"][0, 0, 2] == 1
            given = model.base.seen[index]["boxes"]
            factors = torch.tensor([64 / size[1], 64 / size[0]] * 2)
            torch.testing.assert_close(given, shown * factors, atol=0.6, rtol=0)
    middle = torch.tensor([65.0, 50.0])
    torch.testing.assert_close(found[0]["keypoints"][0, 0, :2], middle, atol=2, rtol=0)
    assert found[1]["boxes"][0, 0].item() == pytest.approx(0, abs=1e-4), "the border stays the border"
    assert found[1]["boxes"][0, 2].item() == pytest.approx(130, abs=1e-4)


@pytest.mark.slow
def test_a_torchvision_detector_finds_large_boxes():
    torch.manual_seed(0)
    base = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, min_size=64, box_score_thresh=0.0, num_classes=3
    ).eval()
    images = [torch.rand(3, 150, 200), torch.rand(3, 128, 128)]
    before = answer(base, [resize_cubic(image[None], 64, 64)[0] for image in images])
    found = answer(equivariant(base), images)
    for image, one, small in zip(images, found, before, strict=True):
        factors = torch.tensor([image.shape[2], image.shape[1]] * 2) / 64
        torch.testing.assert_close(one["boxes"], small["boxes"] * factors, atol=1.5, rtol=0)


# Saving, preprocessing, fitting


def test_it_is_saved_and_loaded(tmp_path: Path):
    model = sized("input", source_size=(96, 128))
    assert model.preprocessing.input_size == (3, 96, 128)
    model.save_pretrained(tmp_path)
    assert "96×128 px, 64×64 px" in (tmp_path / "README.md").read_text()
    loaded = AdaptedModel.from_pretrained(tmp_path, VIT.build())
    assert (loaded.source_size, loaded.preprocessing) == (model.source_size, model.preprocessing)
    images = torch.rand(2, 3, 96, 128)
    assert torch.equal(answer(loaded.eval(), images), answer(model, images))
    described = from_tensor(model.state_dict()["_extra_state"])  # what a checkpoint of transformers' Trainer holds
    assert described["source_size"] == [96, 128]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("source_size") == [96, 128]
    (tmp_path / "config.json").write_text(json.dumps(config))  # as older versions wrote both files
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors")
    assert AdaptedModel.from_pretrained(tmp_path, VIT.build()).source_size is None
    (tmp_path / "config.json").write_text(json.dumps(config | {"source_size": [8, 8]}))
    with pytest.raises(CheckpointError, match="source_size is 8×8"):
        AdaptedModel.from_pretrained(tmp_path, VIT.build())


def test_preprocessing_shows_the_same_part_of_a_photograph():
    usual = Preprocessing.of(RESNET.build())
    model = adapt(RESNET.build(), DECConfig(**SMALL), input_size=(3, 64, 64), source_size=128)
    assert model.preprocessing.crop == usual.crop
    photograph = torch.linspace(0, 255, 300)[None, None].expand(3, 200, 300).to(torch.uint8)
    large = model.preprocessing.transform()(photograph)
    small = Preprocessing.of(RESNET.build(), input_size=(3, 64, 64)).transform()(photograph)
    assert large.shape == (3, 128, 128)
    torch.testing.assert_close(resize_cubic(large[None], 64, 64)[0], small, atol=0.06, rtol=0)
    assert model.preprocessing.to_processor()["crop_size"] == {"height": 128, "width": 128}


def test_fit_trains_on_large_images():
    model = adapt(VIT.build(), DECConfig(**SMALL), source_size=96)
    images, labels = torch.rand(4, 3, 96, 96), torch.tensor([0, 1, 2, 3])
    fitted = ls.fit(model, [(images, labels)], [(images, labels)], epochs=1, size_weight=1.0, cpu=True, progress=False)
    assert fitted.best.metrics["invariance_error"] >= 0


@pytest.mark.parametrize(
    ("size", "sites", "message"),
    [
        (48, ("input",), "source_size is 48×48; expected an integer or"),
        ((128, 32), ("input",), "at least 64×64, the backbone's input"),
        ("large", ("input",), "source_size is 'large'"),
        ((128, 128, 3), ("input",), "source_size is"),
        (128, ("blocks.0",), 'needs the site "input".*the sites are blocks.0'),
    ],
)
def test_sizes_that_cannot_be_are_named(size, sites: tuple[str, ...], message: str):
    base = VIT.build()
    with pytest.raises(ConfigError, match=message):
        adapt(base, DECConfig(sites=sites, **SMALL), source_size=size)
    adapt(base, DECConfig(**SMALL))  # the base is as it was


def test_an_integer_is_the_longer_side():
    base = Pixels()
    model = adapt(base, DECConfig(**SMALL), input_size=(3, 48, 64), source_size=128)
    assert model.source_size == (96, 128)
