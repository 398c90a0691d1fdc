"""Every kind of image can be uploaded; every other file is refused with an error that names it."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from localscale.errors import ConfigError, DataError
from localscale.lab.pages.app.uploads import Limits, read_upload


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_every_kind_of_image_becomes_rgb(mode: str, tmp_path: Path):
    name = "image.tiff" if mode == "CMYK" else "image.png"
    image = read_upload(saved(tmp_path / name, Image.new("RGB", (40, 30), "red").convert(mode)), Limits())
    assert (image.mode, image.size) == ("RGB", (40, 30))


def test_an_animation_gives_its_first_frame(tmp_path: Path):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    path = saved(tmp_path / "moving.gif", frames[0], save_all=True, append_images=frames[1:])
    assert read_upload(path, Limits()).getpixel((3, 3)) == (255, 0, 0)


def test_a_large_image_is_shrunk(tmp_path: Path):
    assert read_upload(saved(tmp_path / "large.jpg", Image.new("RGB", (3000, 1500))), Limits()).size == (512, 256)


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))


def png(image: Image.Image, folder: Path) -> bytes:
    return saved(folder / "source.png", image).read_bytes()


def claims_to_be_vast(folder: Path) -> bytes:
    data = bytearray(png(Image.new("1", (8, 8)), folder))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda folder: b"", "is empty"),
        (lambda folder: b"just words", "cannot be opened as an image"),
        (lambda folder: b"\x89PNG\r\n\x1a\n and then nothing", "cannot be opened as an image"),
        (lambda folder: png(noise(), folder)[:2000], "broken"),
        (claims_to_be_vast, "more pixels than can be read"),
        (lambda folder: png(Image.new("L", (7, 90)), folder), "has 7×90 pixels; each side needs at least 8"),
        (lambda folder: b"0" * 300_000, r"has 0\.3 MB; at most 0\.1 MB"),
    ],
)
def test_other_files_are_refused(content, message: str, tmp_path: Path):
    path = tmp_path / "picture.png"
    path.write_bytes(content(tmp_path))
    with pytest.raises(DataError, match=rf"^picture\.png.*{message}") as caught:
        read_upload(path, Limits(megabytes=0.1))
    assert str(tmp_path) not in str(caught.value), "a visitor does not see folders of the server"


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = saved(tmp_path / "huge.png", Image.new("1", (10_000, 10_000)))
    monkeypatch.setattr("localscale.lab.pages.app.uploads.read_image", lambda data: pytest.fail("decoded"))
    with pytest.raises(DataError, match=r"10000×10000 pixels, 100 megapixels; at most 40"):
        read_upload(path, Limits())


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"megapixels": 101}, "at most 100"),
        ({"megabytes": float("nan")}, "--max-megabytes is nan"),
        ({"waiting": 0}, "--max-waiting is 0"),
    ],
)
def test_limits_that_cannot_be_met_are_refused(limits: dict[str, float], message: str):
    with pytest.raises(ConfigError, match=message):
        Limits(**limits)
