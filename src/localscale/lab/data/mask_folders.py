"""Read a folder of photographs with label masks: ROOT/images/NAME.jpg and ROOT/masks/NAME.png."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from localscale.errors import DataError
from localscale.lab.data.checking import check_all, warn_left_out
from localscale.lab.data.imagenet.image_list import images_below
from localscale.lab.data.images import read_image, read_labels
from localscale.lab.folders import stays_inside

__all__ = ["IMAGES", "MASKS", "MaskFolder", "check_mask_folder", "hold_out_masks", "list_mask_folder", "read_pair"]

IMAGES, MASKS = "images", "masks"
LOSSY = (".jpg", ".jpeg", ".jfif", ".webp", ".avif")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MaskFolder:
    """Images of a folder with their masks, as pairs of paths."""

    root: Path
    pairs: tuple[tuple[Path, Path], ...]

    def __len__(self) -> int:
        return len(self.pairs)


def list_mask_folder(root: Path | None, *, flag: str) -> MaskFolder:
    """List the images of ``root`` that have a mask, in the order of their names; ``flag`` names ``root`` in errors."""
    expected = f"{IMAGES}/NAME.jpg and {MASKS}/NAME.png"
    if root is None:
        raise DataError(f"{flag} is needed: a folder with {expected}")
    absent = [part for part in (root, root / IMAGES, root / MASKS) if not part.is_dir()]
    if absent:
        hint = "; to learn classes from the names of folders leave out --task segmentation" if len(absent) == 2 else ""
        raise DataError(f"{flag} {root}: {absent[0]} is not a folder; expected {root.name}/{expected}{hint}")
    for part in (root / IMAGES, root / MASKS):
        if not stays_inside(part, root):
            raise DataError(f"{flag} {root}: {part} is a symbolic link out of {root}; copy the folder to its place")
    images, masks = (_by_name(root / part, root) for part in (IMAGES, MASKS))
    for name, mask in masks.items():
        if name in images and mask.suffix.lower() in LOSSY:
            raise DataError(f"{mask} is compressed with loss, which changes class numbers; save masks as PNG")
    both = [name for name in images if name in masks]
    if not both:
        example = f"; {next(iter(images.values()))} has none" if images else ""
        raise DataError(f"{flag} {root} has no image with a mask{example}; expected {root.name}/{expected}")
    for have, lack, what, missing in ((images, masks, "images", "mask"), (masks, images, "masks", "image")):
        alone = [path for name, path in have.items() if name not in lack]
        if alone:
            log.warning(
                "%s %s: %d %s have no %s of the same name and are not used, such as %s",
                flag,
                root,
                len(alone),
                what,
                missing,
                alone[0],
            )
    return MaskFolder(root, tuple((images[name], masks[name]) for name in both))


def _by_name(folder: Path, root: Path) -> dict[str, Path]:
    """Return the images below ``folder`` by their names without ending; two of one name raise ``DataError``."""
    found: dict[str, Path] = {}
    for name in images_below(folder, folder, root=root):
        key, path = str(PurePosixPath(name).with_suffix("")), folder / name
        if key in found:
            raise DataError(f"{found[key]} and {path} differ only in their ending; rename one of them")
        found[key] = path
    return found


def read_pair(image_path: Path, mask_path: Path) -> tuple[Image.Image, np.ndarray]:
    """Return an upright RGB image and its labels ``(H, W)``; a mask of another size raises ``DataError``."""
    image, labels = read_image(image_path), read_labels(mask_path)
    _check_sizes((image_path, mask_path), image, labels)
    return image, labels


def _check_sizes(pair: tuple[Path, Path], image: Image.Image, labels: np.ndarray) -> None:
    if labels.shape != (image.height, image.width):
        raise DataError(
            f"the mask {pair[1]} is {labels.shape[1]}×{labels.shape[0]} pixels, and its image {pair[0]} is "
            f"{image.width}×{image.height}; save both in the same size"
        )


def check_mask_folder(folder: MaskFolder, *, flag: str, ignored: int, classes: int | None) -> tuple[MaskFolder, int]:
    """Decode every image and mask once; return the pairs that can be read and the number of classes.

    Broken files are left out with a warning. A mask of another size than its image raises ``DataError``, as does a
    label that is neither ``ignored`` nor one of ``classes``, if the classes are known.
    """

    def labels_of(pair: tuple[Path, Path]) -> list[int] | str:
        try:
            image, labels = read_image(pair[0]), read_labels(pair[1])
        except DataError as error:
            return str(error)
        _check_sizes(pair, image, labels)
        return sorted(set(np.unique(labels).tolist()) - {ignored})

    found = check_all(labels_of, folder.pairs)
    faults = [said for said in found if isinstance(said, str)]
    kept = [(pair, labels) for pair, labels in zip(folder.pairs, found, strict=True) if not isinstance(labels, str)]
    if not kept:
        raise DataError(f"{flag} {folder.root}: no image and mask can be read; the first fault is: {faults[0]}")
    if faults:
        warn_left_out(faults, len(folder), folder.root)
    for (_, mask), labels in kept:
        if classes is not None and labels and labels[-1] >= classes:
            raise DataError(
                f"{mask} has the class {labels[-1]}, and the known classes are 0 to {classes - 1}; "
                "correct the mask, or train with masks that have this class"
            )
    occurring = sorted({label for _, labels in kept for label in labels})
    count = classes or (occurring[-1] + 1 if occurring else 0)
    if count < 2:
        raise DataError(
            f"{flag} {folder.root}: the masks have only the classes {occurring} ({ignored} marks pixels to ignore); a "
            "segmenter needs at least two, numbered 0, 1, 2 …: save an object as 1, not as 255"
        )
    absent = sorted(set(range(count)) - set(occurring))
    if absent:
        log.warning(
            "%s %s: %d of the %d classes, 0 to %d, have no pixel, such as %d",
            flag,
            folder.root,
            len(absent),
            count,
            count - 1,
            absent[0],
        )
    return MaskFolder(folder.root, tuple(pair for pair, _ in kept)), count


def hold_out_masks(folder: MaskFolder, fraction: float, seed: int) -> tuple[MaskFolder, MaskFolder]:
    """Split off a random ``fraction`` of the pairs, rounded, for validation.

    >>> folder = MaskFolder(Path("photos"), tuple((Path(f"{n}.jpg"), Path(f"{n}.png")) for n in range(8)))
    >>> [len(part) for part in hold_out_masks(folder, 0.25, seed=0)]
    [6, 2]
    """
    count = round(fraction * len(folder))
    if not 0 < count < len(folder):
        raise DataError(
            f"{folder.root} has {len(folder)} images with masks, too few to hold out {100 * fraction:g} % of them; "
            "name other images with --data.val-root, or change --data.val-fraction"
        )
    chosen = set(random.Random(f"{seed}/masks").sample(range(len(folder)), count))
    train, val = (
        MaskFolder(folder.root, tuple(pair for n, pair in enumerate(folder.pairs) if (n in chosen) == held))
        for held in (False, True)
    )
    return train, val
