"""Uploads: every kind of image is read, everything else is a sentence."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from localscale.errors import ConfigError, DataError
from localscale.lab.pages.app.limits import Limits, read_upload


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "CMYK", "1"])
def test_every_kind_of_image_becomes_rgb(mode: str, tmp_path: Path):
    name = "image.tiff" if mode == "CMYK" else "image.png"
    image = read_upload(saved(tmp_path / name, Image.new("RGB", (40, 30), "red").convert(mode)), Limits())
    assert (image.mode, image.size) == ("RGB", (40, 30))


def test_sixteen_bits_become_eight(tmp_path: Path):
    levels = np.full((20, 20), 65535, dtype=np.uint16)
    assert read_upload(saved(tmp_path / "deep.png", Image.fromarray(levels)), Limits()).getpixel((3, 3)) == (255,) * 3


def test_of_an_animation_the_first_picture_is_taken(tmp_path: Path):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    path = saved(tmp_path / "moving.gif", frames[0], save_all=True, append_images=frames[1:])
    assert read_upload(path, Limits()).getpixel((3, 3)) == (255, 0, 0)


def test_a_large_image_is_made_smaller(tmp_path: Path):
    assert read_upload(saved(tmp_path / "large.jpg", Image.new("RGB", (3000, 1500))), Limits()).size == (512, 256)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "picture.png is empty"),
        (b"just words", "picture.png is no image in a format that can be read"),
        (b"\x89PNG\r\n\x1a\n and then nothing", "picture.png is no image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "picture.png is no image"),
    ],
)
def test_what_is_no_image_is_a_sentence(content: bytes, sentence: str, tmp_path: Path):
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=sentence) as told:
        read_upload(path, Limits())
    assert str(tmp_path) not in str(told.value), "no path of this machine"


def test_half_an_image_is_a_sentence(tmp_path: Path):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    path = saved(tmp_path / "half.png", noise)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"half\.png: image is a broken image"):
        read_upload(path, Limits())


def test_huge_images_are_refused_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = saved(tmp_path / "huge.png", Image.new("1", (10_000, 10_000)))
    monkeypatch.setattr("localscale.lab.pages.app.limits.read_image", lambda data: pytest.fail("decoded"))
    with pytest.raises(DataError, match=r"huge\.png has 10000×10000 pixels, 100 megapixels; at most 40 are taken"):
        read_upload(path, Limits())


def test_an_image_that_claims_to_be_vast_is_refused(tmp_path: Path):
    path = saved(tmp_path / "vast.png", Image.new("1", (8, 8)))
    data = bytearray(path.read_bytes())
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(DataError, match="more pixels than can be read"):
        read_upload(path, Limits())


def test_a_tiny_image_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"has 7×90 pixels; each side needs at least 8"):
        read_upload(saved(tmp_path / "tiny.png", Image.new("L", (7, 90))), Limits())


def test_a_large_file_is_refused(tmp_path: Path):
    path = tmp_path / "heavy.png"
    path.write_bytes(b"0" * 300_000)
    with pytest.raises(DataError, match=r"heavy\.png has 0\.3 MB; at most 0\.1 are taken"):
        read_upload(path, Limits(megabytes=0.1))


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (Limits(megapixels=0), "max_megapixels is 0"),
        (Limits(megapixels=101), "at most 100"),
        (Limits(megabytes=float("nan")), "max_megabytes is nan"),
        (Limits(waiting=0), "max_waiting is 0"),
    ],
)
def test_limits_that_nothing_could_keep(limits: Limits, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        limits.check()
