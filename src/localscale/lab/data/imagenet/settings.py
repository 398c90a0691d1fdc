"""What a dataset depends on, as JSON: choices by name, files by content, and never where they lie."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from localscale.lab.data.imagenet.given import check_source
from localscale.lab.data.imagenet.inpainters import check_lama
from localscale.lab.data.imagenet.listing import Listing
from localscale.lab.data.imagenet.options import ImageNetOptions

__all__ = ["describe", "fingerprint"]

LOOK = 1  # raised whenever the same settings give other pixels


def describe(options: ImageNetOptions, listing: Listing) -> dict[str, Any]:
    """The settings that a dataset's folder keeps; options of stages that are not used stay out.

    Files that a stage needs are looked at here, before anything is made: a missing one is an error now.
    """
    return {
        "look": LOOK,
        "images": options.images.absolute().name,
        "listing": listing.digest,
        "count": len(listing.names),
        "seed": options.seed,
        "scales": list(options.scales),
        "size": options.size,
        "image_format": options.image_format,
        "feather": options.feather,
        "margin": options.margin,
        "agreement": options.agreement,
        "device": options.device.partition(":")[0],
        "detector": {"name": options.detector, **_detector(options)},
        "segmenter": {"name": options.segmenter, **_segmenter(options)},
        "inpainter": {"name": options.inpainter, **_inpainter(options)},
        "classes": list(listing.classes),
    }


def fingerprint(path: Path) -> dict[str, str]:
    """A file's or folder's name and the hash of its content; folders of images and masks by names and sizes.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(prefix="model-") as file:
    ...     fingerprint(Path(file.name))["sha256"][:16]
    'e3b0c44298fc1c14'
    """
    return {"name": path.absolute().name, "sha256": _hash_folder(path) if path.is_dir() else _hash_file(path)}


def _detector(options: ImageNetOptions) -> dict[str, Any]:
    match options.detector:
        case "grounding-dino":
            return {"model": _model(options.dino_model), "threshold": options.dino_threshold}
        case "evidence":
            weights = options.classifier_weights
            content = fingerprint(check_source(weights, "--classifier-weights", "evidence")) if weights else "timm"
            return {"classifier": options.classifier, "weights": content}
        case "given":
            return {"boxes": fingerprint(check_source(options.boxes or options.masks, "--boxes", "given"))}
    return {}


def _segmenter(options: ImageNetOptions) -> dict[str, Any]:
    match options.segmenter:
        case "sam":
            return {"model": _model(options.sam_model)}
        case "onnx-sam":
            return {
                "encoder": fingerprint(check_source(options.sam_encoder, "--sam-encoder", "onnx-sam")),
                "decoder": fingerprint(check_source(options.sam_decoder, "--sam-decoder", "onnx-sam")),
            }
        case "given":
            return {"masks": fingerprint(check_source(options.masks, "--masks", "given"))}
    return {}


def _inpainter(options: ImageNetOptions) -> dict[str, Any]:
    return {"file": fingerprint(check_lama(options))} if options.inpainter == "lama" else {}


def _model(name: str) -> str | dict[str, str]:
    """A hub's name stays; a local folder is known by its content."""
    return fingerprint(Path(name)) if Path(name).is_dir() else name


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_folder(path: Path) -> str:
    """Over the files below it: small ones (texts, boxes) and weights by content, images by name and size."""
    digest = hashlib.sha256()
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        image = file.suffix.lower() in (".png", ".jpg", ".jpeg")
        content = str(file.stat().st_size) if image else _hash_file(file)
        digest.update(f"{file.relative_to(path).as_posix()}\t{content}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
