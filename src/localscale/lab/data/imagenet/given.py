"""Boxes and masks that lie on disk, found by an image's name and checked before they are used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from localscale.errors import ConfigError, DataError
from localscale.lab.data.boxes import Box
from localscale.lab.data.imagenet.pictures import Picture
from localscale.lab.data.images import read_image

__all__ = ["check_source", "find_box_file", "find_mask_file", "load_boxes", "parse_box", "read_mask"]

OBJECT = 128  # the lowest grey level that is object in a mask
TRIMAP, BORDER = "_trimap.png", 128  # in a trimap the border may be either; only what is brighter is object for certain


def check_source(path: Path | None, option: str, name: str) -> Path:
    """The path that ``name`` needs, or an error that says how to give it."""
    if path is None:
        raise ConfigError(f'"{name}" reads from disk: say where with {option}')
    if not path.exists():
        raise DataError(f"{option} {path} does not exist")
    return path


def load_boxes(path: Path) -> Mapping[str, Any]:
    """The boxes of a JSON file ``{"class/image.jpg": [left, top, right, bottom]}``, each still to be parsed."""
    try:
        boxes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} cannot be read as JSON: {error}") from error
    if not isinstance(boxes, dict):
        raise DataError(
            f'{path.name} holds a {type(boxes).__name__}; expected {{"class/image.jpg": [left, top, …], …}}'
        )
    return boxes


def parse_box(value: Any, picture: Picture) -> Box:
    """``[left, top, right, bottom]`` or ``{"box": […], "score": 0.9}``, in pixels of the upright original, as a box of
    the picture."""
    edges, score = (value.get("box"), value.get("score", 1.0)) if isinstance(value, dict) else (value, 1.0)
    numbers = [*edges, score] if isinstance(edges, list) else []
    if len(numbers) != 5 or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise DataError(f"box {value!r}; expected [left, top, right, bottom] in pixels")
    width, height = picture.source_size
    box = Box(*map(float, numbers)).clipped(width, height)
    return box.resized(picture.width / width, picture.height / height)


def find_mask_file(folder: Path, name: str) -> Path | None:
    """``class/image.png`` or ``class/image_trimap.png`` below ``folder`` for the image ``class/image.jpg``."""
    return _find(folder, name, (".png", TRIMAP))


def find_box_file(folder: Path, name: str) -> Path | None:
    """``class/image.json`` below ``folder``."""
    return _find(folder, name, (".json",))


def read_mask(path: Path, picture: Picture) -> np.ndarray:
    """A mask on disk, ``(H, W)``, the size of the picture: at least half bright (128) is object, in a trimap more."""
    try:
        mask = read_image(path.read_bytes()).convert("L")
    except OSError as error:
        raise DataError(f"mask {path.name} cannot be read: {error.strerror}") from error
    least = BORDER + 1 if path.name.endswith(TRIMAP) else OBJECT
    if mask.size != picture.source_size:
        raise DataError(
            f"mask {path.name} has {mask.width}×{mask.height} pixels and its image "
            f"{picture.source_size[0]}×{picture.source_size[1]}; expected the same"
        )
    levels = Image.fromarray(np.where(np.asarray(mask) >= least, 255, 0).astype(np.uint8))
    if levels.size != (picture.width, picture.height):
        levels = levels.resize((picture.width, picture.height), Image.Resampling.BOX)
    return np.asarray(levels) >= OBJECT


def _find(folder: Path, name: str, endings: tuple[str, ...]) -> Path | None:
    stem = PurePosixPath(name).with_suffix("")
    candidates = [folder.joinpath(*stem.parts[:-1], stem.name + ending) for ending in endings]
    return next((path for path in candidates if path.is_file()), None)
