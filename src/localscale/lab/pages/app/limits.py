"""What may be uploaded: a whole image, neither huge nor tiny; everything else is a sentence."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from localscale.errors import ConfigError, DataError
from localscale.files import read_whole
from localscale.lab.data.images import MAX_PIXELS, read_image

__all__ = ["Limits", "read_upload"]

LEAST_SIDE = 8  # pixels; anything smaller shows nothing
KEPT_SIDE = 512  # longest side of what is kept of a large image


@dataclass(frozen=True)
class Limits:
    """How much one person may ask of the page."""

    megapixels: float = 40.0
    """Largest image, in millions of pixels."""
    megabytes: float = 20.0
    """Largest file."""
    waiting: int = 8
    """Requests that may wait while others are answered."""

    @property
    def bytes(self) -> int:
        """The largest file, in bytes."""
        return int(2**20 * self.megabytes)

    def check(self) -> None:
        """Refuse limits that nothing could keep."""
        if not 0 < self.megapixels <= MAX_PIXELS / 1e6:
            raise ConfigError(
                f"max_megapixels is {self.megapixels}; expected more than 0, at most {MAX_PIXELS / 1e6:g}"
            )
        if not self.megabytes > 0:
            raise ConfigError(f"max_megabytes is {self.megabytes}; expected more than 0")
        if self.waiting < 1:
            raise ConfigError(f"max_waiting is {self.waiting}; expected at least 1")


def read_upload(path: Path, limits: Limits) -> Image.Image:
    """An uploaded file as upright 8-bit RGB of at most 512 px a side; of an animation, its first picture.

    >>> read_upload(Path("nowhere.png"), Limits())
    Traceback (most recent call last):
        ...
    localscale.errors.DataError: nowhere.png cannot be read: No such file or directory
    """
    data = read_whole(path, path.name)
    if len(data) > limits.bytes:
        raise DataError(f"{path.name} has {len(data) / 2**20:.1f} MB; at most {limits.megabytes:g} are taken")
    width, height = _size(data, path.name)
    if width * height > 1e6 * limits.megapixels:
        raise DataError(
            f"{path.name} has {width}×{height} pixels, {width * height / 1e6:.0f} megapixels; "
            f"at most {limits.megapixels:g} are taken: make it smaller first"
        )
    if min(width, height) < LEAST_SIDE:
        raise DataError(f"{path.name} has {width}×{height} pixels; each side needs at least {LEAST_SIDE}")
    try:
        image = read_image(data)
    except DataError as error:
        raise DataError(f"{path.name}: {error}") from error
    image.thumbnail((KEPT_SIDE, KEPT_SIDE), Image.Resampling.LANCZOS)
    return image


def _size(data: bytes, name: str) -> tuple[int, int]:
    """Width and height from the file's head; no pixel is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large sizes: the check here speaks for itself
            with Image.open(io.BytesIO(data)) as image:
                return image.size
    except Image.DecompressionBombError as error:
        raise DataError(f"{name} has more pixels than can be read: make it smaller first") from error
    except Exception as error:  # Pillow's readers raise anything
        raise DataError(f"{name} is no image in a format that can be read; PNG, JPEG and WebP can") from error
