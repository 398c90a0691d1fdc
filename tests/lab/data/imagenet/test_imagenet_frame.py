"""Objects at the frame: anchors, cut edges that stay at the frame, and the pixels that must not change."""

import dataclasses
import io
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from photographs import RED, SKY, disc, paint, write_folder
from PIL import Image
from shared import SHARED

from localscale.lab.data.generation import generate
from localscale.lab.data.generation.job import Skip, build, run
from localscale.lab.data.imagenet import ImageNetOptions, LocallyScaledImageNet, imagenet_job
from localscale.lab.data.imagenet.compositing import anchor_of, composite, cut_out, soften_rim
from localscale.lab.data.imagenet.masks import Sides, attach_to_frame, hole_around

WIDTH, HEIGHT, FEATHER = 96, 80, 1.5
CENTRES = {
    (): (48, 40),
    ("left",): (8, 40),
    ("top",): (48, 6),
    ("right",): (90, 40),
    ("bottom",): (48, 76),
    ("left", "top"): (6, 8),
    ("right", "bottom"): (90, 74),
}
shapes = st.fixed_dictionaries(
    {
        "centre": st.tuples(st.floats(-4, WIDTH + 4), st.floats(-4, HEIGHT + 4)),
        "radius": st.floats(8, 60),
    }
)
scales = st.floats(0.3, 2.0)


def place(mask: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a red object on a plain sky at another scale, and its new mask."""
    pixels = np.full((*mask.shape, 3), SKY, np.uint8)
    background = pixels.copy()
    pixels[mask] = RED
    return composite(background, cut_out(pixels, mask, feather=FEATHER), scale)


def covered(mask: np.ndarray, scale: float) -> np.ndarray:
    """Return the pixels that show the scaled object or lie within the reach of its soft edge, as a slow reference."""
    far, sides = 300, Sides.of(mask)
    mirrored = far * np.array([[sides.top, sides.bottom], [sides.left, sides.right]])
    wide = np.pad(np.pad(mask, mirrored, mode="symmetric"), far - mirrored)
    reach = 2 * FEATHER + 3 / min(scale, 1)
    near = cv2.distanceTransform((~wide).astype(np.uint8), cv2.DIST_L2, 5) <= reach
    (x, y), (height, width) = anchor_of(mask), mask.shape
    columns = np.floor(x + (np.arange(width) + 0.5 - x) / scale).astype(int) + far
    rows = np.floor(y + (np.arange(height) + 0.5 - y) / scale).astype(int) + far
    return near[np.ix_(rows, columns)]


@pytest.mark.parametrize("names", CENTRES)
def test_the_anchor_lies_on_the_sides_that_the_object_touches(names: tuple[str, ...]):
    x, y = CENTRES[names]
    mask = disc(radius=16, centre=(x, y))
    assert Sides.of(mask).names == list(names)
    found = anchor_of(mask)
    if "left" in names or "right" in names:
        assert found[0] == (0 if "left" in names else WIDTH)
    if "top" in names or "bottom" in names:
        assert found[1] == (0 if "top" in names else HEIGHT)


def test_an_object_between_two_sides_is_scaled_about_the_middle():
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[20:30] = True
    assert anchor_of(mask) == (WIDTH / 2, 25)
    _, shrunk = place(mask, 0.5)
    assert shrunk.any(axis=0).all(), "its mirror image continues it to both sides"
    assert shrunk.sum(axis=0).max() == pytest.approx(5, abs=1)


@settings(max_examples=40, deadline=None)
@given(shape=shapes, scale=scales)
def test_an_object_stays_attached_to_the_sides_that_it_touches(shape: dict, scale: float):
    mask = disc(WIDTH, HEIGHT, **shape)
    if mask.sum() < 100 or mask.all():
        return
    image, after = place(mask, scale)
    touched, left = Sides.of(mask), Sides.of(after)
    for name in touched.names:
        lines = {"left": mask[:, 0], "top": mask[0], "right": mask[:, -1], "bottom": mask[-1]}
        if lines[name].sum() * scale < 4:  # a contact this small may vanish when it is anti-aliased
            continue
        assert getattr(left, name), f"the object leaves the {name} side"
        views = {"left": image[:, 0], "top": image[0], "right": image[:, -1], "bottom": image[-1]}
        assert (views[name] == RED).all(axis=-1).any(), "nor does it fade toward the frame"


@pytest.mark.parametrize("names", [names for names in CENTRES if names])
@pytest.mark.parametrize("scale", [0.5, 0.7, 0.9, 1.1, 1.3])
def test_a_cut_object_keeps_its_shape(names: tuple[str, ...], scale: float):
    """The part inside the frame is the scaled disc, cut by the same sides."""
    x, y = CENTRES[names]
    before = disc(radius=16, centre=(x, y))
    (left, top), (_, after) = anchor_of(before), place(before, scale)
    expected = disc(radius=16 * scale, centre=(left + (x - left) * scale, top + (y - top) * scale))
    assert (after != expected).sum() <= 0.06 * expected.sum()


def test_what_leaves_the_frame_is_cut_by_it():
    before = disc(radius=20, centre=(25, 40))
    _, after = place(before, 1.5)
    expected = disc(radius=30, centre=(25, 40))
    assert (after != expected).sum() <= 0.02 * expected.sum()
    assert Sides.of(before).names == []
    assert Sides.of(after).names == ["left"]


@settings(max_examples=40, deadline=None)
@given(shape=shapes, scale=scales, seed=st.integers(0, 9))
def test_nothing_changes_outside_the_hole_and_the_object(shape: dict, scale: float, seed: int):
    mask = attach_to_frame(disc(WIDTH, HEIGHT, **shape))
    hole = hole_around(mask, 0.03)
    if mask.sum() < 100 or hole.all():
        return
    pixels = paint(mask, seed=seed)
    background = soften_rim(pixels, np.where(hole[..., None], np.uint8(0), pixels), hole, mask)
    image, after = composite(background, cut_out(pixels, mask, feather=FEATHER), scale)
    touched = hole | covered(mask, scale)
    np.testing.assert_array_equal(image[~touched], pixels[~touched])
    assert not (after & ~touched).any()


@pytest.mark.parametrize("gap", [0, 1, 2, 3])
def test_a_mask_that_nearly_reaches_the_frame_is_extended_to_it(gap: int):
    mask = np.zeros((300, 320), bool)
    mask[100 : 300 - gap, 100:200] = True
    attached = attach_to_frame(mask)
    assert Sides.of(attached).names == (["bottom"] if gap < 3 else [])
    assert attached[:, :100].sum() == attached[:, 200:].sum() == 0
    np.testing.assert_array_equal(attached[: 300 - gap], mask[: 300 - gap])


@pytest.mark.parametrize("names", CENTRES)
def test_the_written_image_at_scale_one_is_the_source(tmp_path: Path, names: tuple[str, ...]):
    options = write_folder(tmp_path, classes=1, images=1, centre=CENTRES[names])
    job = imagenet_job(dataclasses.replace(options, scales=(0.7, 1.0, 1.3)))
    samples = run(build(job.stages), 0)
    assert not isinstance(samples, Skip)
    source = np.array(Image.open(options.images / "class0" / "0.png"))
    found = [np.array(Image.open(io.BytesIO(sample.files["png"]))) for sample in samples]
    np.testing.assert_array_equal(found[1], source)
    assert all(image.shape == source.shape for image in found), "files keep the source's resolution"
    assert [sample.record["touches"] for sample in samples] == 3 * [list(names)]
    areas = [sample.record["object_area"] for sample in samples]
    assert areas == sorted(areas)


@pytest.mark.skipif(not (SHARED / "imagenet" / "boxes.csv").is_file(), reason="no ImageNet sample in ../shared/data")
def test_labelled_photographs_are_kept_at_full_size(tmp_path: Path):
    options = ImageNetOptions(
        images=SHARED / "imagenet" / "val",
        limit=8,
        detector="given",
        boxes=SHARED / "imagenet" / "boxes.csv",
        segmenter="grabcut",
        inpainter="telea",
        scales=(0.7, 1.3),
    )
    summary = generate(imagenet_job(options), tmp_path / "out")
    assert summary.images >= 2 * 7
    dataset = LocallyScaledImageNet(tmp_path / "out")
    for position in range(0, len(dataset), 2):
        with Image.open(options.images / dataset.written.records[position]["source"]) as source:
            assert dataset[position][0].size == source.size
