"""List the images of a folder with one subfolder per class, in the order in which they are used."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localscale.errors import DataError
from localscale.lab.data.imagenet.annotations import TRIMAP
from localscale.lab.folders import stays_inside

__all__ = [
    "ENDINGS",
    "ImageList",
    "class_folders",
    "find_class_index",
    "images_below",
    "list_images",
    "read_class_index",
]

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".jfif", ".avif"}
CLASS_INDEX = "class_index.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageList:
    """The images of a folder by name (``class/image.jpg``), in the order they are used.

    ``labels`` maps each class folder to its label, and ``classes[label]`` is the class's name. ``known`` is True if the
    labels come from a class index and so agree with a classifier's, and False if they only number the sorted folders.
    ``digest`` changes if any image's name or size changes.
    """

    names: tuple[str, ...]
    labels: dict[str, int]
    classes: tuple[str, ...]
    known: bool
    digest: str


def list_images(
    folder: Path,
    *,
    class_index: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    what: str = "--images",
) -> ImageList:
    """List every image in the class folders of ``folder``, or the first ``limit`` of them.

    The list holds one image of every class, then a second image of every class, and so on, so a limit covers as many
    classes as possible and a larger limit only adds images. The seed and the names decide which image comes first.
    ``what`` names the folder in errors.
    """
    if not folder.is_dir():
        raise DataError(f"{what} {folder} is not a folder; expected one with a subfolder per class")
    folders = class_folders(folder)
    files = {path.name: images_below(path, folder) for path in folders}
    if not any(files.values()):
        loose = any(path.suffix.lower() in ENDINGS for path in folder.iterdir() if path.is_file())
        found = "holds images but no class folders" if loose and not folders else "holds no images in class folders"
        raise DataError(f"{what} {folder} {found}; expected {folder.name}/CLASS/IMAGE.jpg, one folder per class")
    labels, classes, known = _label(list(files), class_index or find_class_index(folder), given=class_index is not None)
    ranked = [
        (rank, _hash(seed, name), image)
        for name, images in files.items()
        for rank, image in enumerate(sorted(images, key=lambda image: _hash(seed, image)))
    ]
    names = tuple(image for _, _, image in sorted(ranked))[:limit]
    sizes = "".join(f"{name}\t{_size(folder / name)}\n" for name in names)
    return ImageList(names, labels, classes, known, _digest(sizes))


def find_class_index(folder: Path) -> Path | None:
    """Return the path of ``class_index.json`` in the images folder or in one of the two folders above it, if any."""
    root = folder.absolute()
    places = [root, root.parent, root.parent.parent]
    return next((place / CLASS_INDEX for place in places if (place / CLASS_INDEX).is_file()), None)


def read_class_index(path: Path) -> list[tuple[str, str]]:
    """Read the (folder, name) of every label from JSON ``{"000": ["n01440764", "tench"], …}``."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        numbered = {int(key): (folder, name) for key, (folder, name) in table.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(
            f'{path} is not a class index ({error}); expected {{"000": ["n01440764", "tench"], …}}'
        ) from error
    if sorted(numbered) != list(range(len(numbered))) or not numbered:
        raise DataError(f"{path} numbers {len(numbered)} classes with gaps; expected 0, 1, 2 …")
    pairs = [numbered[label] for label in range(len(numbered))]
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise DataError(f'{path} has names that are not text; expected {{"000": ["n01440764", "tench"], …}}')
    return pairs


def _label(folders: list[str], path: Path | None, *, given: bool) -> tuple[dict[str, int], tuple[str, ...], bool]:
    plain = {name: label for label, name in enumerate(folders)}, tuple(map(_readable, folders)), False
    if path is None:
        return plain
    pairs = read_class_index(path)
    table = {folder: label for label, (folder, _) in enumerate(pairs)}
    unknown = [name for name in folders if name not in table]
    if len(unknown) == len(folders) and not given:
        log.warning("%s lists none of the class folders, so it is not used", path)
        return plain
    if unknown:
        raise DataError(
            f"{path} does not list the class folder {unknown[0]} ({len(unknown)} of {len(folders)} are missing); "
            "pass the right file with --class-index"
        )
    return {name: table[name] for name in folders}, tuple(_readable(name) for _, name in pairs), True


def images_below(path: Path, folder: Path, *, root: Path | None = None) -> list[str]:
    """Return the names, below ``folder``, of files in ``path`` with an image's ending.

    Links out of ``root``, which is ``folder`` by default, are left out with a warning. Other broken links are included
    and skipped later with a reason.
    """
    names, others, outside = list[str](), list[str](), list[Path]()
    root = root or folder
    for file in path.rglob("*"):
        if file.is_symlink() and not stays_inside(file, root):
            outside.append(file)
            continue
        if file.name.startswith(".") or file.name.endswith(TRIMAP) or not (file.is_file() or file.is_symlink()):
            continue
        (names if file.suffix.lower() in ENDINGS else others).append(file.relative_to(folder).as_posix())
    unknown = [name for name in others if not name.endswith((".json", ".txt", ".xml"))]
    if unknown:
        log.warning(
            "%d files in %s do not have an image's ending and are not used (%s)", len(unknown), path, unknown[0]
        )
    _warn_of_links(outside, root)
    return sorted(names)


def class_folders(root: Path) -> list[Path]:
    """Return the folders directly in ``root``, sorted; links out of it are left out with a warning."""
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    outside = [path for path in folders if path.is_symlink() and not stays_inside(path, root)]
    _warn_of_links(outside, root)
    return [path for path in folders if path not in outside]


def _warn_of_links(links: Sequence[Path], root: Path) -> None:
    """Warn that these links, if there are any, lead out of ``root`` and are not followed."""
    if links:
        log.warning(
            "%d symbolic links lead out of %s and are not followed, such as %s; copy the files into the folder, or use "
            "hard links",
            len(links),
            root,
            links[0],
        )


def _readable(name: str) -> str:
    return re.sub(r"[_\s]+", " ", name).strip()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _hash(seed: int, name: str) -> str:
    return _digest(f"{seed}/{name}")


def _digest(text: str) -> str:
    """Return the SHA-256 of a text; file names may hold bytes that are not UTF-8."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
