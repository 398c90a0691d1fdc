"""Every kind of image is read as upright 8-bit RGB; other files raise an error with their name."""

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from localscale.errors import DataError
from localscale.lab.data.images import encode_image, encode_mask, open_image, read_image

RAMP = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (48, 1))


def saved(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def test_grey_palette_and_16_bit_images_read_alike() -> None:
    grey = Image.fromarray(RAMP)
    wide = Image.fromarray(RAMP.astype(np.uint16) * 257)
    for image in (grey, grey.convert("P"), wide, grey.convert("LA")):
        pixels = np.asarray(read_image(saved(image)))
        assert pixels.shape == (48, 64, 3)
        assert pixels.dtype == np.uint8
        assert np.array_equal(pixels[..., 0], RAMP)


def test_sixteen_bits_are_scaled_and_not_truncated() -> None:
    levels = np.array([[0, 257 * 100, 65535, 257 * 100 + 200]], dtype=np.uint16)
    assert np.asarray(read_image(saved(Image.fromarray(levels))))[0, :, 0].tolist() == [0, 100, 255, 101]


def test_cmyk_keeps_its_colours() -> None:
    colour = Image.new("RGB", (32, 32), (200, 40, 90))
    read = np.asarray(read_image(saved(colour.convert("CMYK"), "JPEG", quality=98)))
    assert np.abs(read.astype(int) - (200, 40, 90)).max() <= 6


def test_exif_rotation_is_undone() -> None:
    upright = Image.fromarray(RAMP)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to the right
    data = saved(upright.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)
    assert np.array_equal(np.asarray(read_image(data))[..., 0], RAMP)


def test_transparent_pixels_become_white() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert np.asarray(read_image(saved(image))).tolist() == np.full((4, 4, 3), 255).tolist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is empty \(zero bytes\)"),
        (b"no image at all", "is not a readable image"),
        (saved(Image.fromarray(RAMP))[:60], "is a broken image"),
        (saved(Image.new("RGB", (64, 64)), "JPEG")[:300], "is a broken image"),
        (saved(Image.new("F", (4, 4)), "TIFF"), "holds floating-point numbers"),
        (saved(Image.fromarray(np.full((4, 4), 70_000, np.int32)), "TIFF"), "has more than 16 bits per channel"),
    ],
)
def test_broken_files_are_named(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"cat\.png {message}"):
        read_image(path)


@pytest.mark.parametrize("error", [RuntimeError("no decoder"), AttributeError("x"), NotImplementedError("DDS")])
def test_every_decoder_error_becomes_a_data_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(DataError, match="image is a broken image"):
        read_image(b"something")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cat\.png cannot be read: No such file"):
        read_image(tmp_path / "cat.png")


def test_a_huge_image_is_refused() -> None:
    with pytest.raises(DataError, match="20000×6000 pixels; at most 100,000,000 are read"):
        read_image(saved(Image.new("1", (20_000, 6_000))))


def test_masks_are_lossless() -> None:
    for top in (3, 255, 256, 65535):
        labels = np.array([[0, 1], [2, top]])
        with Image.open(io.BytesIO(encode_mask(labels))) as image:
            assert np.array_equal(np.asarray(image), labels)
    with pytest.raises(DataError, match="labels run from -1 to 2; a mask holds 0 to 65535"):
        encode_mask(np.array([[-1, 2]]))


def test_image_formats() -> None:
    image = np.dstack([RAMP] * 3)
    assert np.array_equal(np.asarray(read_image(encode_image(image))), image)
    assert np.abs(np.asarray(read_image(encode_image(image, "jpg"))).astype(int) - image).max() <= 8
    with pytest.raises(DataError, match='"bmp" is unknown; expected "png" or "jpg"'):
        encode_image(image, "bmp")


def test_threads_that_read_images_leave_the_warnings_as_they_were() -> None:
    data = saved(Image.new("RGB", (4, 4)))
    before = list(warnings.filters)
    first, second = open_image(data), open_image(data)
    first.__enter__()
    second.__enter__()
    with pytest.warns(UserWarning, match="of another library"):
        warnings.warn("of another library", stacklevel=1)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert list(warnings.filters) == before
