"""A locally scaled ImageNet of coloured discs, generated with given boxes and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from localscale.lab.data.generation import generate
from localscale.lab.data.imagenet import ImageNetOptions, imagenet_job

CLASSES = {"blue": (30, 40, 200), "green": (30, 200, 40), "red": (200, 30, 40)}
SCALES = (0.8, 1.0, 1.2)


def write_discs(folder: Path, *, images: int = 3, masks: Path | None = None) -> Path:
    """Write images of 60×48 pixels as ``folder/CLASS/0.png`` …, and the masks of the discs to ``masks``."""
    rng = np.random.Generator(np.random.PCG64(images))
    x, y = np.arange(60) + 0.5, np.arange(48)[:, None] + 0.5
    for name, colour in CLASSES.items():
        for number in range(images):
            disc = (x - rng.uniform(26, 34)) ** 2 + (y - rng.uniform(20, 28)) ** 2 < rng.uniform(9, 13) ** 2
            noise = Image.fromarray(rng.integers(0, 255, (6, 6, 3), np.uint8)).resize((60, 48))
            pixels = np.array(noise)
            pixels[disc] = colour
            for root, values in ((folder, pixels), *([(masks, disc)] if masks else [])):
                path = root / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(values).save(path)
    return folder


def write_scaled_discs(folder: Path, *, images: int = 2, scales: tuple[float, ...] = SCALES) -> Path:
    """Generate the dataset in ``folder/made``, and return that folder."""
    source = write_discs(folder / "images", images=images, masks=folder / "masks")
    options = ImageNetOptions(
        images=source, masks=folder / "masks", detector="given", segmenter="given", inpainter="telea", scales=scales
    )
    summary = generate(imagenet_job(options), folder / "made")
    assert (summary.images, summary.skipped) == (len(CLASSES) * images * len(scales), {})
    return folder / "made"
