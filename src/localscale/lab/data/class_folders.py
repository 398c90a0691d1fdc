"""Read a folder of photographs with one subfolder per class: list it, check the images, hold some out."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localscale.errors import DataError, near_misses
from localscale.lab.data.checking import check_all, warn_left_out
from localscale.lab.data.imagenet.image_list import ENDINGS, class_folders, images_below
from localscale.lab.data.images import read_image
from localscale.lab.data.mask_folders import IMAGES, MASKS

__all__ = ["ClassFolders", "hold_out", "leave_out_broken", "list_class_folders"]

SPLITS = {"train", "training", "trainval", "val", "valid", "validation", "test"}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClassFolders:
    """Images of a folder as (path, label); ``classes[label]`` is the name of the class's folder."""

    root: Path
    classes: tuple[str, ...]
    items: tuple[tuple[Path, int], ...]

    def __len__(self) -> int:
        return len(self.items)


def list_class_folders(root: Path | None, *, flag: str, classes: Sequence[str] = ()) -> ClassFolders:
    """List the images of ``root``, which has one subfolder per class, in the order of their names.

    Args:
        root: the folder.
        flag: the command-line flag that named it, for errors.
        classes: the classes in the order of their labels; without them, the subfolders in alphabetical order, each of
            which must hold an image.
    """
    if root is None:
        raise DataError(f"{flag} is needed: a folder with one subfolder of images per class")
    if not root.is_dir():
        raise DataError(f"{flag} {root} is not a folder; expected one with a subfolder of images per class")
    found = {path.name: images_below(path, root) for path in class_folders(root)}
    loose = sorted(path.name for path in root.iterdir() if path.is_file() and path.suffix.lower() in ENDINGS)
    expected = f"expected {root.name}/CLASS/IMAGE.jpg, one folder per class"
    if not any(found.values()):
        what = f"holds images, such as {loose[0]}, but no class folders" if loose else "holds no images"
        raise DataError(f"{flag} {root} {what}; {expected}")
    if loose:
        log.warning(
            "%s %s: %d images beside the class folders are not used, such as %s; %s",
            flag,
            root,
            len(loose),
            loose[0],
            expected,
        )
    if {name for name, images in found.items() if images} == {IMAGES, MASKS}:
        raise DataError(
            f"{flag} {root} holds {IMAGES} and {MASKS}, which are no classes; add --task segmentation to learn masks"
        )
    if not classes:
        _check_level(root, found, flag)
        empty = [name for name, images in found.items() if not images]
        if empty:
            raise DataError(
                f"{flag} {root}: the class folder {empty[0]} holds no images ({len(empty)} of {len(found)} are empty); "
                "add images to it, or remove it"
            )
        if len(found) < 2:
            raise DataError(
                f"{flag} {root} has one class, {next(iter(found))}; a classifier needs at least two, so {expected}"
            )
    unknown = [name for name, images in found.items() if images and classes and name not in classes]
    if unknown:
        raise DataError(
            f"{flag} {root} has the class {unknown[0]}, which the training images do not have "
            f"({len(unknown)} of {len(found)} classes are unknown; {near_misses(unknown[0], classes)}); "
            "rename or remove its folder"
        )
    names = tuple(classes) or tuple(found)
    labels = {name: label for label, name in enumerate(names)}
    absent = [name for name in names if not found.get(name)]
    if absent:
        log.warning(
            "%s %s has no images of %d of the %d classes, such as %s", flag, root, len(absent), len(names), absent[0]
        )
    items = tuple((root / image, labels[name]) for name, images in found.items() for image in images)
    return ClassFolders(root, names, items)


def _check_level(root: Path, found: dict[str, list[str]], flag: str) -> None:
    """Raise if the class folders are one level further down than they should be; warn if they could be."""
    deeper = {name: {image.split("/")[1] for image in images if image.count("/") > 1} for name, images in found.items()}
    nested = all(image.count("/") > 1 for images in found.values() for image in images)
    splits = {name.lower() for name in found} <= SPLITS
    if nested and (splits or len(found) == 1):
        inner = next(name for name, folders in deeper.items() if folders)
        example = sorted(deeper[inner])[0]
        raise DataError(
            f"{flag} {root}: {inner} holds folders, such as {example}, instead of images; the class folders seem to be "
            f"one level further down: try {flag} {root / inner}"
        )
    groups = [name for name, folders in deeper.items() if folders and all(x.count("/") > 1 for x in found[name])]
    if groups:
        within = sorted(f"{name}/{folder}" for name in groups for folder in deeper[name])
        log.warning(
            "%s %s: the folders directly below it are the classes, %d in all; the %d folders inside them, such as %s, "
            "are not classes of their own. If they should be, move them up to %s",
            flag,
            root,
            len(found),
            len(within),
            within[0],
            root,
        )


def leave_out_broken(images: ClassFolders, *, flag: str) -> ClassFolders:
    """Decode every image once; return those that can be read, and warn about the others.

    Raise ``DataError`` if a class loses all its images.
    """

    def fault(item: tuple[Path, int]) -> str | None:
        try:
            read_image(item[0])
        except DataError as error:
            return str(error)
        return None

    faults = check_all(fault, images.items)
    broken = [said for said in faults if said]
    if not broken:
        return images
    kept = tuple(item for item, said in zip(images.items, faults, strict=True) if not said)
    lost = {label for _, label in images.items} - {label for _, label in kept}
    if lost:
        raise DataError(
            f"{flag} {images.root}: no image of the class {images.classes[min(lost)]} can be read; the first fault is: "
            f"{broken[0]}"
        )
    warn_left_out(broken, len(images), images.root)
    return ClassFolders(images.root, images.classes, kept)


def hold_out(images: ClassFolders, fraction: float, seed: int) -> tuple[ClassFolders, ClassFolders]:
    """Split off a random ``fraction`` of each class, rounded, for validation; at least one image of a class stays.

    >>> folders = ClassFolders(Path("photos"), ("cat", "dog"), tuple((Path(f"{n}.jpg"), n % 2) for n in range(8)))
    >>> [len(part) for part in hold_out(folders, 0.25, seed=0)]
    [6, 2]
    """
    chosen: set[Path] = set()
    for label, name in enumerate(images.classes):
        own = [path for path, each in images.items if each == label]
        count = min(round(fraction * len(own)), len(own) - 1)
        chosen |= set(random.Random(f"{seed}/{name}").sample(own, max(0, count)))
    if not chosen:
        raise DataError(
            f"{images.root} has {len(images)} images of {len(images.classes)} classes, too few to hold out "
            f"{100 * fraction:g} % of each class; name other images with --data.val-root, or raise --data.val-fraction"
        )
    parts = ([item for item in images.items if (item[0] in chosen) == held] for held in (False, True))
    train, val = (ClassFolders(images.root, images.classes, tuple(part)) for part in parts)
    return train, val
