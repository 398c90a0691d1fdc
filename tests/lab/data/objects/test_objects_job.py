"""The objects job: from options to files and back, with small inputs and with real samples."""

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import trimesh
from object_inputs import MESHES, PANORAMAS, needs_samples, noisy_radiance, textured_box, write_glb, write_hdr
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from localscale.errors import ConfigError, MissingExtraError
from localscale.lab.data.generation import Skip, generate
from localscale.lab.data.generation.job import build, run
from localscale.lab.data.objects import LocallyScaledObjects, ObjectsOptions, objects_job
from localscale.lab.data.objects import job as job_module


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    write_glb(folder / "meshes" / "box.glb", textured_box((0.25, 0.2, 0.15)))
    write_glb(folder / "meshes" / "cube.glb", textured_box((0.2, 0.2, 0.2)))
    write_glb(folder / "meshes" / "ball.glb", trimesh.creation.icosphere(radius=0.1))
    (folder / "meshes" / "broken.glb").write_bytes(b"glTF")
    for seed, name in enumerate(("alley", "beach", "cave", "dam", "exhibition")):
        write_hdr(folder / "panoramas" / f"{name}.hdr", noisy_radiance(16, seed))
    write_hdr(folder / "panoramas" / "square.hdr", np.ones((16, 16, 3)))
    return {"meshes": folder / "meshes", "panoramas": folder / "panoramas"}


def options(inputs: dict[str, Path], **changes) -> ObjectsOptions:
    return ObjectsOptions(**{**inputs, "count": 6, "group_size": 3, "image_size": 64, "samples": 2, **changes})


def make(chosen: ObjectsOptions) -> list:
    job = objects_job(chosen)
    steps = build(job.stages)
    return [sample for index in range(job.size) for sample in run(steps, index)]


@pytest.fixture(scope="module")
def samples(inputs) -> list:
    return make(options(inputs))


def decode(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


# The job


def test_settings_hold_everything_the_files_depend_on(inputs):
    job = objects_job(options(inputs))
    assert job.kind == "objects"
    assert job.size == 2
    assert job.settings["classes"] == ["ball", "box", "cube"]
    assert set(job.settings["panoramas"]) < {"alley", "beach", "cave", "dam", "exhibition"}
    assert [each["file"] for each in job.settings["rejected"]["meshes"]] == ["broken.glb"]
    assert [each["file"] for each in job.settings["rejected"]["panoramas"]] == ["square.hdr"]
    text = json.dumps(job.settings)
    assert str(inputs["meshes"].parent) not in text
    train, test = (objects_job(options(inputs, split=split)).settings["panoramas"] for split in ("train", "test"))
    assert not set(train) & set(test)


def test_settings_change_with_the_content_of_a_mesh(inputs, tmp_path):
    for name in ("box", "cube"):
        write_glb(tmp_path / f"{name}.glb", textured_box((0.2, 0.2, 0.1)))
    changed = {**inputs, "meshes": tmp_path}
    first = objects_job(options(changed)).settings
    write_glb(tmp_path / "box.glb", textured_box((0.2, 0.3, 0.1)))
    second = objects_job(options(changed)).settings
    assert first["classes"] == second["classes"]
    assert first["meshes_sha256"] != second["meshes_sha256"]


def test_a_smaller_count_gives_the_same_images(inputs, samples):
    small = make(options(inputs, count=4))
    assert [sample.record["group"] for sample in small] == [0, 0, 0, 1]
    for a, b in zip(small, samples, strict=False):
        assert (a.key, a.files, a.record) == (b.key, b.files, b.record)


def test_files_agree_with_the_record(samples):
    ids = {"ball": 1, "box": 2, "cube": 3}
    assert len({sample.key for sample in samples}) == 6
    for sample in samples:
        image, classes, instances = (decode(sample.files[name]) for name in ("png", "class.png", "instance.png"))
        assert image.shape == (64, 64, 3)
        record = json.loads(json.dumps(sample.record))
        assert record["split"] == "train"
        for number, each in enumerate(record["objects"], start=1):
            assert each["class_id"] == ids[each["class"]]
            assert each["pixels"] == (instances == number).sum() > 0
            assert set(classes[instances == number]) == {each["class_id"]}
            assert each["visible"] >= 0.35
            notes = ["no UVs and no texture; mid-grey used"] if each["class"] == "ball" else []
            assert each["notes"] == notes
        assert (classes[instances == 0] == 0).all()
        assert set(record["camera"]) == {"height", "pitch", "heading", "field_of_view"}


def test_scales_are_reference_distance_over_distance(samples):
    for group in (0, 1):
        members = [sample.record for sample in samples if sample.record["group"] == group]
        assert [member["member"] for member in members] == [0, 1, 2]
        assert [each["scale"] for each in members[0]["objects"]] == [1.0, 1.0]
        for member in members:
            for each, first in zip(member["objects"], members[0]["objects"], strict=True):
                assert each["scale"] == pytest.approx(first["distance"] / each["distance"], rel=1e-4)
                assert (each["class"], each["yaw"], each["bearing"]) == (first["class"], first["yaw"], first["bearing"])


def test_other_splits_and_seeds_give_other_scenes(inputs):
    runs = [
        make(options(inputs, count=3, image_size=32, samples=1, **how)) for how in ({}, {"seed": 1}, {"split": "test"})
    ]
    cameras = [{json.dumps(sample.record["camera"]) for sample in samples} for samples in runs]
    assert not cameras[0] & cameras[1]
    assert not cameras[0] & cameras[2]
    assert {each["class"] for sample in runs[2] for each in sample.record["objects"]} <= {"ball", "box", "cube"}


def test_jpeg_images_have_lossless_masks(inputs):
    sample = make(options(inputs, count=1, image_format="jpg"))[0]
    assert set(sample.files) == {"jpg", "class.png", "instance.png"}
    assert set(np.unique(decode(sample.files["instance.png"]))) <= {0, 1, 2}


def test_a_group_without_a_valid_scene_is_skipped(inputs, monkeypatch):
    monkeypatch.setattr(job_module, "random_group", lambda *args, **kwargs: None)
    job = objects_job(options(inputs))
    skip = run(build(job.stages), 1)
    assert skip == Skip("no scene found in which both objects can be seen", {"group": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count is 0; expected at least 1"),
        ({"image_size": 8}, "image_size is 8; expected at least 32"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"split": "val"}, 'split is "val"; expected train or test'),
        ({"up": "x"}, 'up is "x"; expected y or z'),
        ({"renderer": "embre"}, r'no renderer "embre": did you mean embree\?'),
    ],
)
def test_bad_options_are_named(inputs, changes, message):
    with pytest.raises(ConfigError, match=message):
        objects_job(options(inputs, **changes))


def test_a_missing_package_names_its_extra(inputs, monkeypatch, tmp_path):
    write_glb(tmp_path / "box.glb", textured_box())
    monkeypatch.setitem(sys.modules, "trimesh", None)
    with pytest.raises(
        MissingExtraError, match=r"this needs the package trimesh .*pip install 'localscale\[objects\]'"
    ):
        objects_job(options({**inputs, "meshes": tmp_path}))


# On disk and back


@pytest.fixture(scope="module")
def written(inputs, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("written") / "objects"
    summary = generate(objects_job(options(inputs, count=5)), out)
    assert summary.images == 5
    return out


PROGRAM = """
import pickle, sys
from localscale.lab.data.generation.job import build, run
steps = build(pickle.loads(bytes.fromhex(sys.argv[1])))
for index in (1, 0):
    for sample in run(steps, index):
        for name, data in sample.files.items():
            print(sample.key, name, data.hex())
"""


def test_the_same_bytes_in_another_process_and_order(inputs, written):
    stages = pickle.dumps(objects_job(options(inputs, count=5)).stages).hex()
    command = [sys.executable, "-c", PROGRAM, stages]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    dataset = LocallyScaledObjects(written)
    found = {
        (record["key"], name): dataset.written.read(position, name).hex()
        for position, record in enumerate(dataset.written.records)
        for name in ("png", "class.png", "instance.png")
    }
    assert {(key, name): data for key, name, data in map(str.split, lines)} == found


def test_the_dataset_reads_what_was_written(written):
    dataset = LocallyScaledObjects(written)
    assert len(dataset) == 5
    assert dataset.classes == ["background", "ball", "box", "cube"]
    assert dataset.groups == {0: [0, 1, 2], 1: [3, 4]}
    image, classes, instances, group, scales = dataset[4]
    assert image.size == (64, 64)
    assert group == 1
    assert classes.dtype == instances.dtype == torch.int64
    assert classes.shape == (64, 64)
    assert set(instances.unique().tolist()) == {0, 1, 2}
    assert scales.tolist() == pytest.approx([each["scale"] for each in dataset.written.records[4]["objects"]])
    assert dataset[-1].group == 1
    with pytest.raises(IndexError, match="index 5 is out of range"):
        dataset[5]


def test_transforms_move_image_and_masks_together(written):
    flip = v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(p=1.0)])
    plain, flipped = LocallyScaledObjects(written), LocallyScaledObjects(written, transforms=flip)
    np.testing.assert_array_equal(np.asarray(plain[0].image)[:, ::-1], flipped[0].image.permute(1, 2, 0))
    assert torch.equal(plain[0].classes.flip(-1), flipped[0].classes)
    assert torch.equal(plain[0].instances.flip(-1), flipped[0].instances)


def test_items_can_be_batched(written):
    to_tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    dataset = LocallyScaledObjects(written, transform=to_tensor, target_transform=lambda target: target)
    batch = next(iter(DataLoader(dataset, batch_size=5)))
    assert batch.image.shape == (5, 3, 64, 64)
    assert batch.classes.shape == (5, 64, 64)
    assert batch.group.tolist() == [0, 0, 0, 1, 1]
    assert batch.scales.shape == (5, 2)


# Real meshes and panoramas


@needs_samples
def test_samples_render_plausibly():
    chosen = ObjectsOptions(meshes=MESHES, panoramas=PANORAMAS, count=2, group_size=2, image_size=128)
    samples = make(chosen)
    for sample in samples:
        image, instances = decode(sample.files["png"]), decode(sample.files["instance.png"])
        assert image.shape == (128, 128, 3)
        assert 20 < image.mean() < 220, "neither black nor overexposed"
        assert image[instances > 0].std() > 10, "objects have texture"
        for each in sample.record["objects"]:
            assert 0.005 * 128**2 < each["pixels"] < 0.45 * 128**2
