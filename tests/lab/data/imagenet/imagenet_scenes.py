"""Pictures with a known object: a disc before a textured background, and folders of them."""

from pathlib import Path

import numpy as np
from PIL import Image

from localscale.lab.data.imagenet.options import ImageNetOptions
from localscale.lab.data.imagenet.pictures import Picture

RED, SKY = (200, 30, 40), (90, 140, 200)


def disc(width: int = 96, height: int = 80, radius: float = 20, centre: tuple[float, float] = (48, 40)) -> np.ndarray:
    """A mask ``(H, W)``."""
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    return (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2


def paint(mask: np.ndarray, colour: tuple[int, int, int] = RED, *, seed: int = 0) -> np.ndarray:
    """The mask in one colour before a background of smooth noise."""
    rng = np.random.Generator(np.random.PCG64(seed))
    noise = Image.fromarray(rng.integers(0, 30, (8, 8), np.uint8)).resize(mask.shape[::-1], Image.Resampling.BICUBIC)
    pixels = np.array(SKY, np.uint8) + np.asarray(noise)[..., None]
    pixels[mask] = colour
    return pixels


def picture(mask: np.ndarray | None = None, *, name: str = "ball/0.png", class_name: str = "red ball") -> Picture:
    pixels = paint(disc() if mask is None else mask)
    return Picture(name, pixels, (pixels.shape[1], pixels.shape[0]), class_name)


def write_folder(root: Path, *, classes: int = 2, images: int = 2, **shape: float) -> ImageNetOptions:
    """``root/images/class0/0.png`` … and their masks in ``root/masks``; options that use them as given."""
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
