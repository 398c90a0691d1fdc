"""Compositing: geometry, colours, and the pixels that must not change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from photographs import RED, SKY, disc, paint

from localscale.lab.data.boxes import bounding_box
from localscale.lab.data.imagenet.compositing import composite, cut_out, soften_rim
from localscale.lab.data.imagenet.masks import check_inside, hole_around

SCALES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
BLOB = disc(128, 112, 18, (60, 50)) | disc(128, 112, 9, (80, 60))  # asymmetric, so that a wrong centre is noticed


def place(mask: np.ndarray, scale: float, *, feather: float = 1.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the original, the composite on a plain sky, and the new mask."""
    pixels = np.full((*mask.shape, 3), SKY, np.uint8)
    pixels[mask] = RED
    hole = hole_around(mask, 0.02)
    background = np.where(hole[..., None], np.array(SKY, np.uint8), pixels)
    return pixels, *composite(background, cut_out(pixels, mask, feather=feather), scale)


@pytest.mark.parametrize("scale", [0.7, 1.1, 1.3])
def test_the_area_grows_with_the_square_of_the_scale(scale: float):
    _, _, mask = place(BLOB, scale)
    assert mask.sum() / BLOB.sum() == pytest.approx(scale**2, rel=0.03)


@settings(max_examples=30, deadline=None)
@given(
    scale=st.floats(0.5, 1.5),
    x=st.floats(50, 78),
    y=st.floats(45, 67),
    radius=st.floats(10, 22),
    feather=st.sampled_from([0.0, 1.5, 4.0]),
)
def test_the_centre_stays(scale: float, x: float, y: float, radius: float, feather: float):
    before = disc(128, 112, radius, (x, y))
    _, _, after = place(before, scale, feather=feather)
    expected, found = bounding_box(before).scaled(scale), bounding_box(after)
    assert found.centre == pytest.approx(expected.centre, abs=0.76)
    assert found.edges == pytest.approx(expected.edges, abs=1.01)


def test_scale_one_gives_the_object_back():
    pixels, image, mask = place(BLOB, 1.0)
    assert (mask != BLOB).sum() <= 0.01 * BLOB.sum()
    assert np.abs(image.astype(int) - pixels)[~(hole_around(BLOB, 0.02) & ~BLOB)].max() < 70, "edges are softened"
    core = BLOB & ~hole_around(~BLOB, 0.0)
    np.testing.assert_array_equal(image[core], pixels[core])


@pytest.mark.parametrize("scale", [0.7, 1.3])
def test_a_plain_object_has_no_fringe(scale: float):
    """Every pixel is a mixture of the two colours: none is darker, brighter or of another hue."""
    _, image, _ = place(BLOB, scale)
    sky, red = np.array(SKY, float), np.array(RED, float)
    along = ((image - sky) @ (red - sky)) / ((red - sky) @ (red - sky))
    assert along.min() >= -0.01
    assert along.max() <= 1.01
    nearest = sky + along[..., None] * (red - sky)
    assert np.abs(image - nearest).max() <= 1


@pytest.mark.parametrize("scale", [0.7, 1.3])
def test_no_old_background_is_pasted(scale: float):
    """If an object with green in its edge pixels is pasted on blue, no green is left."""
    mask = disc(96, 80, 18)
    soft = np.clip(18.5 - np.hypot(np.arange(96) - 47.5, np.arange(80)[:, None] - 39.5), 0, 1)[..., None]
    pixels = (soft * np.array(RED) + (1 - soft) * np.array([0, 255, 0])).astype(np.uint8)
    blue = np.full((80, 96, 3), (0, 0, 255), np.uint8)
    image, _ = composite(blue, cut_out(pixels, mask), scale)
    assert image[..., 1].max() <= RED[1] + 2


@pytest.mark.parametrize("scale", [0.7, 1.3])
def test_the_rest_of_the_image_equals_the_original(scale: float):
    pixels = paint(BLOB)
    hole = hole_around(BLOB, 0.02)
    filled = pixels.copy()
    filled[hole] = 0
    background = soften_rim(pixels, filled, hole, BLOB)
    image, mask = composite(background, cut_out(pixels, BLOB), scale)
    touched = hole | hole_around(mask, 0.03)
    np.testing.assert_array_equal(image[~touched], pixels[~touched])
    np.testing.assert_array_equal(background[~hole], pixels[~hole])
    np.testing.assert_array_equal(background[BLOB], filled[BLOB], err_msg="where the object was, only the fill is left")


@pytest.mark.parametrize("scale", [0.7, 1.3])
def test_a_mirrored_input_gives_a_mirrored_result(scale: float):
    pixels = paint(BLOB)
    background = paint(np.zeros_like(BLOB), seed=3)
    image, mask = composite(background, cut_out(pixels, BLOB), scale)
    turned = composite(background[:, ::-1], cut_out(pixels[:, ::-1], BLOB[:, ::-1]), scale)
    assert np.abs(turned[0][:, ::-1].astype(int) - image).max() <= 2
    assert (turned[1][:, ::-1] != mask).sum() <= 4


def test_shrinking_is_anti_aliased():
    """Stripes of one pixel become grey and not broad aliased stripes."""
    mask = disc(128, 112, 40, (64, 56))
    pixels = np.zeros((112, 128, 3), np.uint8)
    pixels[:, ::2] = 255
    image, _ = composite(np.full_like(pixels, 128), cut_out(pixels, mask), 0.5)
    middle = image[46:66, 54:74].astype(float)
    assert middle.std() < 30
    assert middle.mean() == pytest.approx(127, abs=6)


def test_thin_parts_keep_their_colour():
    mask = disc(96, 80, 14)
    mask[40, 10:86] = True
    pixels = np.full((80, 96, 3), SKY, np.uint8)
    pixels[mask] = RED
    pixels[40, 10:30] = (10, 10, 10)
    image, _ = composite(np.full_like(pixels, 255), cut_out(pixels, mask, feather=0), 1.0)
    np.testing.assert_array_equal(image[40, 10:29], pixels[40, 10:29])


@pytest.mark.parametrize("scale", [0.7, 1.3])
def test_a_broad_feather_is_not_cut_off(scale: float):
    mask = disc(160, 140, 20, (80, 70))
    pixels = np.where(mask[..., None], np.uint8(255), np.uint8(0)).repeat(3, axis=2)
    image, _ = composite(np.zeros_like(pixels), cut_out(pixels, mask, feather=16), scale)
    steps = np.abs(np.diff(image[70, :, 0].astype(int)))
    assert steps.max() <= 255 / (16 * scale) * 1.5, "it fades evenly to nothing"
    assert image[70, 80, 0] == image[70].max()


def test_the_rim_is_blended_without_a_seam():
    mask = disc(96, 80, 14)
    hole = hole_around(mask, 0.1)
    pixels = np.full((80, 96, 3), 200, np.uint8)
    background = soften_rim(pixels, np.full_like(pixels, 100), hole, mask)
    row = background[40, :, 0].astype(int)
    assert row[48] == 100
    assert row[0] == 200
    assert np.abs(np.diff(row)).max() <= 60, "the step of 100 is spread over the rim"


def test_objects_that_must_stay_inside_the_frame():
    assert check_inside(disc(), SCALES) is None
    assert check_inside(disc(centre=(27, 40)), SCALES) is None
    touching = disc(centre=(20, 40))
    assert check_inside(touching, (0.7, 1.0)).reason == "the object touches the frame and may be cut by it"
    assert check_inside(touching, (1.0,)) is None
    edge = np.zeros((100, 100), bool)
    edge[15:85, 15:85] = True
    assert check_inside(edge, (0.7, 1.42)) is None, "70 pixels grow to 99.4"
    assert check_inside(edge, (0.7, 1.43)) is not None
