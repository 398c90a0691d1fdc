"""``localscale predict``: the classes of image files or of their pixels, by the model of a finished run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from localscale.errors import ConfigError, DataError

__all__ = ["Predict"]


@dataclass(frozen=True)
class Predict:
    """Name the classes of image files, or of their pixels, and write canonical forms, what the backbone sees."""

    folder: Positional[Path]
    """Folder of a finished run."""
    images: Positional[tuple[Path, ...]]
    """Image files of any size."""
    top: int = 3
    """Number of classes to print for each image."""
    out: Path = Path("predictions")
    """Folder to write: IMAGE_canonical.png shows the image and its canonical form side by side; a segmenter also writes
    IMAGE_mask.png, as large as the image. If several images have one name, they get numbers: IMAGE_2_mask.png."""

    def run(self) -> None:
        from localscale.lab.runs import read_run
        from localscale.lab.runs.prediction import Predictor

        if not self.images:
            raise ConfigError("no image is named: localscale predict RUN IMAGE …")
        if self.top < 1:
            raise ConfigError(f"--top is {self.top}; expected at least 1")
        predict, unread = Predictor(read_run(self.folder)), 0
        for path, name in zip(self.images, different_names(self.images), strict=True):
            try:
                if path.is_dir():
                    raise DataError(f"{path} is a folder; name image files, such as {path}/*.jpg")
                found = predict(path, self.top)
            except DataError as error:
                print(f"localscale: {error}", file=sys.stderr)
                unread += 1
                continue
            answers = ", ".join(f"{name} {100 * share:.1f} %" for name, share in found.classes)
            words = [f"{path}: {answers}{'' if found.mask is None else ' of the pixels'}"]
            words += [str(written) for written in _write(found, self.out / name)]
            print("  ".join(words))
        if unread:
            raise DataError(f"{unread} of {len(self.images)} images could not be read")


def different_names(paths: Iterable[Path]) -> list[str]:
    """Return the stem of each path, with a number where another path has the same; letter case makes no difference.

    >>> different_names(map(Path, ("a/cat.jpg", "b/cat.jpg", "dog.png", "Cat.png")))
    ['cat', 'cat_2', 'dog', 'Cat_3']
    """
    names: list[str] = []
    taken: set[str] = set()
    for path in paths:
        name, number = path.stem, 1
        while name.lower() in taken:
            number += 1
            name = f"{path.stem}_{number}"
        taken.add(name.lower())
        names.append(name)
    return names


def _write(found: Any, target: Path) -> list[Path]:
    """Write the mask, and the image and its canonical form side by side, as far as there are any."""
    from PIL import Image

    from localscale.files import write_whole
    from localscale.lab.data.images import encode_image, encode_mask

    written = {}
    if found.mask is not None:
        written[target.with_name(f"{target.name}_mask.png")] = encode_mask(found.mask, coloured=True)
    if found.canonical is not None:
        both = Image.new("RGB", (found.seen.width + found.canonical.width, found.seen.height))
        both.paste(found.seen, (0, 0))
        both.paste(found.canonical, (found.seen.width, 0))
        written[target.with_name(f"{target.name}_canonical.png")] = encode_image(both)
    for path, data in written.items():
        write_whole(path, data)
    return list(written)
