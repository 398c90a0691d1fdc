"""Read the boxes and masks that a user provides on disk for each image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from localscale.errors import DataError
from localscale.lab.data.boxes import Box
from localscale.lab.data.imagenet.stages import Photograph
from localscale.lab.data.images import read_image
from localscale.lab.folders import stays_inside

__all__ = ["TRIMAP", "find_box_file", "find_mask_file", "load_boxes", "parse_box", "read_mask"]

OBJECT = 128  # the lowest grey level that means object in a mask
TRIMAP, BORDER = "_trimap.png", 128  # in a trimap this level means "object or background"; only brighter is object


def load_boxes(path: Path) -> Mapping[str, Any]:
    """Read a JSON file ``{"class/image.jpg": [left, top, right, bottom]}``; ``parse_box`` checks each entry."""
    try:
        boxes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path.name} cannot be read as JSON: {error}") from error
    if not isinstance(boxes, dict):
        raise DataError(
            f'{path.name} holds a {type(boxes).__name__}; expected {{"class/image.jpg": [left, top, …], …}}'
        )
    return boxes


def parse_box(value: Any, photograph: Photograph) -> Box:
    """Convert ``[left, top, right, bottom]`` or ``{"box": […], "score": 0.9}`` into a box of the resized photograph.

    The numbers are pixels of the upright original.
    """
    edges, score = (value.get("box"), value.get("score", 1.0)) if isinstance(value, dict) else (value, 1.0)
    numbers = [*edges, score] if isinstance(edges, list) else []
    if len(numbers) != 5 or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise DataError(f"box {value!r}; expected [left, top, right, bottom] in pixels")
    width, height = photograph.source_size
    box = Box(*map(float, numbers)).clipped(width, height)
    return box.resized(photograph.width / width, photograph.height / height)


def find_mask_file(folder: Path, name: str) -> Path | None:
    """Return ``class/image.png`` or ``class/image_trimap.png`` below ``folder`` for the image ``class/image.jpg``."""
    return _find(folder, name, (".png", TRIMAP))


def find_box_file(folder: Path, name: str) -> Path | None:
    """Return ``class/image.json`` below ``folder`` for the image ``class/image.jpg``."""
    return _find(folder, name, (".json",))


def read_mask(path: Path, photograph: Photograph) -> np.ndarray:
    """Read a mask at the photograph's size; grey levels of 128 and more are object, in a trimap those above 128."""
    try:
        mask = read_image(path.read_bytes()).convert("L")
    except OSError as error:
        raise DataError(f"mask {path.name} cannot be read: {error.strerror}") from error
    least = BORDER + 1 if path.name.endswith(TRIMAP) else OBJECT
    if mask.size != photograph.source_size:
        raise DataError(
            f"mask {path.name} has {mask.width}×{mask.height} pixels; expected the size of its image, "
            f"{photograph.source_size[0]}×{photograph.source_size[1]}"
        )
    levels = Image.fromarray(np.where(np.asarray(mask) >= least, 255, 0).astype(np.uint8))
    if levels.size != (photograph.width, photograph.height):
        levels = levels.resize((photograph.width, photograph.height), Image.Resampling.BOX)
    return np.asarray(levels) >= OBJECT


def _find(folder: Path, name: str, endings: tuple[str, ...]) -> Path | None:
    stem = PurePosixPath(name).with_suffix("")
    candidates = [folder.joinpath(*stem.parts[:-1], stem.name + ending) for ending in endings]
    path = next((path for path in candidates if path.is_file()), None)
    if path is not None and not stays_inside(path, folder):
        raise DataError(f"{path} is a symbolic link out of {folder}; copy the file to its place")
    return path
