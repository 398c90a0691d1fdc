"""The example images of the page, made by ``docs/make_app_examples.py``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from localscale.lab.data.boxes import Box
from localscale.lab.data.images import read_image

__all__ = ["Example", "read_examples"]

FOLDER = Path(__file__).with_name("examples")


@dataclass(frozen=True)
class Example:
    """An image with one part marked; ``label`` is the number in the image, if there is one."""

    name: str
    image: Image.Image
    box: Box
    label: int | None = None


def read_examples() -> list[Example]:
    """Read every example that comes with the package.

    >>> [example.image.size for example in read_examples()][:2]
    [(224, 224), (224, 224)]
    """
    about = json.loads((FOLDER / "examples.json").read_text(encoding="utf-8"))
    return [Example(it["name"], read_image(FOLDER / it["file"]), Box(*it["box"]), it["label"]) for it in about]
