"""``localscale predict``: the classes of image files, by the model of a finished run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from localscale.errors import ConfigError, DataError

__all__ = ["Predict"]


@dataclass(frozen=True)
class Predict:
    """Name the classes of image files and write their canonical forms, what the backbone sees."""

    folder: Positional[Path]
    """Folder of a finished run."""
    images: Positional[tuple[Path, ...]]
    """Image files of any size."""
    top: int = 3
    """Number of classes to print for each image."""
    out: Path = Path("canonical")
    """Folder for the canonical forms: IMAGE_canonical.png, with what was seen at the left."""

    def run(self) -> None:
        from localscale.lab.runs import read_run
        from localscale.lab.runs.prediction import Predictor

        if not self.images:
            raise ConfigError("no image is named: localscale predict RUN IMAGE …")
        if self.top < 1:
            raise ConfigError(f"--top is {self.top}; expected at least 1")
        predict, unread = Predictor(read_run(self.folder)), 0
        for path in self.images:
            try:
                found = predict(path, self.top)
            except DataError as error:
                print(f"localscale: {error}", file=sys.stderr)
                unread += 1
                continue
            answers = ", ".join(f"{name} {100 * probability:.1f} %" for name, probability in found.classes)
            written = ""
            if found.canonical is not None:
                written = f"  {_write(found.seen, found.canonical, self.out / f'{path.stem}_canonical.png')}"
            print(f"{path}: {answers}{written}")
        if unread:
            raise DataError(f"{unread} of {len(self.images)} images could not be read")


def _write(seen: Any, canonical: Any, target: Path) -> Path:
    """Write an image and its canonical form side by side."""
    from PIL import Image

    from localscale.files import write_whole
    from localscale.lab.data.images import encode_image

    both = Image.new("RGB", (seen.width + canonical.width, seen.height))
    both.paste(seen, (0, 0))
    both.paste(canonical, (seen.width, 0))
    write_whole(target, encode_image(both))
    return target
