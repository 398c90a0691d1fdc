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

from localscale.errors import SiteError
from localscale.maps.base import Map
from localscale.warp import scale, scale_boxes, scale_points, unscale

__all__ = ["has_places", "scale_answer", "unscale_labels"]

Images = Tensor | Sequence[Tensor]
TOKENS = ("hidden", "token", "embed")  # words in the names of tensors (B, tokens, channels)


def scale_answer(answer: Any, m: Map, images: Images) -> Any:
    """Return ``answer`` with everything that has a place in the images scaled back: S(·; l).

    That is every tensor ``(B, K, h, w)`` of any h and w; every tensor ``(B, h, w)`` with the aspect ratio of the
    images, such as depth, unless its name is one of tokens, such as ``last_hidden_state``; and the boxes, masks and
    keypoints of detectors. They may be entries of dictionaries, of transformers' outputs, of tuples and of lists.
    Losses, scores, tokens and attentions stay as they are.

    Args:
        answer: the output of a model on canonical forms.
        m: one map per image.
        images: the images. If they are a list, only boxes, masks and keypoints are scaled back.
    """
    scaled, found = _scale_part(answer, "", m, images)
    if not found and not _only_numbers(answer):
        raise SiteError(
            f'mode="equivariant" at the input scales the answer back, but the model returned {_describe(answer)}; '
            "expected (batch, classes, height, width), or for each image a dictionary with boxes; "
            'use mode="invariant" for other answers'
        )
    return scaled


def has_places(name: str, value: Any) -> bool:
    """Return whether an argument holds label maps, ``labels`` of three or four dimensions, or boxes of each image."""
    if isinstance(value, Tensor):
        return name == "labels" and value.dim() in (3, 4)
    return _are_detections(value)


def unscale_labels(value: Any, m: Map, images: Images) -> Any:
    """Return label maps, or boxes, masks and keypoints of each image, as they are in the canonical forms: S⁻¹(·; l)."""
    if isinstance(value, Tensor):
        return _warp(unscale, value, m)
    return type(value)(_unscale_detection(one, m[index], _size(images[index])) for index, one in enumerate(value))


def _scale_part(part: Any, name: str, m: Map, images: Images) -> tuple[Any, bool]:
    """Return a part of an answer, scaled back, and whether anything in it had a place."""
    if isinstance(part, Tensor):
        fits = isinstance(images, Tensor) and "attention" not in name and _fits(part, images, name)
        return (_warp(scale, part, m), True) if fits else (part, False)
    if _are_detections(part) and len(part) == len(images):
        return type(part)(_scale_detection(one, m[index], _size(images[index])) for index, one in enumerate(part)), True
    done = {
        key: _scale_part(value, name if isinstance(key, int) else str(key), m, images) for key, value in _entries(part)
    }
    if not any(found for _, found in done.values()):
        return part, False
    return _rebuilt(part, {key: value for key, (value, _) in done.items()}), True


def _fits(part: Tensor, images: Tensor, name: str) -> bool:
    """Return whether ``part`` holds features, or one number per pixel, of ``images``."""
    if part.dim() not in (3, 4) or part.shape[0] != images.shape[0]:
        return False
    return part.dim() == 4 or (not any(word in name for word in TOKENS) and _same_shape(_size(part), _size(images)))


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


def _warp(by: Callable[..., Tensor], x: Tensor, m: Map) -> Tensor:
    return by(x, m, mode="bilinear" if x.is_floating_point() else "nearest") if x.numel() else x


def _are_detections(value: Any) -> bool:
    """Return whether ``value`` is a list of dictionaries with boxes, as torchvision's detectors take and return."""
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(one, Mapping) and isinstance(one.get("boxes"), Tensor) for one in value)
    )


def _scale_detection(detection: Mapping[str, Any], m: Map, size: tuple[int, int]) -> dict[str, Any]:
    return _move_detection(detection, m, size, lambda masks: _warp(scale, masks, m))


def _unscale_detection(detection: Mapping[str, Any], m: Map, size: tuple[int, int]) -> dict[str, Any]:
    return _move_detection(detection, m.inverse(), size, lambda masks: _warp(unscale, masks, m))


def _move_detection(
    detection: Mapping[str, Any], m: Map, size: tuple[int, int], warp: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    moved = dict(detection)
    moved["boxes"] = scale_boxes(detection["boxes"], m, size=size)
    if "masks" in moved:
        moved["masks"] = warp(detection["masks"])
    if "keypoints" in moved:
        points = detection["keypoints"]  # (N, K, 3): x, y, visibility
        xy = scale_points(points[..., :2].flatten(0, 1), m, size=size).view_as(points[..., :2])
        moved["keypoints"] = torch.cat((xy, points[..., 2:]), dim=-1)
    return moved


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
