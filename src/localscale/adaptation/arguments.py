"""Find the images among the arguments of an adapted model, check them, and bring labels to the canonical forms."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from localscale.adaptation.answers import has_places, unscale_labels
from localscale.adaptation.wrapper import replace_feature, split_feature
from localscale.errors import LocalScaleError, ShapeError
from localscale.maps.base import Map

__all__ = ["call_base", "find_images", "first_weight", "unscale_arguments"]


def find_images(
    base: nn.Module, input_name: str, channels: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int | str, Any]:
    """Return the position or name of the images among the arguments of ``base``, and the images.

    They are a tensor ``(B, C, H, W)``, or a list or tuple of tensors ``(C, H, W)``; others raise ``ShapeError``.
    """
    named = {input_name: kwargs[input_name]} if input_name in kwargs else kwargs
    key, first = (0, args[0]) if args else next(iter(named.items()), ("", None))
    if isinstance(first, list | tuple) and first and all(isinstance(image, Tensor) for image in first):
        for image in first:
            _check(base, image, channels, f"({channels}, height, width)")
        return key, first
    found = split_feature(args, named)
    if found is None:
        raise ShapeError(
            "the model was called without an image tensor; expected a (batch, channels, height, width) tensor"
        )
    _check(base, found[1], channels, f"(batch, {channels}, height, width)")
    return found


def unscale_arguments(
    names: Sequence[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    m: Map,
    images: Any,
    mode: str,
    size: tuple[int, int] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with label maps and boxes as they are in the canonical forms; warn if ``mode`` forbids it.

    ``names`` are those of the positional arguments; ``size`` is that of the canonical forms if it is not the images'.
    """
    named = [*zip(names, args, strict=False), *kwargs.items()]
    for index, (name, value) in enumerate(named):
        if not has_places(name, value):
            continue
        if mode == "invariant":
            warnings.warn(
                f'{name} have places in the image, but with mode="invariant" the base model compares them with its '
                'canonical form; adapt the model with DECConfig(mode="equivariant")',
                stacklevel=6,  # where the model was called
            )
            continue
        key = index if index < len(args) else name
        args, kwargs = replace_feature(args, kwargs, key, unscale_labels(value, m, images, size))
    return args, kwargs


def call_base(
    base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], size: tuple[int, int], usual: tuple[int, int]
) -> Any:
    """Call ``base`` on images of ``size``; if it fails for another size than its ``usual`` one, the error says so."""
    if torch.compiler.is_compiling() or size == usual:
        return base(*args, **kwargs)
    try:
        return base(*args, **kwargs)
    except (AssertionError, RuntimeError, ValueError) as error:
        if isinstance(error, LocalScaleError | torch.OutOfMemoryError):
            raise
        raise ShapeError(
            f"{type(base).__name__} did not take {size[0]}×{size[1]} images ({error}); "
            f"it was adapted with {usual[0]}×{usual[1]}"
        ) from error


def first_weight(model: nn.Module) -> Tensor:
    """Return the first floating-point parameter of ``model``, or an empty tensor."""
    return next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))


def _check(base: nn.Module, image: Tensor, channels: int, expected: str) -> None:
    if image.dim() != expected.count(",") + 1 or image.shape[-3] != channels:
        raise ShapeError(f"images have shape {tuple(image.shape)}; expected {expected}")
    if 0 in image.shape[-2:]:
        raise ShapeError(f"images have shape {tuple(image.shape)}, so no pixels; expected {expected}, at least 1×1")
    if not image.is_floating_point():
        raise ShapeError(
            f"images have dtype {image.dtype}; expected floating-point images, normalised as for the backbone"
        )
    weight = first_weight(base)
    if weight.numel() and weight.device != image.device:
        raise ShapeError(
            f"images are on {image.device} and {type(base).__name__} is on {weight.device}; "
            f'call it with images.to("{weight.device}")'
        )
    if weight.numel() and weight.dtype != image.dtype and not torch.is_autocast_enabled(image.device.type):
        raise ShapeError(
            f"images are {image.dtype} and {type(base).__name__} is {weight.dtype}; "
            f"call it with images.to({weight.dtype}), or inside torch.autocast"
        )
