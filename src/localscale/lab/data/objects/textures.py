"""Textures: mip pyramids in linear light, sampled trilinearly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from localscale.extras import require

__all__ = ["Texture", "build_texture", "decode_srgb", "encode_srgb", "sample_texture"]

MAX_SIDE = 512  # twice the side of a rendered image; finer texels would not be visible


@dataclass(frozen=True, eq=False)
class Texture:
    """A mip pyramid: ``texels`` ``(N, 3)`` hold all levels; level k begins at ``starts[k]`` with ``shapes[k]``."""

    texels: np.ndarray
    shapes: np.ndarray
    starts: np.ndarray


def decode_srgb(values: np.ndarray) -> np.ndarray:
    """Convert 8-bit sRGB values to linear light in [0, 1].

    >>> decode_srgb(np.array([0, 255], dtype=np.uint8))
    array([0., 1.], dtype=float32)
    """
    return _decoding_table()[values]


def encode_srgb(light: np.ndarray) -> np.ndarray:
    """Convert linear light, clipped to [0, 1], to 8-bit sRGB values.

    >>> encode_srgb(np.array([0.0, 0.5, 2.0]))
    array([  0, 188, 255], dtype=uint8)
    """
    light = np.clip(light, 0, 1)
    encoded = np.where(light <= 0.0031308, 12.92 * light, 1.055 * np.power(light, 1 / 2.4) - 0.055)
    return (encoded * 255 + 0.5).astype(np.uint8)


def build_texture(image: Image.Image, *, max_side: int = MAX_SIDE) -> Texture:
    """Build the mip pyramid of an image; levels average linear light and not sRGB values.

    >>> build_texture(Image.new("RGB", (8, 4), "red")).shapes.tolist()
    [[4, 8], [2, 4], [1, 2], [1, 1]]
    """
    cv2 = require("cv2", "objects")
    level = decode_srgb(np.asarray(image.convert("RGB")))
    height, width = level.shape[:2]
    shrink = max_side / max(height, width)
    if shrink < 1:
        size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
        level = cv2.resize(level, size, interpolation=cv2.INTER_AREA)
    levels = [level]
    while level.shape[:2] != (1, 1):
        size = (max(1, level.shape[1] // 2), max(1, level.shape[0] // 2))
        level = cv2.resize(level, size, interpolation=cv2.INTER_AREA)
        levels.append(level)
    shapes = np.array([each.shape[:2] for each in levels])
    starts = np.concatenate(([0], np.cumsum(shapes.prod(axis=1))[:-1]))
    return Texture(np.concatenate([each.reshape(-1, 3) for each in levels]), shapes, starts)


def sample_texture(texture: Texture, uv: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Sample the texture at ``uv`` ``(P, 2)`` and mip ``level`` ``(P,)``, trilinearly; it repeats outside [0, 1]².

    Convention: v points up, as in OBJ; the texel (row i, column j) of an H×W level sits at ((j + ½)/W, 1 − (i + ½)/H).
    """
    level = np.clip(level, 0, len(texture.starts) - 1)
    lower = np.floor(level).astype(np.int64)
    share = (level - lower).astype(np.float32)[:, None]
    fine = _sample_level(texture, uv, lower)
    between = np.flatnonzero(share[:, 0] > 0)
    if len(between):
        coarse = _sample_level(texture, uv[between], lower[between] + 1)
        fine[between] += share[between] * (coarse - fine[between])
    return fine


def _sample_level(texture: Texture, uv: np.ndarray, level: np.ndarray) -> np.ndarray:
    height, width = texture.shapes[level, 0], texture.shapes[level, 1]
    x = uv[:, 0] * width - 0.5
    y = (1 - uv[:, 1]) * height - 0.5
    left, top = np.floor(x), np.floor(y)
    right_share, lower_share = (x - left).astype(np.float32)[:, None], (y - top).astype(np.float32)[:, None]
    column, row = left.astype(np.int64) % width, top.astype(np.int64) % height
    next_column, next_row = (column + 1) % width, (row + 1) % height
    upper, lower = texture.starts[level] + row * width, texture.starts[level] + next_row * width
    texels = texture.texels
    above = texels[upper + column] * (1 - right_share) + texels[upper + next_column] * right_share
    below = texels[lower + column] * (1 - right_share) + texels[lower + next_column] * right_share
    return above + lower_share * (below - above)


def _decoding_table() -> np.ndarray:
    codes = np.arange(256) / 255
    return np.where(codes <= 0.04045, codes / 12.92, ((codes + 0.055) / 1.055) ** 2.4).astype(np.float32)
