"""The example images of the page, made by ``docs/make_app_examples.py``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from localscale.lab.data.boxes import Box
from localscale.lab.data.images import read_image

__all__ = ["Example", "first_example", "read_examples"]

FOLDER = Path(__file__).with_name("examples")


@dataclass(frozen=True)
class Example:
    """An image with one part marked; ``label`` is the number in the image, if there is one.

    ``photograph`` says that the image is the one to open a model for photographs with.
    """

    name: str
    image: Image.Image
    box: Box
    label: int | None = None
    photograph: bool = False


def read_examples() -> list[Example]:
    """Read every example that comes with the package.

    >>> [example.image.size for example in read_examples()][:2]
    [(224, 224), (224, 224)]
    """
    about = json.loads((FOLDER / "examples.json").read_text(encoding="utf-8"))
    return [
        Example(it["name"], read_image(FOLDER / it["file"]), Box(*it["box"]), it["label"], it.get("photograph", False))
        for it in about
    ]


def first_example(examples: Sequence[Example], *, photograph: bool) -> int:
    """Return the number of the first example that is a photograph, or of the first that is not.

    >>> examples = read_examples()
    >>> [examples[first_example(examples, photograph=kind)].name for kind in (False, True)]
    ['738', 'pug']
    """
    return next(number for number, example in enumerate(examples) if example.photograph == photograph)
