"""Detectors: Grounding DINO, class evidence, and boxes from disk."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from imagenet_models import write_grounding_dino
from photographs import disc, options, photograph
from PIL import Image
from safetensors.torch import save_file
from shared import SHARED

from localscale.errors import ConfigError, DataError
from localscale.lab.data.boxes import Box, bounding_box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.detectors import EvidenceDetector, GivenDetector, GroundingDinoDetector
from localscale.lab.data.imagenet.evidence import box_from_evidence, evidence_box, evidence_map, load_classifier
from localscale.lab.data.imagenet.masks import clean_mask
from localscale.lab.data.imagenet.stages import Photograph

# Grounding DINO


@pytest.fixture(scope="module")
def dino_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grounding_dino(tmp_path_factory.mktemp("dino") / "model")


def test_grounding_dino_returns_its_best_box_in_pixels(dino_folder: Path):
    detect = GroundingDinoDetector(options(dino_model=str(dino_folder), dino_threshold=0.0))
    box = detect(photograph())
    assert isinstance(box, Box)
    assert 0 <= box.left < box.right <= 96
    assert 0 <= box.top < box.bottom <= 80
    assert 0 < box.score < 1
    assert detect(photograph()) == box
    lower = GroundingDinoDetector(options(dino_model=str(dino_folder), dino_threshold=box.score - 1e-3))
    assert lower(photograph()) == box, "it is the best one, whatever the threshold"


def test_grounding_dino_skips_if_no_box_reaches_the_threshold(dino_folder: Path):
    found = GroundingDinoDetector(options(dino_model=str(dino_folder), dino_threshold=1.0))(photograph())
    assert found == Skip("the detector found no box", {"detail": "none scored 1.0 or more"})


# Class evidence


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet", "test_convnext", "swin_tiny_patch4_window7_224"])
def test_evidence_works_for_every_family(name: str):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7).eval().requires_grad_(False)
    evidence = evidence_map(model, photograph().pixels, 3)
    assert evidence.ndim == 2
    assert min(evidence.shape) > 1
    assert evidence.sum() == pytest.approx(1)
    assert (evidence >= 0).all()
    assert not any(module._forward_hooks for module in model.modules()), "no hook is left behind"
    box = evidence_box(model, photograph().pixels, 3)
    assert box is None or 0 <= box.left < box.right <= 96


def test_evidence_lies_on_the_object():
    """The network only uses the red channel, position by position."""

    class Redness(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.feature_info = [{"module": "features", "reduction": 8, "num_chs": 1}]
            self.default_cfg = {"input_size": (3, 64, 64), "mean": (0, 0, 0), "std": (1, 1, 1)}
            self.features = torch.nn.Conv2d(3, 1, 8, 8, bias=False)
            self.features.weight.data = torch.tensor([1.0, 0.0, -1.0]).reshape(1, 3, 1, 1).expand(1, 3, 8, 8) / 64

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            redness = self.features(x).relu().square().flatten(1).sum(1)
            return torch.stack([-redness, redness], dim=1)

    mask = disc(128, 96, 22, (90, 40))
    shown = photograph(mask)
    box = evidence_box(Redness().requires_grad_(False), shown.pixels, 1)
    assert box is not None
    assert box.overlap(bounding_box(mask)) > 0.6
    assert evidence_box(Redness().requires_grad_(False), np.zeros((32, 32, 3), np.uint8), 1) is None


def test_the_box_is_drawn_around_the_strongest_part():
    evidence = np.zeros((16, 16))
    evidence[2:6, 3:7] = 1.0
    evidence[12:14, 12:14] = 0.6
    box = box_from_evidence(evidence, 160, 160)
    assert box is not None
    assert box.overlap(Box(30, 20, 70, 60)) > 0.7
    assert box.score == pytest.approx(16 / (16 + 4 * 0.6), abs=0.05)
    assert box_from_evidence(np.full((4, 4), 1 / 16), 8, 8) is None


def test_an_unknown_label_means_the_most_likely_class():
    model = timm.create_model("test_vit", num_classes=5).eval().requires_grad_(False)
    likeliest = evidence_map(model, photograph().pixels)
    np.testing.assert_array_equal(evidence_map(model, photograph().pixels, 99), likeliest)


def test_the_evidence_detector_loads_a_file(tmp_path: Path):
    torch.manual_seed(0)
    save_file(timm.create_model("test_vit", num_classes=5).state_dict(), tmp_path / "weights.safetensors")
    detect = EvidenceDetector(options(classifier="test_vit", classifier_weights=tmp_path / "weights.safetensors"))
    assert detect.model.num_classes == 5
    assert isinstance(detect(photograph()), Box | Skip)


def test_bad_classifiers_are_reported(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no classifier 'deit_tiny_patch16': did you mean deit_tiny"):
        load_classifier("deit_tiny_patch16")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no")
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        load_classifier("test_vit", broken)
    save_file({"head.weight": torch.zeros(3, 4)}, broken)
    with pytest.raises(DataError, match="does not fit test_vit"):
        load_classifier("test_vit", broken)
    save_file({"stem": torch.zeros(3)}, broken)
    with pytest.raises(DataError, match="has no classifier head"):
        load_classifier("test_vit", broken)


@pytest.mark.skipif(not (SHARED / "pets").is_dir(), reason="no Oxford-IIIT Pets sample in ../shared/data")
def test_evidence_boxes_beat_the_whole_image_on_real_photographs():
    model = load_classifier("deit_tiny_patch16_224", SHARED / "weights" / "deit_tiny_patch16_224.safetensors")
    ours, whole = [], []
    for path in sorted((SHARED / "pets" / "trainval").glob("*/*_trimap.png"))[::40]:
        true = bounding_box(np.asarray(Image.open(path)) >= 128)
        pixels = np.array(Image.open(str(path).replace("_trimap.png", ".jpg")).convert("RGB"))
        ours.append(evidence_box(model, pixels).overlap(true))
        whole.append(Box(0, 0, 256, 256).overlap(true))
    assert np.mean(ours) > 0.7
    assert np.mean(ours) > np.mean(whole) + 0.1


# From disk


def test_boxes_from_a_json_file_are_in_pixels_of_the_original(tmp_path: Path):
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps({"ball/0.png": [10, 20, 30, 200], "ball/1.png": {"box": [1, 2, 3, 4], "score": 0.5}}))
    detect = GivenDetector(options(boxes=path))
    assert detect(photograph()) == Box(10, 20, 30, 80)
    assert detect(photograph(name="ball/1.png")) == Box(1, 2, 3, 4, 0.5)
    assert detect(photograph(name="ball/2.png")) == Skip("no box is given")
    assert detect(Photograph("ball/0.png", np.zeros((40, 48, 3), np.uint8), (96, 80), "ball")) == Box(5, 10, 15, 40)


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ([1, 2, 3], "expected [left, top, right, bottom]"),
        ([30, 2, 10, 4], "is empty; expected left < right"),
        ([True, 2, 3, 4], "expected [left, top, right, bottom]"),
        ({"score": 1}, "expected [left, top, right, bottom]"),
        ([500, 2, 600, 4], "lies outside the image of 96×80 pixels"),
        ([1, 2, float("inf"), 4], "expected finite numbers"),
    ],
)
def test_bad_boxes_are_skipped_with_the_reason(tmp_path: Path, value: object, cause: str):
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps({"ball/0.png": value}))
    skip = GivenDetector(options(boxes=path))(photograph())
    assert isinstance(skip, Skip)
    assert skip.reason == "the given box cannot be used"
    assert cause in skip.record["detail"]


def test_boxes_from_a_folder_of_boxes_or_masks(tmp_path: Path):
    (tmp_path / "ball").mkdir()
    Image.fromarray(disc()).save(tmp_path / "ball" / "0.png")
    trimap = np.where(disc(radius=10), 255, np.where(disc(), 128, 0)).astype(np.uint8)
    Image.fromarray(trimap).save(tmp_path / "ball" / "1_trimap.png")
    (tmp_path / "ball" / "2.json").write_text('{"box": [1, 2, 3, 4], "score": 0.5}')
    Image.fromarray(np.zeros((80, 96), bool)).save(tmp_path / "ball" / "3.png")
    detect = GivenDetector(options(boxes=tmp_path))
    assert detect(photograph()) == bounding_box(disc())
    assert detect(photograph(name="ball/1.jpg")) == bounding_box(disc(radius=10)), (
        "the border of a trimap is not object"
    )
    assert detect(photograph(name="ball/2.jpg")) == Box(1, 2, 3, 4, 0.5)
    empty = detect(photograph(name="ball/3.jpg"))
    assert empty == Skip("the given box cannot be used", {"detail": "an empty mask has no box"})
    assert detect(photograph(name="ball/4.jpg")) == Skip("no box is given")
    assert GivenDetector(options(masks=tmp_path))(photograph()) == bounding_box(disc()), "--masks serves both"


def test_a_broken_box_file_is_reported(tmp_path: Path):
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DataError, match="holds a list; expected"):
        GivenDetector(options(boxes=tmp_path / "list.json"))
    for text in ("{", 100_000 * "["):
        (tmp_path / "list.json").write_text(text)
        with pytest.raises(DataError, match="cannot be read as JSON"):
            GivenDetector(options(boxes=tmp_path / "list.json"))


HEADER = "image,left,top,right,bottom\n"


def detect_with_table(tmp_path: Path, text: str, name: str = "ball/0.png") -> Box | Skip:
    (tmp_path / "boxes.csv").write_text(text)
    return GivenDetector(options(boxes=tmp_path / "boxes.csv"))(photograph(name=name))


@pytest.mark.parametrize("name", ["ball/0.png", "ball/0", "0.png", "0"])
def test_rows_of_a_csv_file_name_images_by_path_or_name(tmp_path: Path, name: str):
    assert detect_with_table(tmp_path, f"{HEADER}{name},0.25,0.5,0.75,1\n") == Box(24, 40, 72, 80)
    assert detect_with_table(tmp_path, f"{HEADER}{name},0.25,0.5,0.75,1\n", "ball/00.png") == Skip("no box is given")


def test_the_largest_of_several_boxes_is_used_and_clipped(tmp_path: Path):
    rows = "0,0,0,0.1,0.1\n1,0,0,1,1\n0,0.5,-0.01,1.02,0.5\n0,0.2,0.2,0.4,0.4\n"
    assert detect_with_table(tmp_path, HEADER + rows) == Box(48, 0, 96, 40)
    assert detect_with_table(tmp_path, f"\ufeffscore,{HEADER}1,0,0.5,0,1,0.5\n") == Box(48, 0, 96, 40)


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ("0,0.1,0.1,0.5", 'boxes.csv, row 3: bottom is ""; expected a fraction of the image'),
        ("0,0.1,wide,0.5,0.5", 'top is "wide"; expected a fraction'),
        ("0,10,20,300,200", 'left is "10"; expected a fraction'),
        ("0,nan,0,0.5,0.5", 'left is "nan"; expected a fraction'),
        ("0,0.5,0.1,0.4,0.5", "is empty; expected left < right"),
        ("0,1.01,0.1,1.04,0.5", "lies outside the image"),
    ],
)
def test_a_wrong_row_skips_its_image_with_the_reason(tmp_path: Path, row: str, cause: str):
    skip = detect_with_table(tmp_path, f"{HEADER}0,0,0,0.1,0.1\n{row}\n1,0,0,1,1\n")
    assert isinstance(skip, Skip)
    assert skip.reason == "the given box cannot be used"
    assert cause in skip.record["detail"]
    assert detect_with_table(tmp_path, f"{HEADER}0,0,0,0.1,0.1\n{row}\n1,0,0,1,1\n", "a/1.png") == Box(0, 0, 96, 80)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no column image, left, top, right, bottom"),
        (b"image,left,top,right\na,0,0,1\n", "has no column bottom; expected image,left,top,right,bottom"),
        (b"image,left,top,right,bottom\n,0,0,1,1\n", "row 2: no image is named"),
        (b"image,left,top,right,bottom\n", "holds no boxes"),
        (b"\xff\xfe\x00", "cannot be read as CSV"),
    ],
)
def test_a_wrong_csv_file_is_reported_before_the_job_starts(tmp_path: Path, data: bytes, message: str):
    (tmp_path / "boxes.csv").write_bytes(data)
    with pytest.raises(DataError, match=message):
        GivenDetector.settings(options(boxes=tmp_path / "boxes.csv"))


# Masks


def test_clean_mask_keeps_large_parts_and_large_gaps():
    mask = disc(radius=30) & ~disc(radius=15)
    mask[0, 0] = True
    ring = clean_mask(mask, gap=0.05)
    assert not ring[0, 0]
    assert not ring[40, 48], "a gap of this size belongs to the object"
    assert clean_mask(mask)[40, 48]
    assert not clean_mask(np.zeros((4, 4), bool)).any()
