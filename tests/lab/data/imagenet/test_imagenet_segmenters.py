"""Segmenters: SAM, SAM from ONNX files, GrabCut, and masks from disk."""

from pathlib import Path

import numpy as np
import pytest
from imagenet_models import write_onnx_decoder, write_onnx_encoder, write_sam
from photographs import disc, options, paint, photograph
from PIL import Image

from localscale.errors import DataError
from localscale.lab.data.boxes import Box, bounding_box
from localscale.lab.data.generation.job import Skip
from localscale.lab.data.imagenet.onnx_sam import OnnxSamSegmenter
from localscale.lab.data.imagenet.segmenters import GivenSegmenter, GrabCutSegmenter, SamSegmenter
from localscale.lab.data.imagenet.stages import Photograph

USUAL = ("image_embeddings", "point_coords", "point_labels", "mask_input", "has_mask_input", "orig_im_size")


def overlap(found: np.ndarray, true: np.ndarray) -> float:
    return float((found & true).sum() / (found | true).sum())


# SAM


def test_sam_returns_a_mask_of_the_photographs_size(tmp_path: Path):
    segment = SamSegmenter(options(sam_model=str(write_sam(tmp_path / "sam"))))
    for width, height in ((96, 80), (50, 64)):
        shown = photograph(disc(width, height, 15, (25, 30)))
        mask = segment(shown, Box(10, 15, 40, 45))
        assert (mask.dtype, mask.shape) == (np.bool_, (height, width))
        np.testing.assert_array_equal(segment(shown, Box(10, 15, 40, 45)), mask)


# ONNX


@pytest.mark.parametrize(
    ("square", "names", "small"),
    [(64, USUAL, False), (None, (*USUAL[:3], "orig_im_size"), False), (32, USUAL, True)],
    ids=["square encoder", "free encoder, few inputs", "small masks"],
)
def test_onnx_sam_takes_the_best_mask(tmp_path: Path, square: int | None, names: tuple[str, ...], small: bool):
    segment = OnnxSamSegmenter(
        options(
            sam_encoder=write_onnx_encoder(tmp_path / "encoder.onnx", square=square),
            sam_decoder=write_onnx_decoder(tmp_path / "decoder.onnx", names=names, small=small),
        )
    )
    mask = segment(photograph(), Box(20, 20, 60, 60))
    assert (mask.dtype, mask.shape) == (np.bool_, (80, 96))
    assert mask.all(), "the second of three masks has the highest score and is all object"


def test_other_onnx_graphs_are_refused_with_their_inputs(tmp_path: Path):
    encoder = write_onnx_encoder(tmp_path / "encoder.onnx", square=64)
    decoder = write_onnx_decoder(tmp_path / "decoder.onnx", names=USUAL)
    other = write_onnx_decoder(tmp_path / "other.onnx", names=("pixel_values", "orig_im_size"))
    with pytest.raises(DataError, match="has the inputs orig_im_size, pixel_values; expected those of the usual SAM"):
        OnnxSamSegmenter(options(sam_encoder=encoder, sam_decoder=other))
    with pytest.raises(DataError, match=r"takes image_embeddings .*expected one input \(1, 3, S, S\) or \(H, W, 3\)"):
        OnnxSamSegmenter(options(sam_encoder=decoder, sam_decoder=decoder))
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(DataError, match="cannot be loaded as an ONNX model"):
        OnnxSamSegmenter(options(sam_encoder=tmp_path / "broken.onnx", sam_decoder=decoder))
    with pytest.raises(DataError, match=r"--sam-decoder .*nowhere.onnx does not exist"):
        OnnxSamSegmenter(options(sam_encoder=encoder, sam_decoder=tmp_path / "nowhere.onnx"))


# GrabCut


@pytest.mark.parametrize("factor", [1, 4])
def test_grabcut_finds_a_disc_in_its_box(factor: int):
    mask = disc(96 * factor, 80 * factor, 20 * factor, (48 * factor, 40 * factor))
    segment = GrabCutSegmenter(options())
    found = segment(photograph(mask), bounding_box(mask))
    assert found.shape == mask.shape
    assert overlap(found, mask) > 0.95
    np.testing.assert_array_equal(segment(photograph(mask), bounding_box(mask)), found, "the result is deterministic")


def test_grabcut_works_with_a_loose_box():
    found = GrabCutSegmenter(options())(photograph(), bounding_box(disc()).scaled(1.4))
    assert overlap(found, disc()) > 0.95


def test_grabcut_fills_holes_and_drops_specks():
    mask = disc()
    pixels = paint(mask)
    pixels[38:42, 46:50] = (90, 140, 200)
    pixels[22:24, 30:32] = (200, 30, 40)
    found = GrabCutSegmenter(options())(Photograph("a/b.png", pixels, (96, 80), "ball"), bounding_box(mask))
    assert found[38:42, 46:50].all()
    assert not found[22:24, 30:32].any()


def test_grabcut_uses_the_frame_as_background_if_the_box_is_the_whole_image():
    found = GrabCutSegmenter(options())(photograph(disc(radius=30)), Box(0, 0, 96, 80))
    assert overlap(found, disc(radius=30)) > 0.9


def test_an_empty_mask_is_tried_again_and_then_skipped(monkeypatch: pytest.MonkeyPatch):
    segment = GrabCutSegmenter(options())
    cv2, certain = segment.cv2, []

    def collapse(image: np.ndarray, mask: np.ndarray, *_) -> None:
        certain.append(bool((mask == cv2.GC_FGD).any()))
        mask[:] = np.where(mask == cv2.GC_FGD, cv2.GC_FGD, cv2.GC_PR_BGD)

    monkeypatch.setattr(cv2, "grabCut", collapse)
    found = segment(photograph(), bounding_box(disc()))
    assert found[40, 48], "the core, which was marked as object, is left"
    assert certain == [False, True, True]
    monkeypatch.setattr(cv2, "grabCut", lambda image, mask, *_: mask.fill(cv2.GC_PR_BGD))
    nothing = Skip("the segmenter found no object", {"detail": "GrabCut's mask collapsed"})
    assert segment(photograph(), bounding_box(disc())) == nothing
    assert segment(photograph(), Box(40.1, 40.1, 40.2, 40.2)) == nothing


# From disk


def test_given_masks_are_thresholded_at_half_brightness(tmp_path: Path):
    (tmp_path / "ball").mkdir()
    levels = np.where(disc(), 128, 127).astype(np.uint8)
    Image.fromarray(levels).save(tmp_path / "ball" / "0.png")
    segment = GivenSegmenter(options(masks=tmp_path))
    np.testing.assert_array_equal(segment(photograph(), Box(0, 0, 1, 1)), disc())
    halved = Photograph("ball/0.jpg", np.zeros((40, 48, 3), np.uint8), (96, 80), "ball")
    assert overlap(segment(halved, Box(0, 0, 1, 1)), disc(48, 40, 10, (24, 20))) > 0.95
    assert segment(photograph(name="ball/9.png"), Box(0, 0, 1, 1)) == Skip("no mask is given")


def test_bad_masks_are_skipped_with_the_reason(tmp_path: Path):
    (tmp_path / "ball").mkdir()
    Image.fromarray(disc(50, 40)).save(tmp_path / "ball" / "0.png")
    (tmp_path / "ball" / "1.png").write_bytes(b"")
    segment = GivenSegmenter(options(masks=tmp_path))
    small, empty = (segment(photograph(name=f"ball/{n}.jpg"), Box(0, 0, 1, 1)) for n in (0, 1))
    assert isinstance(small, Skip)
    assert small.reason == "the given mask cannot be used"
    assert "50×40 pixels; expected the size of its image, 96×80" in small.record["detail"]
    assert isinstance(empty, Skip)
    assert "empty (zero bytes)" in empty.record["detail"]
    with pytest.raises(DataError, match="is a file; expected a folder with a mask for each image"):
        GivenSegmenter(options(masks=tmp_path / "ball" / "0.png"))
