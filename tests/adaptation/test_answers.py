"""Answers of every usual kind go back from canonical forms to the images."""

import collections
import dataclasses
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torchvision
import transformers
from backbones import SMALL, randomise_heads
from dec_configs import dec_config
from torch import Tensor, nn

import localscale as ls
from localscale import AdaptedModel, adapt
from localscale.errors import SiteError


def smooth(batch: int, height: int, width: int) -> Tensor:
    """Smooth random images; averages over them, as a canonicalizer takes, do not vanish."""
    noise = torch.randn(batch, 3, 4, 4, generator=torch.Generator().manual_seed(height * width))
    return 3 * nn.functional.interpolate(noise, size=(height, width), mode="bilinear", align_corners=True)


IMAGES = smooth(2, 64, 64)
Pair = collections.namedtuple("Pair", ["maps", "scores"])


@dataclasses.dataclass
class Result:
    maps: Tensor
    scores: Tensor


def adapted(base: nn.Module, mode: str = "equivariant") -> AdaptedModel:
    """An adapted copy of ``base`` whose maps are far from the identity."""
    model = adapt(
        base.eval(), dec_config(sites=("input",), mode=mode, fixed_steps=True, **SMALL), input_size=(3, 64, 64)
    )
    return randomise_heads(model, std=3.0)


def both(model: AdaptedModel, images: Any = IMAGES, **arguments: Any) -> tuple[Any, Any, Any]:
    """The model's answer, the base's answer on the canonical forms, and the maps."""
    with torch.no_grad():
        found, report = model(images, return_report=True, **arguments)
        m = report["input"].map
        assert m.mean_displacement().min() > 0.01
        if isinstance(images, Tensor):
            canonical: Any = ls.unscale(images, m)
        else:
            canonical = [ls.unscale(image[None], m[i])[0] for i, image in enumerate(images)]
        return found, model.base(canonical, **arguments), m


class Answering(nn.Module):
    """Class maps of a quarter of the size, scores, labels of pixels and a loss, in the given container."""

    def __init__(self, container: str):
        super().__init__()
        self.container, self.conv = container, nn.Conv2d(3, 4, 3, stride=4, padding=1)

    def forward(self, images: Tensor) -> Any:
        maps = self.conv(images)
        scores, loss, labels = maps.mean((2, 3)), maps.square().mean(), (images[:, 0] > 0).long()
        return {
            "dict": {"out": maps, "scores": scores, "loss": loss, "labels": labels},
            "OrderedDict": OrderedDict(out=maps, aux=2 * maps, scores=scores),
            "tuple": (loss, maps, scores),
            "list": [maps, 2 * maps],
            "nested": {"layers": (maps, [2 * maps]), "name": "x"},
            "namedtuple": Pair(maps, scores),
            "dataclass": Result(maps, scores),
            "ModelOutput": transformers.modeling_outputs.SemanticSegmenterOutput(
                loss=loss, logits=maps, hidden_states=(maps, scores), attentions=(torch.rand(2, 2, 8, 8),)
            ),
        }[self.container]


def leaves(answer: Any, path: str = "") -> dict[str, Any]:
    if isinstance(answer, dict):
        pairs: Any = answer.items()
    elif dataclasses.is_dataclass(answer):
        pairs = vars(answer).items()
    elif isinstance(answer, tuple | list):
        pairs = enumerate(answer)
    else:
        return {path: answer}
    return {name: leaf for key, value in pairs for name, leaf in leaves(value, f"{path}.{key}").items()}


@pytest.mark.parametrize(
    ("container", "scaled"),
    {
        "dict": {".out", ".labels"},
        "OrderedDict": {".out", ".aux"},
        "tuple": {".1"},
        "list": {".0", ".1"},
        "nested": {".layers.0", ".layers.1.0"},
        "namedtuple": {".0"},
        "dataclass": {".maps"},
        "ModelOutput": {".logits", ".hidden_states.0"},
    }.items(),
)
def test_what_has_pixels_is_scaled_back(container: str, scaled: set[str]):
    torch.manual_seed(0)
    found, canonical, m = both(adapted(Answering(container)))
    assert type(found) is type(canonical)
    before, after = leaves(canonical), leaves(found)
    assert list(before) == list(after)
    for name, value in before.items():
        if name in scaled:
            mode = "bilinear" if value.is_floating_point() else "nearest"
            torch.testing.assert_close(after[name], ls.scale(value, m, mode=mode), atol=1e-5, rtol=0)
            assert not torch.equal(after[name], value)
        elif "attentions" not in name:
            assert torch.equal(after[name], value) if isinstance(value, Tensor) else after[name] == value


def test_attentions_are_not_pixels():
    class Attending(nn.Conv2d):
        def forward(self, images: Tensor) -> Any:
            attention = torch.eye(8).expand(2, 1, 8, 8)
            return {"logits": super().forward(images), "attentions": (attention,)}

    found, canonical, _ = both(adapted(Attending(3, 2, 1)))
    assert torch.equal(found["attentions"][0], canonical["attentions"][0])


@pytest.mark.parametrize("container", ["dict", "ModelOutput", "tuple"])
def test_in_mode_invariant_nothing_is_scaled_back(container: str):
    torch.manual_seed(0)
    found, canonical, _ = both(adapted(Answering(container), mode="invariant"))
    for name, value in leaves(canonical).items():
        if "attentions" not in name:
            torch.testing.assert_close(leaves(found)[name], value)


@pytest.mark.parametrize(
    ("answer", "described"),
    [
        (lambda x: {"logits": x.mean((2, 3)), "loss": x.mean()}, r"dict\(logits: \(2, 3\), loss: \(\)\)"),
        (lambda x: (x.mean(), x.flatten(2)), r"tuple\(\(\), \(2, 3, 4096\)\)"),
        (lambda x: "a cat", "str"),
        (lambda x: [{"scores": x[0, 0, 0]}], r"list\(dict\(scores: \(64\)\)\)|list\(dict\(scores: \(64,\)\)\)"),
    ],
)
def test_what_cannot_be_scaled_back_is_named(answer: Any, described: str):
    class Base(nn.Conv2d):
        def forward(self, images: Tensor) -> Any:
            return answer(images)

    with pytest.raises(SiteError, match=rf"the model returned {described}; expected \(batch, classes"):
        adapted(Base(3, 1, 1))(IMAGES)


# Models of other libraries


def segformer() -> nn.Module:
    config = transformers.SegformerConfig(
        num_labels=4, depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 8, 8], decoder_hidden_size=8, num_attention_heads=[1] * 4
    )
    return transformers.SegformerForSemanticSegmentation(config)


def dpt(cls: Any) -> nn.Module:
    settings = {"image_size": 64, "patch_size": 16, "hidden_size": 16, "num_hidden_layers": 4, "intermediate_size": 16}
    config = transformers.DPTConfig(
        **settings,
        num_attention_heads=2,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        num_labels=4,
    )
    return cls(config)


def torchvision_segmenter(name: str) -> nn.Module:
    make = getattr(torchvision.models.segmentation, name)
    extra = {"aux_loss": True} if "deeplab" in name else {}
    return make(weights=None, weights_backbone=None, num_classes=4, **extra)


MODELS = {
    "SegFormer": (segformer, ["logits"]),
    "DPT segmentation": (lambda: dpt(transformers.DPTForSemanticSegmentation), ["logits"]),
    "DPT depth": (lambda: dpt(transformers.DPTForDepthEstimation), ["predicted_depth"]),
    "DeepLabV3": (lambda: torchvision_segmenter("deeplabv3_mobilenet_v3_large"), ["out", "aux"]),
    "LRASPP": (lambda: torchvision_segmenter("lraspp_mobilenet_v3_large"), ["out"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_segmenters_of_other_libraries(name: str):
    torch.manual_seed(0)
    make, keys = MODELS[name]
    found, canonical, m = both(adapted(make()))
    assert type(found) is type(canonical)
    for key in keys:
        torch.testing.assert_close(found[key], ls.scale(canonical[key], m), atol=1e-5, rtol=1e-4)
        assert not torch.equal(found[key], canonical[key])


class Depth(nn.Module):
    """One number for each place, at another size than the images, and tokens beside it."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size, self.scale = size, nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        depth = nn.functional.interpolate(self.scale * images, size=self.size, mode="bilinear", align_corners=True)
        return {
            "predicted_depth": depth.mean(1),
            "last_hidden_state": depth[:, 0],
            "scores": torch.ones(len(images), 5),
        }


@pytest.mark.parametrize(
    ("image", "map_", "fits"),
    [
        ((64, 64), (16, 16), True),
        ((64, 64), (128, 128), True),
        ((48, 96), (24, 48), True),
        ((33, 48), (16, 24), True),
        ((33, 48), (17, 24), True),
        ((64, 64), (17, 16), False),
        ((64, 64), (16, 32), False),
        ((48, 96), (48, 24), False),
    ],
)
def test_depth_of_another_size_goes_back_if_its_aspect_ratio_agrees(image, map_, fits: bool):
    model = adapted(Depth(map_))
    if not fits:
        with pytest.raises(SiteError, match="scales the answer back"):
            model(smooth(2, *image))
        return
    found, canonical, m = both(model, smooth(2, *image))
    torch.testing.assert_close(found["predicted_depth"], ls.scale(canonical["predicted_depth"], m))
    assert not torch.equal(found["predicted_depth"], canonical["predicted_depth"])
    assert torch.equal(found["last_hidden_state"], canonical["last_hidden_state"])


@pytest.mark.parametrize("size", [(64, 64), (48, 96)])
def test_the_loss_compares_canonical_labels(size: tuple[int, int]):
    """Labels are maps of the images, and the base model compares canonical forms, so labels must follow."""
    torch.manual_seed(0)
    model = adapted(segformer())
    nn.init.normal_(model.decode_head.classifier.weight)  # answers that differ from place to place
    images, labels = smooth(2, *size), torch.randint(4, (2, *size))
    with torch.no_grad():
        found, report = model(pixel_values=images, labels=labels, return_report=True)
        m = report["input"].map
        there = ls.unscale(labels, m, mode="nearest")
        expected = model.base(pixel_values=ls.unscale(images, m), labels=there)
        torch.testing.assert_close(found.loss, expected.loss)
        assert not torch.equal(there, labels)
        torch.testing.assert_close(model(images, labels).loss, expected.loss)  # by position


def test_label_maps_need_the_equivariant_mode():
    model = adapted(segformer(), mode="invariant")
    with pytest.warns(UserWarning, match='labels have places in the image, but with mode="invariant"') as said:
        model(pixel_values=IMAGES, labels=torch.zeros(2, 64, 64, dtype=torch.long))
    assert said[0].filename == __file__


# Images by name


@pytest.mark.parametrize("base", [nn.Conv2d(3, 2, 1), Answering("tuple")], ids=["Conv2d", "own"])
def test_images_may_be_called_pixel_values(base: nn.Module):
    model = adapted(base)
    with torch.no_grad():
        first, second = model(IMAGES), model(pixel_values=IMAGES)
    for one, other in zip(leaves(first).values(), leaves(second).values(), strict=True):
        assert torch.equal(one, other)


# Detectors


LIST = [smooth(1, *size)[0] for size in ((64, 96), (80, 50), (33, 64))]


class Detector(nn.Module):
    """A detector that finds the same things in every image."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, images: Any, targets: Any = None) -> Any:
        if self.training:
            self.targets = targets
            return {"loss": sum(image.mean() for image in images) + self.bias.sum()}
        return [self.look(image) for image in images]

    def look(self, image: Tensor) -> dict[str, Tensor]:
        height, width = image.shape[-2:]
        boxes = torch.tensor([[0.2, 0.3, 0.6, 0.5], [0.0, 0.0, 1.0, 1.0]]) * torch.tensor([width, height] * 2)
        masks = torch.zeros(2, 1, height, width)
        masks[0, 0, height // 4 : height // 2, width // 3 :] = 1
        keypoints = torch.tensor([[[0.5, 0.4, 1.0], [0.3, 0.9, 0.0]]]) * torch.tensor([width, height, 1.0])
        return {
            "boxes": boxes,
            "labels": torch.tensor([1, 2]),
            "scores": torch.tensor([0.9, 0.8]),
            "masks": masks,
            "keypoints": keypoints.expand(2, -1, -1),
        }


@pytest.mark.parametrize("images", [LIST, tuple(LIST), IMAGES], ids=["list", "tuple", "batch"])
def test_detections_are_mapped_back(images: Any):
    found, canonical, m = both(adapted(Detector()), images)
    assert len(found) == len(images)
    for index, (one, before) in enumerate(zip(found, canonical, strict=True)):
        size = tuple(images[index].shape[-2:])
        assert torch.equal(one["boxes"], ls.scale_boxes(before["boxes"], m[index], size=size))
        torch.testing.assert_close(one["boxes"][1], before["boxes"][1], atol=1e-4, rtol=0)  # the whole image
        assert (one["boxes"][0] - before["boxes"][0]).abs().max() > 0.5
        torch.testing.assert_close(one["masks"], ls.scale(before["masks"], m[index]))
        assert torch.equal(one["keypoints"][..., 2], before["keypoints"][..., 2])
        points = ls.scale_points(before["keypoints"][0, :, :2], m[index], size=size)
        torch.testing.assert_close(one["keypoints"][0, :, :2], points)
        assert torch.equal(one["labels"], before["labels"])
        assert torch.equal(one["scores"], before["scores"])


def test_boxes_need_the_equivariant_mode():
    model = adapted(Detector(), mode="invariant")
    with pytest.warns(UserWarning, match='with mode="invariant" the boxes are places in the canonical forms') as said:
        model(LIST)
    assert said[0].filename == __file__
    with model.disabled():
        model(LIST)  # warnings are errors


def test_detections_of_an_image_do_not_depend_on_the_others():
    model = adapted(Detector())
    together, alone = model(LIST), [model([image])[0] for image in LIST]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one["boxes"], other["boxes"], atol=1e-3, rtol=0)


def test_targets_are_mapped_to_canonical_forms():
    base = Detector()
    targets = [base.look(image) for image in LIST]
    for target in targets:
        target["masks"] = (target["masks"][:, 0] > 0).to(torch.uint8)
    model = adapted(base).train()
    losses, report = model(LIST, targets, return_report=True)
    assert set(losses) == {"loss"}
    for index, (seen, given) in enumerate(zip(base.targets, targets, strict=True)):
        m, size = report["input"].map[index], tuple(LIST[index].shape[-2:])
        torch.testing.assert_close(seen["boxes"], ls.scale_boxes(given["boxes"], m.inverse(), size=size))
        assert torch.equal(seen["masks"], ls.unscale(given["masks"], m, mode="nearest"))
        there = ls.scale_points(seen["keypoints"][0, :, :2], m, size=size)
        torch.testing.assert_close(there, given["keypoints"][0, :, :2], atol=1e-2, rtol=0)


def faster_rcnn(cls: str = "FasterRCNN") -> nn.Module:
    from torchvision.models.detection import FasterRCNN, KeypointRCNN, MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=8, padding=1), nn.ReLU())
    features.out_channels = 8  # type: ignore[assignment]
    anchors = AnchorGenerator(sizes=((16, 32),), aspect_ratios=((1.0,),))
    kind = {"FasterRCNN": FasterRCNN, "MaskRCNN": MaskRCNN, "KeypointRCNN": KeypointRCNN}[cls]
    pools = {
        f"{name}roi_pool": torchvision.ops.MultiScaleRoIAlign(["0"], size, 2)
        for name, size in {"box_": 7, "mask_": 14, "keypoint_": 14}.items()
        if name == "box_" or name.split("_")[0] in cls.lower()
    }
    few = {"rpn_post_nms_top_n_train": 8, "rpn_post_nms_top_n_test": 8, "box_detections_per_img": 3}
    return kind(features, 3, min_size=64, max_size=96, rpn_anchor_generator=anchors, **few, **pools)


@pytest.mark.parametrize("cls", ["FasterRCNN", "MaskRCNN", "KeypointRCNN"])
def test_torchvisions_detectors(cls: str):
    torch.manual_seed(0)
    model = adapted(faster_rcnn(cls))
    found, canonical, m = both(model, LIST)
    assert sum(len(one["boxes"]) for one in found)
    for index, (one, before) in enumerate(zip(found, canonical, strict=True)):
        size = tuple(LIST[index].shape[-2:])
        assert set(one) == set(before)
        torch.testing.assert_close(one["boxes"], ls.scale_boxes(before["boxes"], m[index], size=size))
        assert torch.equal(one["scores"], before["scores"])
    model.train()
    targets = [{"boxes": torch.tensor([[5.0, 5.0, 40.0, 30.0]]), "labels": torch.tensor([1])} for _ in LIST]
    for target, image in zip(targets, LIST, strict=True):
        target["masks"] = torch.ones(1, *image.shape[-2:], dtype=torch.uint8)
        target["keypoints"] = torch.tensor([[[20.0, 20.0, 1.0]] * 17])
    losses = model(LIST, targets)
    sum(losses.values()).backward()
    assert next(model.base.backbone.parameters()).grad.any()


def test_untrained_canonicalizers_leave_a_detector_as_it_is():
    torch.manual_seed(0)
    base = faster_rcnn().eval()
    with torch.no_grad():
        expected = base(LIST)
        found = adapt(base, ls.DECConfig(mode="equivariant"))(LIST)
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in other)


def test_lists_of_images_need_maps_from_features():
    config = dec_config(sites=("input", "backbone.0"), source="image", **SMALL)
    model = adapt(faster_rcnn().eval(), config, input_size=(3, 64, 64))
    with pytest.raises(SiteError, match=r'needs images of one size.*use source="latent" at backbone\.0'):
        model(LIST)


def test_images_of_a_list_are_checked():
    model = adapted(Detector())
    for wrong in ([torch.rand(1, 8, 8)], [torch.rand(2, 3, 8, 8)]):
        with pytest.raises(ls.errors.ShapeError, match=r"expected \(3, height, width\)"):
            model(wrong)
    with pytest.raises(ls.errors.ShapeError, match="without an image"):
        model([])
