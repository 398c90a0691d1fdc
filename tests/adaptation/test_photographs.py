"""``ls.adapt(base, "photographs")``: the canonicalizer that comes with the package, before any frozen classifier."""

from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor, nn

import localscale as ls
from localscale import Preprocessing, adapt
from localscale.canonicalizer import shipped
from localscale.conventions import lattice, resize_cubic
from localscale.errors import ConfigError, SiteError


@pytest.fixture(autouse=True)
def same_noise() -> None:
    torch.manual_seed(0)


def small_base(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return timm.create_model("resnet10t", num_classes=5, pretrained_cfg_overlay={"input_size": (3, 224, 224)}).eval()


def transformers_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(image_size=224, **sizes)).eval()


def photograph(size: tuple[int, int] = (448, 448), *boxes: tuple[float, float, float, float]) -> Image.Image:
    """A sky above a meadow, with a red and black ball in each box, in fractions of the picture."""
    image = Image.new("RGB", size, (150, 185, 225))
    draw, (width, height) = ImageDraw.Draw(image), size
    draw.rectangle((0, height * 0.6, width, height), fill=(90, 130, 60))
    for left, top, right, bottom in boxes:
        outline = (left * width, top * height, right * width, bottom * height)
        draw.ellipse(outline, fill=(200, 40, 30))
        draw.pieslice(outline, 200, 320, fill=(20, 20, 20))
    return image


def answer(model: nn.Module, images: Tensor, **arguments):
    with torch.no_grad():
        return model(images, **arguments)


def find_nothing(model: ls.AdaptedModel) -> ls.AdaptedModel:
    """Make the weights of all places nearly 0."""
    with torch.no_grad():
        model.size_canonicalizer().network.trunk.head.bias[1] -= 60
    return model


def test_it_comes_frozen_and_with_twice_the_pixels():
    base = small_base()
    model = adapt(base, "photographs")
    assert model.source_size == (448, 448)
    assert model.preprocessing.input_size == (3, 448, 448)
    assert not any(parameter.requires_grad for parameter in model.size_canonicalizer().parameters())
    assert all(parameter.requires_grad for parameter in base.parameters())
    assert adapt(small_base(), "photographs", input_size=(3, 96, 128)).source_size == (192, 256)
    assert adapt(small_base(), "photographs", source_size=224).source_size == (224, 224)


def test_the_package_holds_at_most_two_megabytes_of_it():
    files = [Path(shipped.HERE, f"{name}.{kind}") for name in shipped.SHIPPED for kind in ("json", "safetensors")]
    assert all(file.is_file() for file in files)
    assert sum(file.stat().st_size for file in files) <= 2_000_000


def test_a_small_thing_grows_and_a_large_one_stays():
    model = adapt(small_base(), "photographs").eval()
    frame = torch.stack(
        [
            model.preprocessing.transform()(photograph((448, 448), box))
            for box in ((0.35, 0.4, 0.6, 0.65), (-0.2, -0.2, 1.2, 1.2))
        ]
    )
    small, large = answer(model, frame, return_report=True)[1]["input"].map.local_scale(torch.full((2, 1, 2), 0.5))
    assert small < 0.95
    assert abs(large - 1) < 0.03


def test_where_nothing_is_found_the_answer_is_the_bases():
    base, images = small_base(), torch.randn(2, 3, 300, 448)
    expected = answer(base, resize_cubic(images, 224, 224))
    model = find_nothing(adapt(base, "photographs").eval())
    found, report = answer(model, images, return_report=True)
    assert torch.equal(found, expected)
    assert not report["input"].map.displacements.any()
    assert report["input"].converged.all()


@pytest.mark.parametrize("size", [(448, 448), (60, 40), (900, 120)])
@pytest.mark.parametrize("kind", ["RGB", "L", "LA", "P", "RGBA", "CMYK"])
def test_photographs_of_all_kinds_and_sizes_with_two_things_of_different_size(size: tuple[int, int], kind: str):
    model = adapt(small_base(), "photographs").eval()
    image = photograph(size, (0.1, 0.3, 0.2, 0.5), (0.5, 0.1, 0.95, 0.9)).convert(kind)
    found, report = answer(model, model.preprocessing.transform()(image)[None], return_report=True)
    m = report["input"].map
    assert found.isfinite().all()
    assert m.min_determinant() > 0
    assert m.mean_displacement() < 0.1
    assert m.local_scale(lattice(17, 17, dtype=torch.float32).reshape(1, -1, 2)).min() > 1 / 1.25, "at most 1.2 times"


def test_a_photograph_in_which_nothing_is_found_is_answered_as_alone_beside_others():
    model = adapt(small_base(), "photographs").eval()
    transform = model.preprocessing.transform()
    kinds = (photograph((448, 448), (0.35, 0.4, 0.6, 0.65)), Image.new("L", (900, 120), 130))
    images = torch.stack([transform(image) for image in kinds])
    found, report = answer(model, images, return_report=True)
    moved = report["input"].map.displacements.flatten(1).abs().amax(1)
    assert moved[0] > 1e-3
    assert moved[1] == 0
    assert torch.equal(found[1], answer(model.base, resize_cubic(images, 224, 224))[1])


def test_the_maps_are_the_same_before_every_base():
    bases = [
        (timm.create_model("vit_tiny_patch16_224", depth=1), None),  # mean and std 0.5
        (timm.create_model("resnet10t"), None),
        (timm.create_model("tf_efficientnet_b0"), None),
        (transformers_vit(), Preprocessing((0.1, 0.2, 0.3), (0.9, 0.7, 0.8), (3, 224, 224))),
    ]
    pixels = torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(4))
    pixels = F.interpolate(pixels, (448, 448), mode="bicubic").clamp(0, 1)
    found = []
    for base, preprocessing in bases:
        model = adapt(base, "photographs", preprocessing=preprocessing, input_size=(3, 224, 224)).eval()
        mean, std = (torch.tensor(v)[:, None, None] for v in (model.preprocessing.mean, model.preprocessing.std))
        report = answer(model, (pixels - mean) / std, return_report=True)[1]
        found.append(report["input"].map.displacements)
    assert found[0].abs().max() > 1e-3
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=0)


def test_a_base_must_say_how_images_are_normalised():
    base = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ConfigError, match="preprocessing="):
        adapt(base, "photographs")
    model = adapt(base, "photographs", preprocessing=Preprocessing((0, 0, 0), (1, 1, 1), (3, 224, 224)))
    assert model.preprocessing.input_size == (3, 448, 448)
    trunk = model.size_canonicalizer().network.trunk
    model.preprocessing = Preprocessing((0.5, 0.5, 0.5), (0.1, 0.2, 0.3), (3, 448, 448))
    torch.testing.assert_close(trunk.std, torch.tensor([0.1, 0.2, 0.3]))
    with pytest.raises(ConfigError, match="preprocessing="):
        model.preprocessing = None


def test_names_that_are_not_shipped_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="photographs"):
        adapt(small_base(), "photograph")
    file = tmp_path / "own.json"
    file.write_text(ls.DECConfig(knots=5).to_json(), encoding="utf-8")
    assert adapt(small_base(), str(file)).dec_config.knots == 5


def test_averaged_answers_by_hand():
    base, images = small_base(), torch.randn(3, 3, 448, 448).cumsum(3) / 20
    own = answer(base, resize_cubic(images, 224, 224))
    canonical = answer(adapt(small_base(), "photographs").eval(), images)
    model = adapt(base, "photographs", mode="averaged").eval()
    found, report = answer(model, images, return_report=True)
    torch.testing.assert_close(found, ((own.softmax(1) + canonical.softmax(1)) / 2).log())
    assert not torch.equal(own, canonical)
    assert report["input"].map.batch == 3
    with model.disabled():
        assert torch.equal(answer(model, images), own)


def test_averaged_answers_of_transformers_and_their_loss():
    labels, images = torch.tensor([1, 0]), torch.randn(2, 3, 448, 448)
    preprocessing = Preprocessing((0.5,) * 3, (0.5,) * 3, (3, 224, 224))
    model = adapt(transformers_vit(), "photographs", mode="averaged", preprocessing=preprocessing).eval()
    found = answer(model, images, labels=labels)
    torch.testing.assert_close(found.logits.exp().sum(1), torch.ones(2))
    torch.testing.assert_close(found.loss, F.nll_loss(found.logits, labels))


def test_averaged_answers_of_what_is_no_classifier_are_refused():
    dense = nn.Conv2d(3, 2, 1)
    preprocessing = Preprocessing((0, 0, 0), (1, 1, 1), (3, 64, 64))
    model = adapt(dense, "photographs", mode="averaged", preprocessing=preprocessing, input_size=(3, 64, 64))
    with pytest.raises(SiteError, match="classifier"):
        model(torch.rand(1, 3, 64, 64))
    with pytest.raises(ConfigError, match="averaged"):
        ls.DECConfig(mode="averaged", sites=("input", "layer1"))


@pytest.mark.parametrize("mode", ["invariant", "averaged"])
def test_saved_and_loaded(tmp_path, mode: str):
    images = torch.randn(2, 3, 224, 224).cumsum(2) / 20
    model = adapt(small_base(), "photographs", mode=mode).eval()
    expected = answer(model, images)
    model.save_pretrained(tmp_path)
    again = ls.AdaptedModel.from_pretrained(tmp_path, small_base()).eval()
    assert torch.equal(answer(again, images), expected)
    assert again.source_size == (448, 448)


@pytest.mark.parametrize("mode", ["invariant", pytest.param("averaged", marks=pytest.mark.slow)])
def test_it_compiles_into_one_graph(mode: str):
    images = torch.randn(2, 3, 96, 96).cumsum(2) / 20
    model = adapt(small_base(), "photographs", mode=mode, input_size=(3, 64, 64)).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(answer(compiled, images), answer(model, images))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["invariant", "averaged"])
def test_exported(mode: str, tmp_path: Path):
    images = torch.randn(2, 3, 448, 448).cumsum(2) / 20
    model = adapt(small_base(), "photographs", mode=mode).eval()
    program = torch.export.export(model, (images,), dynamic_shapes=(({0: torch.export.Dim("batch")},),))
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    with torch.no_grad():
        torch.onnx.export(model, (images,), dynamo=True, optimize=False, verbose=False).save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), answer(model, images), atol=1e-4, rtol=0)
    images = torch.randn(3, 3, 448, 448).cumsum(2) / 20
    torch.testing.assert_close(program.module()(images), answer(model, images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.02), (torch.float16, 1e-3)])
def test_half_precision_gives_nearly_the_same_maps(dtype: torch.dtype, most: float):
    model = adapt(small_base(), "photographs").eval()
    images = model.preprocessing.transform()(photograph((448, 448), (0.2, 0.3, 0.5, 0.6)))[None]
    exact = answer(model, images, return_report=True)[1]["input"].map.displacements
    with torch.autocast("cpu", dtype):
        mixed = answer(model, images, return_report=True)[1]["input"].map.displacements
    half = answer(model.to(dtype), images.to(dtype), return_report=True)[1]["input"].map.displacements
    assert half.dtype == mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, exact, atol=1e-3, rtol=0)
    torch.testing.assert_close(half, exact, atol=most, rtol=0)  # the weights are rounded, too


@pytest.mark.parametrize("colour", [0.0, 0.5, 1.0])
def test_an_image_of_one_colour_shows_nothing(colour: float):
    base, images = small_base(), torch.full((1, 3, 448, 448), colour)
    found, report = answer(adapt(base, "photographs").eval(), images, return_report=True)
    assert not report["input"].map.displacements.any()
    assert torch.equal(found, answer(base, resize_cubic(images, 224, 224)))


def test_the_reported_sizes_are_those_that_the_map_was_made_from():
    model = adapt(small_base(), "photographs").eval()
    images = model.preprocessing.transform()(photograph((448, 448), (0.35, 0.4, 0.6, 0.65)))[None]
    report = answer(model, images, return_report=True)[1]["input"]
    network = model.size_canonicalizer().network
    torch.testing.assert_close(report.map.displacements, network._correct(*report.sizes_before).displacements)
