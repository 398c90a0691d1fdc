"""Layouts of feature tensors, and views of any layout as NCHW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from localscale.errors import ShapeError

__all__ = ["Layout", "Tokens", "as_nchw", "pixels_of", "same_aspect"]


@dataclass(frozen=True)
class Tokens:
    """Sequences ``(B, prefix + height·width, C)``: class, distillation or register tokens first, then rows of patches.

    >>> Tokens(14, 14, prefix=1).length
    197
    """

    height: int
    width: int
    prefix: int = 0

    @property
    def length(self) -> int:
        """The number of tokens in a sequence."""
        return self.prefix + self.height * self.width


Layout = Literal["NCHW", "NHWC", "NHW"] | Tokens


def same_aspect(pixels: tuple[int, ...], image_size: tuple[int, ...]) -> bool:
    """Return whether (h, w) is (H, W) shrunk by the same factor along both sides, up to rounding.

    >>> same_aspect((14, 14), (224, 224)), same_aspect((14, 192), (224, 224))
    (True, False)
    """
    (height, width), (image_height, image_width) = pixels, image_size
    return abs(height * image_width - width * image_height) <= max(image_height, image_width)


def pixels_of(x: Tensor, layout: Layout) -> tuple[int, int]:
    """Return the height and width of ``x`` in pixels or patches; raise ``ShapeError`` if ``layout`` does not fit.

    >>> pixels_of(torch.rand(2, 1 + 6, 8), Tokens(2, 3, prefix=1)), pixels_of(torch.rand(2, 5, 4, 8), "NHWC")
    ((2, 3), (5, 4))
    """
    if isinstance(layout, Tokens):
        if x.dim() != 3 or x.shape[1] != layout.length:
            raise ShapeError(
                f"tokens have shape {tuple(x.shape)}; expected (batch, {layout.length}, channels) for "
                f"{layout.prefix} prefix tokens and {layout.height}×{layout.width} patches"
            )
        return _nonempty(layout.height, layout.width)
    if layout not in ("NCHW", "NHWC", "NHW"):
        raise ShapeError(f'layout is {layout!r}; expected "NCHW", "NHWC", "NHW" or Tokens(height, width, prefix)')
    rank = len(layout)
    if x.dim() != rank:
        raise ShapeError(f"a tensor of shape {tuple(x.shape)} was given as {layout}; expected {rank} dimensions")
    height = layout.index("H")
    return _nonempty(x.shape[height], x.shape[height + 1])


def _nonempty(height: int, width: int) -> tuple[int, int]:
    if not height or not width:
        raise ShapeError(f"a feature has {height}×{width} pixels; expected at least 1×1")
    return height, width


def as_nchw(x: Tensor, layout: Layout) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return ``x`` as ``(B, C, H, W)``, and a function that converts such a tensor back to ``layout``.

    Prefix tokens are left out, and put back unchanged.

    >>> view, back = as_nchw(torch.rand(2, 1 + 6, 8), Tokens(2, 3, prefix=1))
    >>> view.shape, back(view).shape
    (torch.Size([2, 8, 2, 3]), torch.Size([2, 7, 8]))
    """
    pixels = pixels_of(x, layout)
    if isinstance(layout, Tokens):
        grid = x[:, layout.prefix :].transpose(1, 2).unflatten(2, pixels)

        def to_tokens(y: Tensor) -> Tensor:
            patches = y.flatten(2).transpose(1, 2)
            return torch.cat((x[:, : layout.prefix], patches), dim=1) if layout.prefix else patches

        return grid, to_tokens
    if layout == "NHWC":
        return x.permute(0, 3, 1, 2), lambda y: y.permute(0, 2, 3, 1)
    if layout == "NHW":
        return x.unsqueeze(1), lambda y: y.squeeze(1)
    return x, lambda y: y
