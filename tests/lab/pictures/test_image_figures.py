"""Figures of single images from the command line: stages of ImageNet, the teaser, and curves of several images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from localscale.cli import main
from localscale.errors import ConfigError, DataError
from localscale.lab.data import LocallyScaledMNIST, embedded_digits
from localscale.lab.data.boxes import Box
from localscale.lab.data.imagenet import ImageNetOptions
from localscale.lab.data.imagenet.one_image import scale_object
from localscale.lab.pages.app.models import SHIPPED
from localscale.lab.pages.app.two_parts import scale_two_parts
from localscale.lab.pictures.curves import Part, draw_parts
from localscale.lab.pictures.stages import draw_stages
from localscale.lab.pictures.teaser import draw_teaser

CORNERS = (Box(0.02, 0.02, 0.4, 0.4), Box(0.6, 0.6, 0.98, 0.98))


@pytest.fixture(scope="module")
def ball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A red disc of radius 20 on grey noise, 120 × 90 pixels."""
    pixels = np.random.default_rng(0).integers(110, 140, (90, 120, 3)).astype(np.uint8)
    y, x = np.mgrid[:90, :120]
    pixels[(x - 60) ** 2 + (y - 45) ** 2 < 400] = (210, 20, 20)
    path = tmp_path_factory.mktemp("photographs") / "ball.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of three digits along the diagonal."""
    digits = LocallyScaledMNIST(train=False, count=4, digits=embedded_digits(train=False))
    path = tmp_path_factory.mktemp("numbers") / "number.png"
    digits[1][0].save(path)
    return path


def offline(image: Path) -> ImageNetOptions:
    return ImageNetOptions(images=image.parent, scales=(1.5,), segmenter="grabcut", inpainter="telea")


def test_an_object_in_a_given_box_is_scaled(ball: Path):
    found = scale_object(ball, offline(ball), scale=1.5, box=Box(0.3, 0.2, 0.7, 0.8))
    red = [int(((image[..., 0] > 180) & (image[..., 1] < 80)).sum()) for image in (found.photograph, found.image)]
    assert red[1] == pytest.approx(1.5**2 * red[0], rel=0.05)
    assert ((found.background[..., 0] > 180) & (found.background[..., 1] < 80)).sum() == 0, "the object is gone"
    titles = [axis.get_title()[:3] for axis in draw_stages(found, 1.5).axes]
    assert titles == ["(a)", "(b)", "(c)", "(d)", "(e)", "(f)"]


def test_an_object_that_is_not_found_is_named(ball: Path):
    with pytest.raises(DataError, match=r"ball\.png: .*name the object's box"):
        scale_object(ball, offline(ball), scale=1.5, box=Box(0.0, 0.0, 0.02, 0.02))


def test_stages_from_the_command_line(ball: Path, tmp_path: Path):
    out = tmp_path / "stages.png"
    given = ["--image", str(ball), "--segmenter", "grabcut", "--inpainter", "telea", "--out", str(out)]
    main(["figure", "stages", *given, "--box", "0.3", "0.2", "0.7", "0.8", "--scale", "0.7"])
    assert out.stat().st_size > 1000
    with pytest.raises(SystemExit, match="scales are"):
        main(["figure", "stages", *given, "--box", "0.3", "0.2", "0.7", "0.8", "--scale", "9"])


def test_two_parts_are_scaled_and_answered_by_both_models(number: Path, tmp_path: Path):
    before, after = scale_two_parts(
        SHIPPED / "model", number, boxes=CORNERS, factors=(0.7, 1.2), control=SHIPPED / "control"
    )
    assert list(before.likeliest) == ["control", "size equilibrium"]
    assert before.likeliest["size equilibrium"][0][0] == "802"
    widths = [[box[2] - box[0] for box in answers.boxes] for answers in (before, after)]
    assert widths[1] == pytest.approx([0.7 * widths[0][0], 1.2 * widths[0][1]], rel=1e-3)
    assert (before.image - after.image).abs().max() > 0.5
    assert len(draw_teaser(before, after).axes) == 8
    out = tmp_path / "teaser.png"
    run = ["--run", str(SHIPPED / "model"), "--image", str(number), "--out", str(out)]
    main(["figure", "teaser", *run, "--boxes", *["0.02", "0.02", "0.4", "0.4", "0.6", "0.6", "0.98", "0.98"]])
    assert out.exists()
    with pytest.raises(SystemExit, match="--boxes has 4 numbers"):
        main(["figure", "teaser", *run, "--boxes", *["0.02", "0.02", "0.4", "0.4"]])


def test_parts_that_overlap_are_refused(number: Path):
    with pytest.raises(ConfigError, match="overlap; mark parts that lie apart"):
        scale_two_parts(SHIPPED / "model", number, boxes=(CORNERS[0], CORNERS[0]), factors=(0.7, 1.2))


def test_curves_of_several_images(number: Path, tmp_path: Path):
    out, runs = tmp_path / "curves.png", ["--runs", f"DEC={SHIPPED / 'model'}"]
    images = ["--image", str(number), str(number)]
    main(
        [
            "figure",
            "probability",
            *runs,
            *images,
            "--box",
            *["0.1", "0.1", "0.4", "0.4", "0.5", "0.5", "0.9", "0.9"],
            "--out",
            str(out),
        ]
    )
    assert out.exists()
    with pytest.raises(SystemExit, match="--box has 8 numbers for 3 images; expected 4, or 4 for each image"):
        main(["figure", "probability", *runs, *images, str(number), "--box", *8 * ["0.5"], "--out", str(out)])


def test_cells_without_an_image_are_left_out():
    part = Part(torch.rand(3, 8, 8), (0.2, 0.2, 0.8, 0.8), [0.5, 1.0], {"base": [0.1, 0.9]}, "probability")
    assert [len(draw_parts(count * [part]).axes) for count in (1, 2, 3, 4)] == [2, 4, 6, 8]
