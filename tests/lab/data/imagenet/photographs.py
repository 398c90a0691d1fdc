"""Photographs with a known object: a disc on a textured background, and folders of them."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

from localscale.lab.data.generation.job import build, run
from localscale.lab.data.imagenet.job import imagenet_job
from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.stages import Photograph

RED, SKY = (200, 30, 40), (90, 140, 200)


def options(**changes: object) -> ImageNetOptions:
    return ImageNetOptions(images=Path(), **changes)


def disc(width: int = 96, height: int = 80, radius: float = 20, centre: tuple[float, float] = (48, 40)) -> np.ndarray:
    """Return a disc's mask ``(H, W)``."""
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    return (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2


def paint(mask: np.ndarray, colour: tuple[int, int, int] = RED, *, seed: int = 0) -> np.ndarray:
    """Paint the mask in one colour on a background of smooth noise."""
    rng = np.random.Generator(np.random.PCG64(seed))
    noise = Image.fromarray(rng.integers(0, 30, (8, 8), np.uint8)).resize(mask.shape[::-1], Image.Resampling.BICUBIC)
    pixels = np.array(SKY, np.uint8) + np.asarray(noise)[..., None]
    pixels[mask] = colour
    return pixels


def photograph(mask: np.ndarray | None = None, *, name: str = "ball/0.png", class_name: str = "red ball") -> Photograph:
    pixels = paint(disc() if mask is None else mask)
    return Photograph(name, pixels, (pixels.shape[1], pixels.shape[0]), class_name)


def write_folder(root: Path, *, classes: int = 2, images: int = 2, **shape: float) -> ImageNetOptions:
    """Write ``root/images/class0/0.png`` … and masks to ``root/masks``; return options that use these masks."""
    for label in range(classes):
        for number in range(images):
            mask = disc(**shape)
            for kind, pixels in (("images", paint(mask, seed=10 * label + number)), ("masks", mask)):
                path = root / kind / f"class{label}" / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
    return ImageNetOptions(
        images=root / "images", masks=root / "masks", detector="given", segmenter="given", inpainter="telea"
    )


def hash_samples(root: Path, order: list[int]) -> str:
    """Make the samples of ``write_folder`` in an order, with the stages that use random numbers, and hash the files."""
    chosen = {"detector": "given", "segmenter": "grabcut", "inpainter": "patchmatch", "scales": (0.7, 1.3)}
    job = imagenet_job(ImageNetOptions(images=root / "images", masks=root / "masks", **chosen))
    steps = build(job.stages)
    made = {index: run(steps, index) for index in order}
    files = [sample.files[name] for index in sorted(made) for sample in made[index] for name in sorted(sample.files)]
    return hashlib.sha256(b"".join(files)).hexdigest()
