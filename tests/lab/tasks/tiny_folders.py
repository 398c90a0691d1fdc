"""Tiny folders of generated photographs: a disc of one colour per class, at any place and size."""

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (40, 60, 220), "green": (40, 200, 60), "red": (220, 40, 40)}


def disc(colour: tuple[int, int, int], rng: np.random.Generator, width: int = 40, height: int = 32) -> Image.Image:
    """Return a disc on grey noise."""
    pixels = rng.integers(90, 130, (height, width, 3))
    y, x = np.mgrid[:height, :width]
    radius = rng.integers(6, 13)
    inside = (x - rng.integers(12, width - 12)) ** 2 + (y - rng.integers(12, height - 12)) ** 2 < radius**2
    pixels[inside] = colour
    return Image.fromarray(pixels.astype(np.uint8))


def write_folder(root: Path, images: int = 4, seed: int = 0) -> Path:
    """Write ``images`` of each class and return ``root``."""
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for number in range(images):
            disc(colour, rng, width=int(rng.integers(30, 60))).save(root / name / f"{number}.png")
    return root
