"""Images larger than a backbone's input: which sizes an adapted model takes, and how its base sees them untouched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from localscale.canonicalizer import INPUT, Site
from localscale.conventions import resize_cubic
from localscale.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from localscale.adaptation.model import AdaptedModel

__all__ = ["as_batch", "canonical_size", "checked_batch", "choose_source_size", "size_of_images"]


def choose_source_size(given: Any, input_size: tuple[int, int, int], sites: Sequence[Site]) -> tuple[int, int] | None:
    """Return the (height, width) that ``adapt``'s ``source_size`` stands for; raise ``ConfigError`` if it cannot work.

    An integer is the longer side, at the aspect ratio of the input.

    >>> choose_source_size(448, (3, 224, 224), [Site("input")])
    (448, 448)
    """
    if given is None:
        return None
    _, *smallest = input_size
    if isinstance(given, int):
        given = tuple(round(given * side / max(smallest)) for side in smallest)
    wanted = f"expected an integer or (height, width), at least {smallest[0]}×{smallest[1]}, the backbone's input"
    if not isinstance(given, tuple | list) or len(given) != 2 or not all(isinstance(side, int) for side in given):
        raise ConfigError(f"source_size is {given!r}; {wanted}")
    height, width = given
    if height < smallest[0] or width < smallest[1]:
        raise ConfigError(f"source_size is {height}×{width}; {wanted}")
    if all(site.path != INPUT for site in sites):
        raise ConfigError(
            f'source_size={height, width} needs the site "input", where large images become canonical forms of the '
            f'backbone\'s size, and the sites are {", ".join(map(str, sites))}; add "input" to sites, or leave '
            "source_size out"
        )
    return height, width


def size_of_images(model: AdaptedModel) -> tuple[int, int, int]:
    """Return the (channels, height, width) of the images that a model was adapted for."""
    channels, height, width = model.input_size
    return (channels, *(model.source_size or (height, width)))


def canonical_size(model: Any) -> tuple[int, int] | None:
    """Return the (height, width) of a model's canonical forms; None if they are as large as the images."""
    return model.input_size[1:] if getattr(model, "source_size", None) is not None else None


def as_batch(images: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Return images ``(C, H, W)`` of any sizes as a batch of one ``size`` (height, width)."""
    return torch.cat([resize_cubic(image[None], *size) for image in images])


def checked_batch(images: Any, size: tuple[int, int, int]) -> Tensor:
    """Return images as one batch ``(B, C, H, W)``; raise ``ShapeError`` if they are not images of C channels.

    A tensor may have any height and width. A list of tensors ``(C, H, W)`` of any sizes is resized to ``size``.
    """
    listed = isinstance(images, list | tuple)
    if listed and not images:
        raise ShapeError("the list of images is empty; expected at least one image")
    for image in images if listed else [images]:
        if not isinstance(image, Tensor):
            came = f"are {type(image).__name__}"
        elif image.dim() != (3 if listed else 4) or image.shape[-3] != size[0] or 0 in image.shape:
            came = f"have shape {tuple(image.shape)}"
        elif not image.is_floating_point():
            came = f"have dtype {image.dtype}"
        else:
            continue
        raise ShapeError(
            f"images {came}; expected floating point, ({size[0]}, height, width) each in a list, or one tensor "
            f"(batch, {size[0]}, height, width)"
        )
    return as_batch(images, size[1:]) if listed else images
