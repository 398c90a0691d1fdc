"""Read any image as upright 8-bit RGB and any label mask as numbers, and encode images and masks as bytes.

``open_image`` is the only function that hands foreign bytes to Pillow: it names the formats that Pillow may try.
"""

from __future__ import annotations

import colorsys
import contextlib
import io
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from localscale.errors import DataError
from localscale.files import read_whole

__all__ = ["FORMATS", "encode_image", "encode_mask", "open_image", "read_image", "read_labels"]

FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "TIFF", "BMP", "PPM")  # EPS and others would start other programs
MAX_PIXELS = 100_000_000
MAX_BYTES = 1 << 30  # of a file
SIXTEEN_BIT = {"I", "I;16", "I;16L", "I;16B", "I;16N"}

Pixels = TypeVar("Pixels")


class _Quiet:
    """Ignore Pillow's warnings, about broken EXIF data and large sizes, while any thread is in this block.

    The filters belong to the process. If each thread saved and restored them, one that ends late would restore what
    another had set, and warnings would stay off.
    """

    def __init__(self) -> None:
        self.lock, self.readers = threading.Lock(), 0

    def __enter__(self) -> None:
        with self.lock:
            self.readers += 1
            if self.readers == 1:
                self.before = warnings.catch_warnings()
                self.before.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.readers -= 1
            if not self.readers:
                self.before.__exit__(None, None, None)


_QUIET = _Quiet()


@contextlib.contextmanager
def open_image(
    data: bytes, name: str = "image", *, formats: tuple[str, ...] = FORMATS, most_pixels: int | None = None
) -> Iterator[Image.Image]:
    """Open an image without decoding it, for a ``with`` block; decoding reads the first frame of an animation.

    Bytes in another format than ``formats`` and images of more than ``most_pixels``, by default 100 million, are
    refused before anything is decoded. Every error, inside the block too, becomes a ``DataError`` that begins with
    ``name``.

    >>> with open_image(encode_image(np.zeros((4, 6), np.uint8))) as image:
    ...     image.size
    (6, 4)
    """
    if not data:
        raise DataError(f"{name} is empty (zero bytes)")
    most = MAX_PIXELS if most_pixels is None else most_pixels
    Image.init()
    known = [form for form in formats if form in Image.OPEN]  # AVIF is missing in some builds of Pillow
    try:
        with _QUIET, Image.open(io.BytesIO(data), formats=known) as image:
            if image.width * image.height > most:
                raise DataError(f"has {image.width}×{image.height} pixels; at most {most:,} are read")
            yield image
    except DataError as error:
        raise DataError(f"{name} {error}") from None
    except UnidentifiedImageError as error:
        raise DataError(f"{name} is not a readable image ({', '.join(known)})") from error
    except Exception as error:  # Pillow's decoders raise exceptions of any type; one broken file must not end a run
        raise DataError(f"{name} is a broken image: {error}") from error


def read_image(source: Path | bytes) -> Image.Image:
    """Return an image as upright 8-bit RGB.

    Grey, palette, CMYK and 16-bit images are converted, transparent ones are placed on white, and EXIF rotation is
    applied. Anything but a complete image raises ``DataError`` with the file's name and the cause.
    """
    return _decoded(source, _as_rgb)


def read_labels(source: Path | bytes) -> np.ndarray:
    """Return a label mask as numbers ``(H, W)``: the indices of a palette image, or the levels of a grey one.

    A mask in colour, and anything but a complete image, raises ``DataError`` with the file's name and the cause.
    """
    return _decoded(source, _as_labels)


def encode_image(pixels: np.ndarray | Image.Image, image_format: str = "png", *, quality: int = 95) -> bytes:
    """Encode 8-bit pixels ``(H, W)`` or ``(H, W, 3)`` as ``png`` (lossless) or ``jpg``."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    if image_format == "png":
        image.save(buffer, "PNG", compress_level=4)
    elif image_format == "jpg":
        image.save(buffer, "JPEG", quality=quality, subsampling=0)
    else:
        raise DataError(f'image format "{image_format}" is unknown; expected "png" or "jpg"')
    return buffer.getvalue()


def encode_mask(labels: np.ndarray, *, coloured: bool = False) -> bytes:
    """Encode a label map ``(H, W)`` as a lossless PNG with 8 bits per pixel, or 16 if a label exceeds 255.

    ``coloured`` adds a palette to 8 bits: the values stay the labels, and viewers show a colour for each.
    """
    if labels.min() < 0 or labels.max() > 65535:
        raise DataError(f"labels run from {labels.min()} to {labels.max()}; a mask holds 0 to 65535")
    if coloured and labels.max() <= 255:
        image = Image.fromarray(labels.astype(np.uint8)).convert("P")
        hues = [colorsys.hsv_to_rgb(n * 0.618034 % 1, 0.7, 0.5 + 0.1 * (n % 5)) for n in range(1, 256)]
        image.putpalette([0, 0, 0, *(round(255 * level) for colour in hues for level in colour)])
        return encode_image(image)
    return encode_image(labels.astype(np.uint8 if labels.max() <= 255 else np.uint16))


def _decoded(source: Path | bytes, convert: Callable[[Image.Image], Pixels]) -> Pixels:
    if isinstance(source, Path):
        data, name = _read_file(source), str(source)
    else:
        data, name = source, "image"
    with open_image(data, name) as image:
        image.load()
        return convert(_upright(image))


def _read_file(path: Path) -> bytes:
    try:
        status = path.stat()
    except (OSError, ValueError):  # a name may contain a null character
        status = None
    if status is not None and not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise DataError(f"{path} is not a regular file; expected an image")
    if status is not None and stat.S_ISREG(status.st_mode) and status.st_size > MAX_BYTES:
        raise DataError(f"{path} has {status.st_size:,} bytes; at most {MAX_BYTES:,} are read")
    try:
        return read_whole(path, str(path))
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _as_labels(image: Image.Image) -> np.ndarray:
    if image.mode not in {"1", "L", "P", *SIXTEEN_BIT}:
        raise DataError(
            f"is a mask in colour ({image.mode}); save it as a palette or grey image whose values are class numbers"
        )
    return np.asarray(image).astype(np.int64)


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation, unless the EXIF data is broken."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # broken EXIF data says nothing about the pixels
        return image


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode in SIXTEEN_BIT:
        levels = np.asarray(image).astype(np.int32)
        if levels.max() > 65535:
            raise DataError("has more than 16 bits per channel; save it with 8 or 16")
        if levels.max() > 255:  # otherwise the image holds 8-bit values in a 16-bit mode
            levels += 128
            levels //= 257  # rounds level / 257
        return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise DataError("holds floating-point numbers; save it with 8 or 16 bits per channel")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")
