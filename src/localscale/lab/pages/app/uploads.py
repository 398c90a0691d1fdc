"""Read an uploaded image, refuse files that are too large, too small or broken, and delete what nobody used."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from localscale.errors import ConfigError, DataError
from localscale.files import read_whole
from localscale.lab.data.images import MAX_PIXELS, open_image, read_image
from localscale.lab.folders import stays_inside

__all__ = ["Limits", "read_upload", "sweep", "swept", "take_upload"]

LEAST_SIDE = 8  # pixels
KEPT_SECONDS, BETWEEN_SWEEPS = 60.0, 5.0  # an upload that no request has read by then is deleted
KEPT_FILES = 32  # of the largest size, which uploads may occupy together
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


def take_upload(file: Any, folder: Path, limits: Limits) -> tuple[str, Image.Image]:
    """Read an upload and delete it; return its name and image. A file that is not in ``folder`` is left alone."""
    path = Path(file) if isinstance(file, str) and file and "\0" not in file else None
    if path is None or not stays_inside(path, folder):
        raise DataError("the upload did not arrive; upload the image again")
    try:
        return path.name, read_upload(path, limits)
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def swept(folder: Path, limits: Limits) -> Iterator[None]:
    """Delete unused uploads in ``folder`` from time to time, as long as the ``with`` block runs."""
    closing = threading.Event()

    def work() -> None:
        while not closing.wait(BETWEEN_SWEEPS):
            sweep(folder, older_than=time.time() - KEPT_SECONDS, most_bytes=KEPT_FILES * limits.bytes)

    thread = threading.Thread(target=work, name="localscale-uploads", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


def sweep(folder: Path, *, older_than: float, most_bytes: int) -> None:
    """Delete files last written before ``older_than``, then the oldest until the rest has at most ``most_bytes``."""
    files, folders = list[tuple[float, int, Path]](), list[tuple[float, int, Path]]()
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another thread deleted it
            status = path.lstat()
            (folders if path.is_dir() else files).append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for written, size, path in sorted(files):
        if written < older_than or total > most_bytes:
            total -= size
            with contextlib.suppress(OSError):
                path.unlink()
    for written, _, path in sorted(folders, reverse=True):
        if written < older_than:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()


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
