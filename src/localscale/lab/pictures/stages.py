"""The stages in which a locally scaled photograph is made (paper, Fig. inpaint_pipeline)."""

from __future__ import annotations

from typing import Any

import numpy as np

from localscale.lab.data.imagenet.compositing import composite
from localscale.lab.data.imagenet.one_image import Scaled
from localscale.lab.pictures.curves import mark_box
from localscale.lab.pictures.files import new_figure

__all__ = ["draw_stages"]

PAPER = 255  # grey value behind an object without its background


def draw_stages(scaled: Scaled, scale: float) -> Any:
    """Return a figure of six pictures: photograph, mask, object, background, scaled object and the result."""
    height, width = scaled.mask.shape
    blank = np.full_like(scaled.photograph, PAPER)
    alpha = scaled.cutout.layer[..., 3:]
    cut = np.clip(scaled.cutout.layer[..., :3] + (1 - alpha) * PAPER + 0.5, 0, 255).astype(np.uint8)
    enlarged, _ = composite(blank, scaled.cutout, scale)
    pictures = {
        "(a) photograph and box": scaled.photograph,
        "(b) mask": np.repeat(255 * scaled.mask[..., None].astype(np.uint8), 3, axis=2),
        "(c) object": cut,
        "(d) background": scaled.background,
        f"(e) object × {scale:g}": enlarged,
        "(f) locally scaled": scaled.image,
    }
    figure, axes = new_figure(1, len(pictures), width=7.2, height=7.2 / len(pictures) * height / width + 0.25)
    for axis, (title, pixels) in zip(axes[0], pictures.items(), strict=True):
        axis.imshow(pixels, extent=(0, width, height, 0))
        axis.set_title(title, fontsize=6.5)
        axis.set(xticks=[], yticks=[])
    mark_box(axes[0][0], scaled.box.edges)
    axes[0][0].set(xlim=(0, width), ylim=(height, 0))
    return figure
