"""Cutting an object out, filling its place, and putting it back larger or smaller.

The object keeps its own centre (its box's). Outside the filled hole and the pasted object with its soft edge, every
pixel is the original's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from localscale.extras import require
from localscale.lab.data.boxes import Box, bounding_box
from localscale.lab.data.generation.job import Skip

__all__ = ["Cutout", "check_mask", "composite", "cut_out", "hole_around", "soften_rim"]

LEAST, MOST = 0.02, 0.70  # of the image's area
OPAQUE = 0.5  # an object's pixel has at least this much alpha


@dataclass(frozen=True)
class Cutout:
    """An object alone: ``alpha`` and colours times alpha, ``(H, W, 4)`` float32, and its box."""

    layer: np.ndarray
    box: Box


def check_mask(mask: np.ndarray, scales: tuple[float, ...]) -> Skip | None:
    """Why an object cannot be used, or None."""
    share = float(mask.mean())
    if share == 0:
        return Skip("the mask is empty")
    if share < LEAST:
        return Skip(f"the object covers less than {LEAST:.0%} of the image", {"mask_area": round(share, 6)})
    if share > MOST:
        return Skip(f"the object covers more than {MOST:.0%} of the image", {"mask_area": round(share, 6)})
    height, width = mask.shape
    box = bounding_box(mask)
    largest = max(scales)
    grown = box.scaled(max(largest, 1.0))
    outside = grown.left < 0 or grown.top < 0 or grown.right > width or grown.bottom > height
    if largest > 1 and outside:
        return Skip(f"the object would leave the frame at scale {largest:g}", {"mask_box": list(box.edges)})
    if min(scales) < 1 and (box.left <= 0 or box.top <= 0 or box.right >= width or box.bottom >= height):
        return Skip("the object touches the frame and may be cut by it", {"mask_box": list(box.edges)})
    return None


def hole_around(mask: np.ndarray, margin: float) -> np.ndarray:
    """The object and ``margin`` (a fraction of the shorter side, at least 3 pixels) around it: where it may have left
    a trace."""
    cv2 = require("cv2", "imagenet")
    radius = max(3, round(margin * min(mask.shape)))
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    return cv2.dilate(mask.astype(np.uint8), kernel, borderValue=0).astype(bool)


def soften_rim(pixels: np.ndarray, filled: np.ndarray, hole: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The filled image with the hole's rim blended into the original over the half of the margin away from the object.

    That rim is true background, so there is no need for a seam.
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
    """The object with a soft edge ``feather`` pixels wide, centred on the mask's.

    A pixel at the edge shows a mixture of object and background. Its colour is taken from the object's inside, nearby,
    so that none of the old background comes along.
    """
    cv2 = require("cv2", "imagenet")
    alpha = mask.astype(np.float32)
    if feather > 0:
        alpha = cv2.GaussianBlur(alpha, (0, 0), feather / 2, borderType=cv2.BORDER_REPLICATE)
        alpha = np.clip((alpha - 0.02) / 0.96, 0, 1)
    colours = _inner_colours(pixels, mask, alpha > 0)
    return Cutout(np.dstack([colours * alpha[..., None], alpha]), bounding_box(mask))


def composite(background: np.ndarray, cutout: Cutout, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The object at ``scale`` before the filled background: an image ``(H, W, 3)`` and the object's mask ``(H, W)``."""
    height, width = background.shape[:2]
    layer = _rescale(cutout, scale, width, height)
    layer = layer / np.maximum(layer[..., 3:], 1)  # a cubic filter overshoots, in colour as in alpha
    alpha = np.where(layer[..., 3:] < 1 / 512, 0, layer[..., 3:])
    colours = np.clip(layer[..., :3], 0, 255 * alpha)
    mixed = colours + (1 - alpha) * background
    image = np.where(alpha > 0, np.clip(mixed + 0.5, 0, 255).astype(np.uint8), background)
    return image, alpha[..., 0] >= OPAQUE


def _rescale(cutout: Cutout, scale: float, width: int, height: int) -> np.ndarray:
    """The layer resized about the box's centre, anti-aliased, on the whole image's grid.

    Output pixel edge u shows input position c + (u − c) / scale; the input is a window of the layer with empty space
    around it, so that a filter never looks past its end.
    """
    (x, y), source = cutout.box.centre, cutout.layer
    reach = math.ceil(3 * max(1.0, scale, 1 / scale))  # of the filter
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
    """The object's colours, carried outward from one pixel inside its edge; thin parts keep their own."""
    cv2 = require("cv2", "imagenet")
    square = np.ones((3, 3), np.uint8)
    core = cv2.erode(mask.astype(np.uint8), square, borderValue=1)
    thin = mask & (cv2.dilate(core, np.ones((5, 5), np.uint8)) == 0)
    known = (core.astype(bool) | thin).astype(np.float32)
    colours = pixels.astype(np.float32)
    total, weight = colours * known[..., None], known
    while not (weight[needed] > 0).all():
        total, weight = cv2.blur(total, (3, 3)), cv2.blur(weight, (3, 3))
        # Once a pixel has a colour it keeps it, so the nearest inside colours count.
        fresh = (weight > 1e-6) & (known == 0)
        colours[fresh] = total[fresh] / weight[fresh][:, None]
        known = np.where(weight > 1e-6, 1, 0).astype(np.float32)
        total, weight = colours * known[..., None], known
    return colours
