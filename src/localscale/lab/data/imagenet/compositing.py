"""Cut an object out of an image and paste it back at another scale.

The object is scaled about its anchor. That is the centre of its bounding box, or the side or corner of the frame that
the object touches, so that its cut edge stays at the frame. What leaves the frame is cut by it. An object that touches
two opposite sides is scaled about the middle between them, and what the photograph does not show of it is its mirror
image. Every pixel outside the filled hole and outside the pasted object with its soft edge equals the original's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from localscale.extras import require
from localscale.lab.data.boxes import bounding_box
from localscale.lab.data.imagenet.masks import Sides

__all__ = ["Cutout", "anchor_of", "composite", "cut_out", "soften_rim"]

OPAQUE = 0.5  # a pixel with at least this alpha belongs to the object's mask


@dataclass(frozen=True)
class Cutout:
    """An object without its background.

    ``layer`` ``(H, W, 4)`` float32 holds colour times alpha, then alpha. ``anchor`` is the point (x, y) that stays in
    place. ``sides`` are those of the frame at which the object goes on outside the image.
    """

    layer: np.ndarray
    anchor: tuple[float, float]
    sides: Sides


def anchor_of(mask: np.ndarray) -> tuple[float, float]:
    """Return the point (x, y) about which an object is scaled.

    Along an axis it is the side of the frame that the object touches, the middle of the frame if the object touches
    both sides, and the centre of the object's box if it touches neither.

    >>> mask = np.zeros((20, 30), bool)
    >>> mask[10:, 10:20] = True
    >>> anchor_of(mask)
    (15.0, 20.0)
    """
    box, sides, (height, width) = bounding_box(mask), Sides.of(mask), mask.shape
    found = []
    for first, last, centre, length in (
        (sides.left, sides.right, box.centre[0], width),
        (sides.top, sides.bottom, box.centre[1], height),
    ):
        found.append(centre if first == last else 0 if first else length)
    return float(found[0]), float(found[1])


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
    return Cutout(np.dstack([colours * alpha[..., None], alpha]), anchor_of(mask), Sides.of(mask))


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
    """Return the layer resized about the anchor with anti-aliasing, on the pixel grid of the whole image.

    Output coordinate u shows input coordinate a + (u − a) / scale. Outside the image the layer is its mirror image at
    the sides that the object touches, and empty at the others, so that the filter never reads past its end.
    """
    (x, y), sides, source = cutout.anchor, cutout.sides, cutout.layer
    reach = math.ceil(3 * max(1.0, scale, 1 / scale))  # of the bicubic filter, in pixels
    shown = bounding_box(source[..., 3] > 0)
    left, right, from_x, to_x = _span(x, scale, shown.left, shown.right, width, reach, sides.left and sides.right)
    top, bottom, from_y, to_y = _span(y, scale, shown.top, shown.bottom, height, reach, sides.top and sides.bottom)
    pad = math.ceil(max(0.0, -from_x, -from_y, to_x - width, to_y - height)) + reach
    window = (from_x + pad, from_y + pad, to_x + pad, to_y + pad)
    result = np.zeros((height, width, 4), np.float32)
    for channel in range(4):
        plane = Image.fromarray(_pad(source[..., channel], pad, sides))
        resized = plane.resize((right - left, bottom - top), Image.Resampling.BICUBIC, box=window)
        result[top:bottom, left:right, channel] = np.asarray(resized)
    return result


def _span(
    anchor: float, scale: float, low: float, high: float, length: int, reach: int, whole: bool
) -> tuple[int, int, float, float]:
    """Return the first and last output coordinate of the object along an axis, and the input coordinates they show."""
    first = 0 if whole else max(math.floor(anchor + (low - anchor) * scale) - reach, 0)
    last = length if whole else min(math.ceil(anchor + (high - anchor) * scale) + reach, length)
    return first, last, anchor + (first - anchor) / scale, anchor + (last - anchor) / scale


def _pad(plane: np.ndarray, pad: int, sides: Sides) -> np.ndarray:
    """Return the plane with ``pad`` more pixels at each side: its mirror image at ``sides``, zeros at the others."""
    mirrored = pad * np.array([[sides.top, sides.bottom], [sides.left, sides.right]])
    return np.pad(np.pad(plane, mirrored, mode="symmetric"), pad - mirrored)


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
