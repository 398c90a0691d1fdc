"""Read an uploaded image, and refuse files that are too large, too small or broken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from localscale.errors import ConfigError, DataError
from localscale.files import read_whole
from localscale.lab.data.images import MAX_PIXELS, open_image, read_image

__all__ = ["Limits", "read_upload"]

LEAST_SIDE = 8  # pixels
KEPT_SIDE = 512  # a larger image is shrunk until its longer side has this many pixels


@dataclass(frozen=True)
class Limits:
    """The largest upload, and the number of requests that may wait."""

    megapixels: float = 40.0
    """Largest image, in millions of pixels."""
    megabytes: float = 20.0
    """Largest file."""
    waiting: int = 8
    """Requests that may wait while another is answered."""

    def __post_init__(self) -> None:
        if not 0 < self.megapixels <= MAX_PIXELS / 1e6:
            raise ConfigError(
                f"--max-megapixels is {self.megapixels}; expected more than 0 and at most {MAX_PIXELS / 1e6:g}"
            )
        if not self.megabytes > 0:
            raise ConfigError(f"--max-megabytes is {self.megabytes}; expected more than 0")
        if self.waiting < 1:
            raise ConfigError(f"--max-waiting is {self.waiting}; expected at least 1")

    @property
    def bytes(self) -> int:
        """The largest file, in bytes."""
        return int(2**20 * self.megabytes)


def read_upload(path: Path, limits: Limits) -> Image.Image:
    """Read an uploaded file as upright 8-bit RGB of at most 512 pixels per side; of an animation, the first frame.

    Errors name the file without its folder, because a visitor must not learn the folders of the server.

    >>> read_upload(Path("folder/nowhere.png"), Limits())
    Traceback (most recent call last):
        ...
    localscale.errors.DataError: nowhere.png cannot be read: No such file or directory
    """
    data = read_whole(path, path.name)
    if len(data) > limits.bytes:
        raise DataError(
            f"{path.name} has {len(data) / 2**20:.1f} MB; at most {limits.megabytes:g} MB can be uploaded "
            "(--max-megabytes)"
        )
    width, height = _read_size(data, path.name)
    if width * height > 1e6 * limits.megapixels:
        raise DataError(
            f"{path.name} has {width}×{height} pixels, {width * height / 1e6:.0f} megapixels; at most "
            f"{limits.megapixels:g} can be uploaded (--max-megapixels): make the image smaller first"
        )
    if min(width, height) < LEAST_SIDE:
        raise DataError(f"{path.name} has {width}×{height} pixels; each side needs at least {LEAST_SIDE}")
    try:
        image = read_image(data)
    except DataError as error:
        raise DataError(f"{path.name}: {error}") from error
    image.thumbnail((KEPT_SIDE, KEPT_SIDE), Image.Resampling.LANCZOS)
    return image


def _read_size(data: bytes, name: str) -> tuple[int, int]:
    """Read width and height from the file's header, without decoding pixels."""
    try:
        with open_image(data, name) as image:
            return image.size
    except DataError as error:
        if "pixels" in str(error) or "exceeds limit" in str(error):
            raise DataError(f"{name} has more pixels than can be read; make the image smaller first") from error
        raise DataError(f"{name} cannot be opened as an image; upload a PNG, JPEG or WebP file") from error
