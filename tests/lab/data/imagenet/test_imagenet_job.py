"""From a folder of images to samples: order, skips, formats, records, and the same bytes everywhere."""

import dataclasses
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from imagenet_scenes import disc, paint, write_folder
from PIL import Image
from shared import SHARED

from localscale.errors import ConfigError, DataError
from localscale.lab.data.generation import generate
from localscale.lab.data.generation.job import Job, Sample, Skip, build, run
from localscale.lab.data.imagenet import ImageNetOptions, LocallyScaledImageNet, imagenet_job
from localscale.lab.data.imagenet.stages import DETECTORS, INPAINTERS, SEGMENTERS, look_up


def make(job: Job) -> list[list[Sample] | Skip]:
    steps = build(job.stages)
    return [run(steps, index) for index in range(job.size)]


def by_source(results: list[list[Sample] | Skip]) -> dict[str, list[Sample] | Skip]:
    return {(r if isinstance(r, Skip) else r[0]).record["source"]: r for r in results}


def pixels_of(data: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(data)))


# Samples


def test_every_image_gives_a_sample_per_scale(tmp_path: Path):
    options = write_folder(tmp_path)
    results = make(imagenet_job(options))
    assert len(results) == 4
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
        "detector": "given",
        "segmenter": "given",
        "inpainter": "telea",
    }


def test_what_passes_between_stages_can_be_pickled(tmp_path: Path):
    job = imagenet_job(write_folder(tmp_path, classes=1, images=1))
    value = 0
    for stage in job.stages:
        step = pickle.loads(pickle.dumps(stage.build))()
        value = pickle.loads(pickle.dumps(step(value)))
    assert len(value) == 7


def test_jpg_keeps_the_originals_own_bytes(tmp_path: Path):
    options = dataclasses.replace(write_folder(tmp_path, classes=1, images=1), image_format="jpg")
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
    originals = {source.split("/")[1]: samples[3] for source, samples in results.items()}
    assert originals["plain.jpg"].files["jpg"] == (folder / "plain.jpg").read_bytes()
    assert {name for name, sample in originals.items() if "png" in sample.files} == {
        "0.png",
        "grey.jpg",
        "cmyk.jpg",
        "turned.jpg",
    }
    assert all("jpg" in sample.files for samples in results.values() for sample in samples if sample is not samples[3])
    upright = pixels_of(originals["turned.jpg"].files["png"])
    assert np.abs(upright.astype(int) - paint(disc())).mean() < 5
    small = dataclasses.replace(options, size=64)
    assert "png" in by_source(make(imagenet_job(small)))["class0/plain.jpg"][3].files, "a resized one is stored anew"


@pytest.mark.parametrize("size", [40, 120])
def test_resizing_takes_boxes_and_masks_along(tmp_path: Path, size: int):
    options = dataclasses.replace(write_folder(tmp_path, classes=1, images=1), size=size, scales=(0.8, 1.0))
    samples = make(imagenet_job(options))[0]
    image = Image.open(io.BytesIO(samples[0].files["png"]))
    assert image.size == (round(96 * size / 80), size)
    assert samples[1].record["mask_area"] == pytest.approx(disc().mean(), rel=0.03)


# Skips


def test_every_unusable_image_is_a_skip_with_its_name(tmp_path: Path):
    options = write_folder(tmp_path, classes=1, images=1)
    folder, masks = options.images / "class0", options.masks / "class0"

    def add(name: str, mask: np.ndarray) -> None:
        Image.fromarray(paint(mask)).save(folder / name)
        Image.fromarray(mask).save(masks / Path(name).with_suffix(".png"))

    (folder / "broken.jpg").write_bytes((folder / "0.png").read_bytes()[:200])
    (folder / "empty.jpg").write_bytes(b"")
    Image.new("RGB", (20, 90)).save(folder / "narrow.png")
    Image.new("RGB", (90, 90)).save(folder / "unmasked.png")
    add("speck.png", disc(radius=4))
    add("huge.png", ~disc(radius=4))
    add("edge.png", disc(centre=(20, 40)))
    add("nothing.png", np.zeros((80, 96), bool))
    results = by_source(make(imagenet_job(dataclasses.replace(options, boxes=_boxes(tmp_path, folder)))))
    reasons = {name.removeprefix("class0/"): r.reason for name, r in results.items() if isinstance(r, Skip)}
    assert reasons == {
        "broken.jpg": "the image cannot be read",
        "empty.jpg": "the image cannot be read",
        "narrow.png": "the image is smaller than 32 pixels",
        "unmasked.png": "no mask is given",
        "speck.png": "the object covers less than 2% of the image",
        "huge.png": "the object covers more than 70% of the image",
        "edge.png": "the object would leave the frame at scale 1.3",
        "nothing.png": "the mask is empty",
    }
    assert "empty (zero bytes)" in results["class0/empty.jpg"].record["detail"]
    assert all(r.record["label"] == 0 for r in results.values() if isinstance(r, Skip))
    assert not any(str(tmp_path) in json.dumps(dict(r.record)) for r in results.values() if isinstance(r, Skip))


def _boxes(root: Path, folder: Path) -> Path:
    path = root / "boxes.json"
    path.write_text(json.dumps({f"class0/{image.name}": [5, 5, 60, 60] for image in folder.iterdir()}))
    return path


def test_masks_that_disagree_with_their_box_are_skips_unless_given(tmp_path: Path):
    options = write_folder(tmp_path, classes=1, images=1)
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"class0/0.png": [2, 2, 94, 78]}))  # the disc's box is 23 % of it
    options = dataclasses.replace(options, boxes=boxes)
    assert not isinstance(make(imagenet_job(options))[0], Skip)
    options = dataclasses.replace(options, segmenter="grabcut")
    skip = make(imagenet_job(options))[0]
    assert isinstance(skip, Skip)
    assert skip.reason == "the mask does not agree with the box"
    assert skip.record["overlap"] == pytest.approx(0.23, abs=0.02)
    assert not isinstance(make(imagenet_job(dataclasses.replace(options, agreement=0.1)))[0], Skip)


def test_an_image_that_went_away_is_a_skip(tmp_path: Path):
    options = write_folder(tmp_path, classes=1, images=1)
    job = imagenet_job(options)
    (options.images / "class0" / "0.png").unlink()
    skip = make(job)[0]
    assert isinstance(skip, Skip)
    assert skip.record["detail"] == "No such file or directory"


def test_a_hole_that_is_everything_is_a_skip(tmp_path: Path):
    options = write_folder(tmp_path, classes=1, images=1)
    skip = make(imagenet_job(dataclasses.replace(options, margin=0.25, scales=(1.0,), boxes=None)))[0]
    assert not isinstance(skip, Skip)
    mask = np.zeros((80, 96), bool)
    mask[8:72, 8:88] = True
    Image.fromarray(mask).save(options.masks / "class0" / "0.png")
    skip = make(imagenet_job(dataclasses.replace(options, margin=0.25, scales=(1.0,))))[0]
    assert isinstance(skip, Skip)
    assert skip.reason == "no background is left to fill from"


# Settings


def test_settings_know_files_by_content_and_not_by_place(tmp_path: Path):
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
        {"limit": 2},
        {"inpainter": "patchmatch"},
    ):
        assert settings != imagenet_job(dataclasses.replace(first, **change)).settings
    assert settings == imagenet_job(dataclasses.replace(first, dino_threshold=0.5)).settings, "not used, not kept"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"detector": "grounding-dyno"}, 'no detector "grounding-dyno": did you mean grounding-dino'),
        ({"segmenter": "same"}, 'no segmenter "same": did you mean sam'),
        ({"inpainter": "lamma"}, 'no inpainter "lamma": did you mean lama'),
    ],
)
def test_unknown_stages_name_the_near_miss(tmp_path: Path, change: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message):
        imagenet_job(dataclasses.replace(write_folder(tmp_path), **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inpainter": "lama"}, '"lama" needs the TorchScript file big-lama.pt'),
        ({"segmenter": "onnx-sam"}, "say where with --sam-encoder"),
        ({"masks": None}, "say where with --boxes"),
        ({"masks": None, "boxes": Path("nowhere")}, "--boxes .*nowhere does not exist"),
        (
            {"detector": "evidence", "classifier_weights": Path("nowhere")},
            "--classifier-weights .*nowhere does not exist",
        ),
    ],
)
def test_missing_files_are_named_before_anything_is_made(tmp_path: Path, change: dict, message: str):
    with pytest.raises((ConfigError, DataError), match=message):
        imagenet_job(dataclasses.replace(write_folder(tmp_path), **change))


def test_the_registries_hold_what_is_promised():
    assert list(DETECTORS) == ["grounding-dino", "evidence", "given"]
    assert list(SEGMENTERS) == ["sam", "onnx-sam", "grabcut", "given"]
    assert list(INPAINTERS) == ["lama", "patchmatch", "telea"]
    assert look_up(INPAINTERS, "telea", "inpainter") is INPAINTERS["telea"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scales": ()}, "scales are"),
        ({"scales": (1.0, 0.7)}, "expected increasing order, at least 0.001 apart"),
        ({"scales": (0.0, 1.0)}, "expected numbers from 0.1 to 4"),
        ({"limit": 0}, "limit is 0; expected at least 1"),
        ({"size": 3}, "size is 3; expected at least 16"),
        ({"feather": -1.0}, "feather is -1.0; expected 0 to 20"),
        ({"margin": float("nan")}, "margin is nan; expected 0 to 0.25"),
        ({"agreement": -0.1}, "agreement is -0.1; expected 0 to 1"),
        ({"dino_threshold": 2.0}, "dino_threshold is 2.0; expected 0 to 1"),
        ({"image_format": "gif"}, 'image_format is "gif"; expected "png" or "jpg"'),
    ],
)
def test_bad_options_are_named(change: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        ImageNetOptions(images=Path(), **change).check()


# Reproducible


PROGRAM = """
import hashlib, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parents[2])]
import test_imagenet_job as tests
from localscale.lab.data.generation.job import build, run
from localscale.lab.data.imagenet import ImageNetOptions, imagenet_job
root = Path(sys.argv[2])
options = ImageNetOptions(images=root / "images", masks=root / "masks", detector="given", segmenter="grabcut",
                          inpainter="patchmatch")
job = imagenet_job(options)
steps, parts = build(job.stages), {}
for index in map(int, sys.argv[3].split(",")):
    parts[index] = b"".join(s.files[k] for s in run(steps, index) for k in sorted(s.files))
print(hashlib.sha256(b"".join(parts[index] for index in sorted(parts))).hexdigest())
"""


def test_the_same_bytes_in_any_process_and_order(tmp_path: Path):
    write_folder(tmp_path)
    results = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tmp_path), order],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for order in ("0,1,2,3", "3,1,2,0")
    }
    assert len(results) == 1


@pytest.mark.skipif(not (SHARED / "imagenet").is_dir(), reason="no ImageNet sample in ../shared/data")
def test_real_photographs_end_to_end(tmp_path: Path):
    options = ImageNetOptions(
        images=SHARED / "imagenet" / "val",
        limit=30,
        detector="evidence",
        segmenter="grabcut",
        inpainter="patchmatch",
        classifier_weights=SHARED / "weights" / "deit_tiny_patch16_224.safetensors",
        scales=(0.7, 1.0),
        size=128,
    )
    summary = generate(imagenet_job(options), tmp_path / "out")
    assert summary.images % 2 == 0
    assert summary.images // 2 + sum(summary.skipped.values()) == 30
    assert summary.images > 0
    dataset = LocallyScaledImageNet(tmp_path / "out")
    assert len(dataset.classes) == 1000
    for positions in dataset.groups.values():
        small, original = (dataset.read_mask(position).sum() for position in positions)
        assert small / original == pytest.approx(0.49, abs=0.05)
        assert dataset.stored.records[positions[0]]["class_name"] == dataset.classes[dataset[positions[0]][1]]


def test_bad_folders_are_named(tmp_path: Path):
    with pytest.raises(DataError, match="is no folder; expected one with a subfolder per class"):
        imagenet_job(dataclasses.replace(write_folder(tmp_path), images=tmp_path / "nowhere"))
