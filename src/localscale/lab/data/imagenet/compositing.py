"""Cut an object out of an image and paste it back at another scale.

The centre of the object's bounding box stays where it is. Every pixel outside the filled hole and outside the pasted
object with its soft edge equals the original's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from localscale.extras import require
from localscale.lab.data.boxes import Box, bounding_box

__all__ = ["Cutout", "composite", "cut_out", "soften_rim"]

OPAQUE = 0.5  # a pixel with at least this alpha belongs to the object's mask


@dataclass(frozen=True)
class Cutout:
    """An object without its background: ``layer`` ``(H, W, 4)`` float32 holds colour times alpha, then alpha."""

    layer: np.ndarray
    box: Box


def soften_rim(pixels: np.ndarray, filled: np.ndarray, hole: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the filled image with a gradual transition to the original along the rim of the hole.

    The rim shows true background, so the outer half of the margin can be blended and no seam is left.
    """
    cv2 = require("cv2", "imagenet")
    inward, outward = (
        cv2.distanceTransform(np.pad(region, 1, constant_values=value).astype(np.uint8), cv2.DIST_L2, 5)[1:-1, 1:-1]
        for region, value in ((hole, True), (~mask, True))
    )
    weight = np.clip(2 * inward / np.maximum(inward + outward, 1e-6), 0, 1)
    weight = np.where(mask, 1, np.where(hole, weight, 0))[..., None]
    blended = pixels + weight * (filled.astype(np.float32) - pixels)
    return np.where(hole[..., None], np.clip(blended + 0.5, 0, 255).astype(np.uint8), pixels)


def cut_out(pixels: np.ndarray, mask: np.ndarray, *, feather: float = 1.5) -> Cutout:
    """Return the object with a soft edge that is ``feather`` pixels wide and centred on the mask's edge.

    An edge pixel shows a mixture of object and background. Its colour is replaced by a colour from nearby inside the
    object, so that nothing of the old background is pasted.
    """
    cv2 = require("cv2", "imagenet")
    alpha = mask.astype(np.float32)
    if feather > 0:
        alpha = cv2.GaussianBlur(alpha, (0, 0), feather / 2, borderType=cv2.BORDER_REPLICATE)
        alpha = np.clip((alpha - 0.02) / 0.96, 0, 1)
    colours = _inner_colours(pixels, mask, alpha > 0)
    return Cutout(np.dstack([colours * alpha[..., None], alpha]), bounding_box(mask))


def composite(background: np.ndarray, cutout: Cutout, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Paste the object at ``scale`` onto the filled background; return the image and the object's mask."""
    height, width = background.shape[:2]
    layer = _rescale(cutout, scale, width, height)
    layer = layer / np.maximum(layer[..., 3:], 1)  # bicubic resizing overshoots in colour and alpha
    alpha = np.where(layer[..., 3:] < 1 / 512, 0, layer[..., 3:])
    colours = np.clip(layer[..., :3], 0, 255 * alpha)
    mixed = colours + (1 - alpha) * background
    image = np.where(alpha > 0, np.clip(mixed + 0.5, 0, 255).astype(np.uint8), background)
    return image, alpha[..., 0] >= OPAQUE


def _rescale(cutout: Cutout, scale: float, width: int, height: int) -> np.ndarray:
    """Return the layer resized about the box's centre with anti-aliasing, on the pixel grid of the whole image.

    Output coordinate u shows input coordinate c + (u − c) / scale. The layer is padded with empty pixels, so that the
    filter never reads past its end.
    """
    (x, y), source = cutout.box.centre, cutout.layer
    reach = math.ceil(3 * max(1.0, scale, 1 / scale))  # of the bicubic filter, in pixels
    shown, spans = bounding_box(source[..., 3] > 0), []
    for centre, low, high, length in ((x, shown.left, shown.right, width), (y, shown.top, shown.bottom, height)):
        first = max(math.floor(centre + (low - centre) * scale) - reach, 0)
        last = min(math.ceil(centre + (high - centre) * scale) + reach, length)
        spans.append((first, last, centre + (first - centre) / scale, centre + (last - centre) / scale))
    (left, right, from_x, to_x), (top, bottom, from_y, to_y) = spans
    pad = math.ceil(max(0.0, -from_x, -from_y, to_x - width, to_y - height)) + reach
    window = (from_x + pad, from_y + pad, to_x + pad, to_y + pad)
    result = np.zeros((height, width, 4), np.float32)
    for channel in range(4):
        plane = Image.fromarray(np.pad(source[..., channel], pad))
        resized = plane.resize((right - left, bottom - top), Image.Resampling.BICUBIC, box=window)
        result[top:bottom, left:right, channel] = np.asarray(resized)
    return result


def _inner_colours(pixels: np.ndarray, mask: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Return the object's colours, extended outward from one pixel inside its edge; thin parts keep their own."""
    cv2 = require("cv2", "imagenet")
    square = np.ones((3, 3), np.uint8)
    core = cv2.erode(mask.astype(np.uint8), square, borderValue=1)
    thin = mask & (cv2.dilate(core, np.ones((5, 5), np.uint8)) == 0)
    known = (core.astype(bool) | thin).astype(np.float32)
    colours = pixels.astype(np.float32)
    total, weight = colours * known[..., None], known
    while not (weight[needed] > 0).all():
        total, weight = cv2.blur(total, (3, 3)), cv2.blur(weight, (3, 3))
        # A pixel keeps the first colour it gets, which comes from the nearest pixels inside.
        fresh = (weight > 1e-6) & (known == 0)
        colours[fresh] = total[fresh] / weight[fresh][:, None]
        known = np.where(weight > 1e-6, 1, 0).astype(np.float32)
        total, weight = colours * known[..., None], known
    return colours
