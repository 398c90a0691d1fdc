"""The ImageNet job: samples, skips, formats, records, settings, and the same bytes in every process."""

import dataclasses
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from photographs import disc, hash_samples, paint, write_folder
from PIL import Image
from shared import SHARED

from localscale.errors import ConfigError, DataError
from localscale.lab.data.generation import generate
from localscale.lab.data.generation.job import Job, Sample, Skip, build, run
from localscale.lab.data.imagenet import ImageNetOptions, LocallyScaledImageNet, imagenet_job


def make(job: Job) -> list[list[Sample] | Skip]:
    steps = build(job.stages)
    return [run(steps, index) for index in range(job.size)]


def by_source(results: list[list[Sample] | Skip]) -> dict[str, list[Sample] | Skip]:
    return {(r if isinstance(r, Skip) else r[0]).record["source"]: r for r in results}


def pixels_of(data: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(data)))


# Samples


def test_every_image_becomes_one_sample_per_scale(tmp_path: Path):
    options = write_folder(tmp_path, images=1)
    results = make(imagenet_job(options))
    assert len(results) == 2
    for index, samples in enumerate(results):
        assert [sample.record["scale"] for sample in samples] == [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3]
        assert {sample.record["group"] for sample in samples} == {index}
        assert [sample.key for sample in samples][:2] == [f"{index:07d}-0700", f"{index:07d}-0800"]
        original = samples[3]
        source = np.array(Image.open(options.images / original.record["source"]))
        np.testing.assert_array_equal(pixels_of(original.files["png"]), source)
        np.testing.assert_array_equal(pixels_of(original.files["mask.png"]) == 255, disc())
        areas = [sample.record["object_area"] for sample in samples]
        assert areas == pytest.approx([s.record["scale"] ** 2 * disc().mean() for s in samples], rel=0.04)
    record = dict(results[0][0].record)
    folder = record["class_folder"]
    assert record["source"].startswith(f"{folder}/")
    assert record == {
        **record,
        "label": int(folder[-1]),
        "class_name": folder,
        "box": [28, 20, 68, 60],
        "box_score": 1.0,
        "mask_area": round(disc().mean(), 6),
        "touches": [],
        "detector": "given",
        "segmenter": "given",
        "inpainter": "telea",
    }


def test_stages_and_their_results_can_be_pickled(tmp_path: Path):
    job = imagenet_job(write_folder(tmp_path, classes=1, images=1))
    value = 0
    for stage in job.stages:
        step = pickle.loads(pickle.dumps(stage.build))()
        value = pickle.loads(pickle.dumps(step(value)))
    assert len(value) == 7


def test_jpg_keeps_the_bytes_of_plain_originals(tmp_path: Path):
    options = dataclasses.replace(write_folder(tmp_path, classes=1, images=1), image_format="jpg", scales=(0.7, 1.0))
    folder, masks = options.images / "class0", options.masks / "class0"
    picture, mask = Image.fromarray(paint(disc())), (masks / "0.png").read_bytes()
    turned = Image.Exif()
    turned[0x0112] = 3
    picture.save(folder / "plain.jpg", quality=90)
    picture.convert("L").save(folder / "grey.jpg")
    picture.convert("CMYK").save(folder / "cmyk.jpg")
    picture.rotate(180).save(folder / "turned.jpg", exif=turned)
    for name in ("plain", "grey", "cmyk", "turned"):
        (masks / f"{name}.png").write_bytes(mask)
    results = by_source(make(imagenet_job(options)))
    originals = {source.split("/")[1]: samples[1] for source, samples in results.items()}
    assert originals["plain.jpg"].files["jpg"] == (folder / "plain.jpg").read_bytes()
    assert {name for name, sample in originals.items() if "png" in sample.files} == {
        "0.png",
        "grey.jpg",
        "cmyk.jpg",
        "turned.jpg",
    }
    assert all("jpg" in sample.files for samples in results.values() for sample in samples if sample is not samples[1])
    upright = pixels_of(originals["turned.jpg"].files["png"])
    assert np.abs(upright.astype(int) - paint(disc())).mean() < 5
    small = dataclasses.replace(options, size=64)
    assert "png" in by_source(make(imagenet_job(small)))["class0/plain.jpg"][1].files, (
        "a resized original is encoded again"
    )


@pytest.mark.parametrize("size", [40, 120])
def test_boxes_and_masks_are_resized_with_the_image(tmp_path: Path, size: int):
    options = dataclasses.replace(write_folder(tmp_path, classes=1, images=1), size=size, scales=(0.8, 1.0))
    samples = make(imagenet_job(options))[0]
    image = Image.open(io.BytesIO(samples[0].files["png"]))
    assert image.size == (round(96 * size / 80), size)
    assert samples[1].record["mask_area"] == pytest.approx(disc().mean(), rel=0.03)


# Skips


def test_every_unusable_image_is_skipped_with_its_name(tmp_path: Path):
    options = write_folder(tmp_path, classes=1, images=1)
    folder, masks = options.images / "class0", options.masks / "class0"

    def add(name: str, mask: np.ndarray) -> None:
        Image.fromarray(paint(mask)).save(folder / name)
        Image.fromarray(mask).save(masks / Path(name).with_suffix(".png"))

    (folder / "broken.jpg").write_bytes((folder / "0.png").read_bytes()[:200])
    (folder / "empty.jpg").write_bytes(b"")
    Image.new("RGB", (20, 90)).save(folder / "narrow.png")
    Image.new("RGB", (90, 90)).save(folder / "unmasked.png")
    add("speck.png", disc(radius=3))
    add("huge.png", ~disc(radius=4))
    add("edge.png", disc(centre=(20, 40)))
    add("nothing.png", np.zeros((80, 96), bool))
    options = dataclasses.replace(options, boxes=_boxes(tmp_path, folder), frame="inside")
    results = by_source(make(imagenet_job(options)))
    reasons = {name.removeprefix("class0/"): r.reason for name, r in results.items() if isinstance(r, Skip)}
    assert reasons == {
        "broken.jpg": "the image cannot be read",
        "empty.jpg": "the image cannot be read",
        "narrow.png": "the image is smaller than 32 pixels",
        "unmasked.png": "no mask is given",
        "speck.png": "the object covers less than 0.5% of the image",
        "huge.png": "the object covers more than 70% of the image",
        "edge.png": "the object would leave the frame at scale 1.3",
        "nothing.png": "the mask is empty",
    }
    assert "empty (zero bytes)" in results["class0/empty.jpg"].record["detail"]
    assert all(r.record["label"] == 0 for r in results.values() if isinstance(r, Skip))
    assert not any(str(tmp_path) in json.dumps(dict(r.record)) for r in results.values() if isinstance(r, Skip))
    wide = dataclasses.replace(options, frame="clip", min_area=0.0, max_area=1.0)
    kept = {name for name, r in by_source(make(imagenet_job(wide))).items() if not isinstance(r, Skip)}
    assert kept == {f"class0/{name}.png" for name in ("0", "edge", "huge", "speck")}


def _boxes(root: Path, folder: Path) -> Path:
    path = root / "boxes.json"
    path.write_text(json.dumps({f"class0/{image.name}": [5, 5, 60, 60] for image in folder.iterdir()}))
    return path


def test_masks_that_disagree_with_their_box_are_skipped_unless_given(tmp_path: Path):
    options = write_folder(tmp_path, classes=1, images=1)
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"class0/0.png": [2, 2, 94, 78]}))  # the disc's box is 23 % of it
    options = dataclasses.replace(options, boxes=boxes)
    assert not isinstance(make(imagenet_job(options))[0], Skip)
    options = dataclasses.replace(options, segmenter="grabcut")
    skip = make(imagenet_job(options))[0]
    assert isinstance(skip, Skip)
    assert skip.reason == "the mask does not agree with the box"
    assert skip.record["overlap"] == pytest.approx(0.25, abs=0.03)
    assert not isinstance(make(imagenet_job(dataclasses.replace(options, agreement=0.1)))[0], Skip)


def test_an_image_that_was_deleted_is_skipped(tmp_path: Path):
    options = write_folder(tmp_path, classes=1, images=1)
    job = imagenet_job(options)
    (options.images / "class0" / "0.png").unlink()
    skip = make(job)[0]
    assert isinstance(skip, Skip)
    assert skip.record["detail"] == "No such file or directory"


def test_an_image_without_background_is_skipped(tmp_path: Path):
    options = write_folder(tmp_path, classes=1, images=1)
    mask = np.zeros((80, 96), bool)
    mask[8:72, 8:88] = True
    Image.fromarray(mask).save(options.masks / "class0" / "0.png")
    skip = make(imagenet_job(dataclasses.replace(options, margin=0.25, scales=(1.0,))))[0]
    assert isinstance(skip, Skip)
    assert skip.reason == "no background is left to fill from"


# Settings


def test_settings_identify_files_by_content_and_not_by_path(tmp_path: Path):
    first, second = (write_folder(tmp_path / name) for name in ("here", "there"))
    settings = imagenet_job(first).settings
    assert settings == imagenet_job(second).settings
    assert str(tmp_path) not in json.dumps(settings)
    assert json.loads(json.dumps(settings)) == settings
    Image.fromarray(disc(radius=19)).save(second.masks / "class0" / "0.png", compress_level=0)
    assert settings != imagenet_job(second).settings
    for change in (
        {"feather": 2.0},
        {"margin": 0.05},
        {"scales": (0.7, 1.0)},
        {"frame": "inside"},
        {"min_area": 0.02},
        {"max_area": 0.8},
        {"limit": 2},
        {"inpainter": "patchmatch"},
    ):
        assert settings != imagenet_job(dataclasses.replace(first, **change)).settings
    assert settings == imagenet_job(dataclasses.replace(first, dino_threshold=0.5)).settings, (
        "options of a stage that is not used are not kept"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"detector": "grounding-dyno"}, 'no detector "grounding-dyno": did you mean grounding-dino'),
        ({"segmenter": "same"}, 'no segmenter "same": did you mean sam'),
        ({"inpainter": "lamma"}, 'no inpainter "lamma": did you mean lama'),
        ({"inpainter": "lama"}, '"lama" needs the TorchScript file big-lama.pt.*--inpainter patchmatch'),
        ({"segmenter": "onnx-sam"}, '"onnx-sam" reads from disk: .*--sam-encoder'),
        ({"masks": None}, '"given" reads from disk: .*--boxes'),
        ({"masks": None, "boxes": Path(__file__)}, '"given" reads from disk: .*--masks'),
        ({"masks": None, "boxes": Path("nowhere")}, "--boxes .*nowhere does not exist"),
        (
            {"detector": "evidence", "classifier_weights": Path("nowhere")},
            "--classifier-weights .*nowhere does not exist",
        ),
    ],
)
def test_unknown_stages_and_missing_files_are_reported_before_the_job_starts(
    tmp_path: Path, change: dict, message: str
):
    with pytest.raises((ConfigError, DataError), match=message):
        imagenet_job(dataclasses.replace(write_folder(tmp_path), **change))


# Reproducible


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from photographs import hash_samples
print(hash_samples(Path(sys.argv[2]), [1, 0]))
"""


def test_the_same_bytes_in_any_process_and_order(tmp_path: Path):
    write_folder(tmp_path, images=1)
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tmp_path)]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert other.strip() == hash_samples(tmp_path, [0, 1])


@pytest.mark.skipif(not (SHARED / "imagenet").is_dir(), reason="no ImageNet sample in ../shared/data")
def test_real_photographs_end_to_end(tmp_path: Path):
    options = ImageNetOptions(
        images=SHARED / "imagenet" / "val",
        limit=8,
        detector="evidence",
        segmenter="grabcut",
        inpainter="patchmatch",
        classifier_weights=SHARED / "weights" / "deit_tiny_patch16_224.safetensors",
        scales=(0.7, 1.0),
        frame="inside",
        size=96,
    )
    summary = generate(imagenet_job(options), tmp_path / "out")
    assert summary.images % 2 == 0
    assert summary.images // 2 + sum(summary.skipped.values()) == 8
    assert summary.images > 0
    dataset = LocallyScaledImageNet(tmp_path / "out")
    assert len(dataset.classes) == 1000
    for positions in dataset.groups.values():
        small, original = (dataset.read_mask(position).sum() for position in positions)
        assert small / original == pytest.approx(0.49, abs=0.05)
        assert dataset.written.records[positions[0]]["class_name"] == dataset.classes[dataset[positions[0]][1]]


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "imagenet").is_dir(), reason="no ImageNet sample in ../shared/data")
def test_nearly_all_real_photographs_with_labelled_boxes_are_kept():
    options = ImageNetOptions(
        images=SHARED / "imagenet" / "val",
        limit=20,
        detector="given",
        boxes=SHARED / "imagenet" / "boxes.csv",
        segmenter="grabcut",
        inpainter="telea",
        scales=(0.7, 1.0),
    )
    results = make(imagenet_job(options))
    skipped = [result.reason for result in results if isinstance(result, Skip)]
    assert len(results) == 20
    assert len(skipped) <= 0.15 * len(results), skipped
    for samples in results:
        if not isinstance(samples, Skip):
            original = samples[1]
            with Image.open(options.images / original.record["source"]) as source:
                assert pixels_of(next(iter(original.files.values()))).shape[:2] == source.size[::-1], "full resolution"
