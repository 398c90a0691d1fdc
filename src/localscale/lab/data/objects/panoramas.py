"""Read equirectangular panoramas from .hdr and .exr files in linear light, and sample them.

Convention: z up; row 0 looks straight up; the middle column looks along +x and columns run clockwise seen from above,
so that a panorama seen from inside is not mirrored. Texel (row i, column j) of H×W looks at azimuth π(1 − 2(j + ½)/W)
and polar angle π(i + ½)/H.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localscale.errors import DataError
from localscale.extras import require
from localscale.files import read_whole

__all__ = ["SUFFIXES", "Panorama", "directions_of", "load_panorama", "sample_panorama", "split_panoramas"]

SUFFIXES = (".hdr", ".exr")
MAX_WIDTH = 2048  # texels of this size are finer than the pixels of a 256 px image
MIN_HEIGHT = 8
MOST_PIXELS = 200_000_000  # 16k panoramas have 134 million
RADIANCE = re.compile(rb"#\?(?:[^\n]*\n)+?\n[-+][XY] +(?P<height>\d{1,9}) +[-+][XY] +(?P<width>\d{1,9})\n")


@dataclass(frozen=True, eq=False)
class Panorama:
    """Radiance ``(H, 2H, 3)`` from every direction, float32."""

    name: str
    radiance: np.ndarray


def load_panorama(path: Path) -> Panorama:
    """Read a panorama; raise ``DataError`` with its name and the cause if it cannot light a scene."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"panorama {path.name} is not a {' or '.join(SUFFIXES)} file")
    data = read_whole(path, f"panorama {path.name}")
    radiance = _read_hdr(data, path.name) if path.suffix.lower() == ".hdr" else _read_exr(path)
    height, width = radiance.shape[:2]
    if width != 2 * height or height < MIN_HEIGHT:
        raise DataError(f"panorama {path.name} has {width}×{height} pixels; expected twice as wide as high (2:1)")
    if not np.isfinite(radiance).all():
        bad = int((~np.isfinite(radiance)).any(axis=2).sum())
        raise DataError(f"panorama {path.name} has {bad} pixels that are not finite numbers")
    if radiance.min() < 0:
        bad = int((radiance < 0).any(axis=2).sum())
        raise DataError(f"panorama {path.name} has {bad} pixels with negative light; export it again without them")
    if radiance.max() == 0:
        raise DataError(f"panorama {path.name} is black everywhere; expected some light")
    if width > MAX_WIDTH:
        cv2 = require("cv2", "objects")
        radiance = cv2.resize(radiance, (MAX_WIDTH, MAX_WIDTH // 2), interpolation=cv2.INTER_AREA)
    return Panorama(path.stem, np.ascontiguousarray(radiance))


def sample_panorama(radiance: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Sample the radiance ``(H, 2H, 3)`` along unit ``directions`` ``(..., 3)``: bilinear, wrapped around at the seam.

    >>> sky = np.zeros((8, 16, 3), dtype=np.float32); sky[:4] = 1
    >>> sample_panorama(sky, np.array([[0.0, 0.0, 1.0], [0.0, 0.6, -0.8]], dtype=np.float32))[:, 0]
    array([1., 0.], dtype=float32)
    """
    height, width = radiance.shape[:2]
    x = (0.5 - np.arctan2(directions[..., 1], directions[..., 0]) / (2 * np.pi)) * width - 0.5
    y = np.arccos(np.clip(directions[..., 2], -1, 1)) / np.pi * height - 0.5
    y = np.clip(y, 0, height - 1)
    left, top = np.floor(x), np.floor(y)
    right_share, lower_share = (x - left)[..., None], (y - top)[..., None]
    column, row = left.astype(np.int64) % width, top.astype(np.int64)
    next_column, next_row = (column + 1) % width, np.minimum(row + 1, height - 1)
    texels = radiance.reshape(-1, 3)
    row, next_row = row * width, next_row * width
    above = texels[row + column] * (1 - right_share) + texels[row + next_column] * right_share
    below = texels[next_row + column] * (1 - right_share) + texels[next_row + next_column] * right_share
    return (above + lower_share * (below - above)).astype(np.float32, copy=False)


def directions_of(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the direction of each texel, ``(H, W, 3)``, and the solid angle of a texel in each row, ``(H,)``."""
    azimuth = np.pi * (1 - 2 * (np.arange(width) + 0.5) / width)
    edges = np.pi * np.arange(height + 1) / height
    polar = np.pi * (np.arange(height) + 0.5) / height
    ring = np.sin(polar)[:, None]
    looks = np.stack(
        np.broadcast_arrays(ring * np.cos(azimuth), ring * np.sin(azimuth), np.cos(polar)[:, None]), axis=-1
    )
    return looks, (np.cos(edges[:-1]) - np.cos(edges[1:])) * (2 * np.pi / width)


def split_panoramas(names: Iterable[str]) -> dict[str, list[str]]:
    """Split panoramas by the hashes of their names: about a quarter are ``"test"``, the others ``"train"``.

    So a panorama that is added later does not change the split of the others, unless a split would be empty.

    >>> split_panoramas(["alley", "beach", "cave", "dam", "exhibition"])
    {'train': ['beach', 'cave', 'exhibition'], 'test': ['alley', 'dam']}
    """
    ranked = sorted(set(names), key=lambda name: (_hash(name), name))
    if len(ranked) < 2:
        raise DataError(
            f"there are {len(ranked)} usable panoramas; expected at least 2, because train and test share none"
        )
    tests = min(max(sum(_hash(name) < 0.25 for name in ranked), 1), len(ranked) - 1)
    return {"train": sorted(ranked[tests:]), "test": sorted(ranked[:tests])}


def _hash(name: str) -> float:
    """Return a number in [0, 1) that depends on the name only."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def _read_hdr(data: bytes, name: str) -> np.ndarray:
    cv2 = require("cv2", "objects")
    size = RADIANCE.match(data)  # OpenCV would read any format
    if size is None:
        raise DataError(f"panorama {name} is a broken .hdr file, or another format under that name")
    _check_size(int(size["width"]), int(size["height"]), name)
    try:
        image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise DataError(f"panorama {name} is a broken .hdr file: {error.err}") from error
    if image is None or image.dtype != np.float32:
        raise DataError(f"panorama {name} is a broken .hdr file, or another format under that name")
    return image[..., ::-1]


def _check_size(width: int, height: int, name: str) -> None:
    if width * height > MOST_PIXELS:
        raise DataError(f"panorama {name} has {width}×{height} pixels; at most {MOST_PIXELS:,} are read")


def _read_exr(path: Path) -> np.ndarray:
    openexr = require("OpenEXR", "objects")
    try:
        with openexr.File(str(path), header_only=True) as file:
            low, high = file.header()["dataWindow"]
        width, height = (int(side) for side in high - low + 1)
        _check_size(width, height, path.name)
        with openexr.File(str(path)) as file:
            channels = {name: np.asarray(channel.pixels) for name, channel in file.channels().items()}
    except DataError:
        raise
    except Exception as error:  # the binding raises RuntimeError and TypeError
        raise DataError(f"panorama {path.name} is a broken .exr file: {error}") from error
    for joined in ("RGB", "RGBA"):
        if joined in channels:
            return channels[joined][..., :3].astype(np.float32)
    if not {"R", "G", "B"} <= channels.keys():
        raise DataError(f"panorama {path.name} has channels {', '.join(sorted(channels))}; expected R, G and B")
    return np.stack([channels[name].astype(np.float32) for name in "RGB"], axis=-1)
