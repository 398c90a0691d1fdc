"""Tiny folders of generated photographs with label masks: discs of two colours, at any place and size."""

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = ((40, 60, 220), (220, 40, 40))  # of the classes 1 and 2; 0 is background


def draw(rng: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels ``(H, W, 3)`` and labels ``(H, W)``; the rim of a disc is 255."""
    pixels, labels = rng.integers(90, 130, (height, width, 3)), np.zeros((height, width), np.int64)
    y, x = np.mgrid[:height, :width]
    for label, colour in enumerate(COLOURS, start=1):
        radius = rng.integers(4, 9)
        distance = np.hypot(x - rng.integers(9, width - 9), y - rng.integers(9, height - 9))
        pixels[distance < radius], labels[distance < radius] = colour, label
        labels[abs(distance - radius) < 0.7] = 255
    return pixels.astype(np.uint8), labels


def write_masks(root: Path, images: int = 8, seed: int = 0) -> Path:
    """Write ``images`` with their masks, half of them with a palette, and return ``root``."""
    rng = np.random.default_rng(seed)
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    for number in range(images):
        pixels, labels = draw(rng, int(rng.integers(30, 60)), int(rng.integers(30, 50)))
        Image.fromarray(pixels).save(root / "images" / f"photo {number}.jpg")
        mask = Image.fromarray(labels.astype(np.uint8))
        if number % 2:
            mask = mask.convert("P")
            mask.putpalette([255 - n // 3 for n in range(768)])
        mask.save(root / "masks" / f"photo {number}.png")
    return root
