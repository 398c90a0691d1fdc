"""Bring a model's answers from canonical forms back to its images, and labels from the images to canonical forms.

A canonical form shows at p what the image shows at l(p). So an answer at p goes to l(p), by ``scale``, and a label at
l(p) goes to p, by ``unscale``.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from localscale.conventions import stretch, xy_pair
from localscale.errors import SiteError
from localscale.maps.base import Map
from localscale.warp import scale, scale_boxes, scale_points, unscale

__all__ = ["has_boxes", "has_places", "scale_answer", "unscale_labels"]

Images = Tensor | Sequence[Tensor]
Size = tuple[int, int]
TOKENS = ("hidden", "token", "embed")  # words in the names of tensors (B, tokens, channels)
FRACTIONS = "pred_boxes"  # the answer of transformers' detectors: (centre x, centre y, width, height), in fractions
CLASSES = "class_labels"  # of transformers' labels, whose boxes are such fractions, too


def scale_answer(answer: Any, m: Map, images: Images, size: Size | None = None) -> Any:
    """Return ``answer`` with everything that has a place in the images scaled back: S(·; l).

    That is every tensor ``(B, K, h, w)`` of any h and w; every tensor ``(B, h, w)`` with the aspect ratio of the
    images, such as depth, unless its name is one of tokens, such as ``last_hidden_state``; and the boxes, masks and
    keypoints of detectors, of torchvision or as ``pred_boxes`` of transformers. They may be entries of dictionaries, of
    transformers' outputs, of tuples and of lists.
    Losses, scores, tokens and attentions stay as they are.

    Args:
        answer: the output of a model on canonical forms.
        m: one map per image.
        images: the images. If they are a list, only boxes, masks and keypoints are scaled back.
        size: (height, width) of the canonical forms, if it is not the images'. Tensors of this size come back at the
            size of the images, others at their own, and boxes and keypoints in pixels of the images.
    """
    scaled, found = _scale_part(answer, "", m, images, size)
    if not found and not _only_numbers(answer):
        raise SiteError(
            f'mode="equivariant" at the input scales the answer back, but the model returned {_describe(answer)}; '
            "expected (batch, classes, height, width), or for each image a dictionary with boxes; "
            'use mode="invariant" for other answers'
        )
    return scaled


def has_places(name: str, value: Any) -> bool:
    """Return whether an argument holds label maps, boxes of each image, or ``mask_labels``, the masks of each image.

    Label maps are ``labels`` of three or four dimensions.
    """
    if isinstance(value, Tensor):
        return name == "labels" and value.dim() in (3, 4)
    return _are_detections(value) or (name == "mask_labels" and _are_masks(value))


def unscale_labels(value: Any, m: Map, images: Images, size: Size | None = None) -> Any:
    """Return label maps, or boxes, masks and keypoints of each image, as they are in the canonical forms: S⁻¹(·; l).

    ``size`` is the (height, width) of the canonical forms, if it is not that of the images.
    """
    if isinstance(value, Tensor):
        return _to_canonical(value, m, size)
    if _are_masks(value):
        return type(value)(_to_canonical(one, m[index], size) for index, one in enumerate(value))
    return type(value)(_unscale_detection(one, m[index], _size(images[index]), size) for index, one in enumerate(value))


def _are_masks(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, Tensor) and one.dim() == 3 for one in value)


def _scale_part(part: Any, name: str, m: Map, images: Images, size: Size | None) -> tuple[Any, bool]:
    """Return a part of an answer, scaled back, and whether anything in it had a place."""
    if isinstance(part, Tensor):
        if name == FRACTIONS and part.dim() == 3 and isinstance(images, Tensor):
            return _scale_fractions(part, m, _size(images), size), True
        if not isinstance(images, Tensor) or "attention" in name or not _fits(part, images, name, size):
            return part, False
        return _to_image(part, m, _size(images), size), True
    if _are_detections(part) and len(part) == len(images):
        back = (_scale_detection(one, m[index], _size(images[index]), size) for index, one in enumerate(part))
        return type(part)(back), True
    done = {
        key: _scale_part(value, name if isinstance(key, int) else str(key), m, images, size)
        for key, value in _entries(part)
    }
    if not any(found for _, found in done.values()):
        return part, False
    return _rebuilt(part, {key: value for key, (value, _) in done.items()}), True


def _fits(part: Tensor, images: Tensor, name: str, size: Size | None) -> bool:
    """Return whether ``part`` holds features, or one number per pixel, of ``images`` or their forms of ``size``."""
    if part.dim() not in (3, 4) or part.shape[0] != images.shape[0]:
        return False
    shown = size or _size(images)
    return part.dim() == 4 or (not any(word in name for word in TOKENS) and _same_shape(_size(part), shown))


def _same_shape(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Return whether two sizes, (height, width), have one aspect ratio up to rounding to whole pixels."""
    across, down = a[1] * b[0], a[0] * b[1]
    return min(a) > 1 and abs(across - down) < min(b)


def _size(image: Tensor) -> tuple[int, int]:
    return image.shape[-2], image.shape[-1]


def _entries(part: Any) -> list[tuple[Any, Any]]:
    """Return the entries of a container with their names; none for anything else."""
    if isinstance(part, Mapping):  # transformers' outputs are mappings without the fields that are None
        return list(part.items())
    if dataclasses.is_dataclass(part):
        return [(field.name, getattr(part, field.name)) for field in dataclasses.fields(part)]
    return list(enumerate(part)) if isinstance(part, tuple | list) else []


def _rebuilt(part: Any, entries: dict[Any, Any]) -> Any:
    """Return a container of the type of ``part`` with other values."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.replace(part, **entries)
    if isinstance(part, Mapping):
        copied: Any = copy.copy(part)
        copied.update(entries)
        return copied
    return type(part)(*entries.values()) if hasattr(part, "_fields") else type(part)(entries.values())


def _to_image(x: Tensor, m: Map, image_size: Size, size: Size | None) -> Tensor:
    """Return maps of pixels scaled back, S(·; l), at the size of the image if they have that of its canonical form."""
    large = image_size if _size(x) == size else _size(x)
    if not x.numel():  # no masks
        return x.new_empty(*x.shape[:-2], *large)
    if not x.is_floating_point():
        return unscale(x, m.inverse(), size=large, mode="nearest")
    layers = x if x.dim() == 4 else x[:, None]
    return scale(stretch(layers, *large), m).reshape(*x.shape[:-2], *large)


def _to_canonical(x: Tensor, m: Map, size: Size | None) -> Tensor:
    """Return maps of pixels as they are in the canonical form, S⁻¹(·; l), at its ``size``."""
    if not x.numel():
        return x.new_empty(*x.shape[:-2], *(size or _size(x)))
    return unscale(x, m, size=size, mode="bilinear" if x.is_floating_point() else "nearest")


def has_boxes(answer: Any) -> bool:
    """Return whether an answer is that of a detector of torchvision, or of transformers."""
    return _are_detections(answer) or (isinstance(answer, Mapping) and FRACTIONS in answer)


def _are_detections(value: Any) -> bool:
    """Return whether ``value`` is a list of dictionaries with boxes, as torchvision's detectors take and return."""
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(one, Mapping) and isinstance(one.get("boxes"), Tensor) for one in value)
    )


def _scale_detection(detection: Mapping[str, Any], m: Map, image_size: Size, size: Size | None) -> dict[str, Any]:
    def move(places: Tensor, by: Callable[..., Tensor]) -> Tensor:
        return by(_resize_places(places, size or image_size, image_size), m, size=image_size)

    return _move_detection(detection, move, lambda masks: _to_image(masks, m, image_size, size))


def _scale_fractions(boxes: Tensor, m: Map, image_size: Size, size: Size | None) -> Tensor:
    """Return boxes ``(B, N, 4)``, (centre x, centre y, width, height) as fractions of the sides, scaled back."""
    shown = size or image_size
    corners = _resize_places(_to_corners(boxes, shown), shown, image_size)
    return _to_fractions(scale_boxes(corners, m, size=image_size), image_size)


def _to_corners(boxes: Tensor, size: Size) -> Tensor:
    """Return the left, top, right and bottom in pixels of boxes in fractions of an image of ``size``."""
    centre, extent = boxes.unflatten(-1, (2, 2)).unbind(-2)
    return torch.cat((centre - extent / 2, centre + extent / 2), dim=-1) * xy_pair(size[1], size[0], boxes).repeat(2)


def _to_fractions(corners: Tensor, size: Size) -> Tensor:
    """Return boxes in fractions of an image of ``size``, the inverse of ``_to_corners``."""
    first, second = (corners / xy_pair(size[1], size[0], corners).repeat(2)).unflatten(-1, (2, 2)).unbind(-2)
    return torch.cat(((first + second) / 2, second - first), dim=-1)


def _unscale_detection(detection: Mapping[str, Any], m: Map, image_size: Size, size: Size | None) -> dict[str, Any]:
    fractions = CLASSES in detection

    def move(places: Tensor, by: Callable[..., Tensor]) -> Tensor:
        boxes = fractions and by is scale_boxes
        there = by(_to_corners(places, image_size) if boxes else places, m.inverse(), size=image_size)
        there = _resize_places(there, image_size, size or image_size)
        return _to_fractions(there, size or image_size) if boxes else there

    return _move_detection(detection, move, lambda masks: _to_canonical(masks, m, size))


def _move_detection(
    detection: Mapping[str, Any],
    move: Callable[[Tensor, Callable[..., Tensor]], Tensor],
    warp: Callable[[Tensor], Tensor],
) -> dict[str, Any]:
    moved = dict(detection)
    moved["boxes"] = move(detection["boxes"], scale_boxes)
    if "masks" in moved:
        moved["masks"] = warp(detection["masks"])
    if "keypoints" in moved:
        points = detection["keypoints"]  # (N, K, 3): x, y, visibility
        xy = move(points[..., :2].flatten(0, 1), scale_points).view_as(points[..., :2])
        moved["keypoints"] = torch.cat((xy, points[..., 2:]), dim=-1)
    return moved


def _resize_places(places: Tensor, size: Size, new: Size) -> Tensor:
    """Return points or boxes ``(…, x, y, …)`` of an image of ``size`` in the pixels of the same image at size ``new``.

    Convention: centres of the corner pixels stay such centres. A place beyond them keeps its distance from them, so
    that the border of the one image is the border of the other.
    """
    if size == new:
        return places
    pairs = places.unflatten(-1, (-1, 2))
    before, after = (xy_pair(width - 1, height - 1, places) for height, width in (size, new))
    centred = pairs - 0.5
    inside = torch.minimum(centred.clamp_min(0), before)
    return (inside * (after / before.clamp_min(1)) + (centred - inside) + 0.5).flatten(-2)


def _tensors(part: Any) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    for _, value in _entries(part):
        yield from _tensors(value)


def _only_numbers(answer: Any) -> bool:
    """Return whether all tensors of an answer are single numbers, as the losses of a detector in training mode."""
    tensors = list(_tensors(answer))
    return bool(tensors) and not any(tensor.dim() for tensor in tensors)


def _describe(answer: Any) -> str:
    """Return the shape of a tensor, the entries of a container, or the name of a type."""
    if isinstance(answer, Tensor):
        return str(tuple(answer.shape))
    entries: Iterable[tuple[Any, Any]] = _entries(answer)
    inside = ", ".join(_describe(v) if isinstance(k, int) else f"{k}: {_describe(v)}" for k, v in entries)
    return f"{type(answer).__name__}({inside})" if inside else type(answer).__name__
