"""Shadows: the fraction of the panorama's light that reaches points on the ground and on the objects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localscale.extras import require
from localscale.lab.data.objects.cameras import Camera, rays
from localscale.lab.data.objects.casting import Body, is_blocked
from localscale.lab.data.objects.lighting import Environment

__all__ = ["fill_in", "shade_ground", "share_of_light"]

BOUNCE = 0.15  # fraction of the blocked light that arrives anyway, after reflections
AMBIENT = 0.4  # fraction of the ground's light that comes evenly from all sides, reflected by nearby surfaces
DENSITY = 1.4  # exponent that darkens shadows a little, because objects with faint shadows seem to float
FAINT = 0.03  # fainter shadows are dropped: lights near the horizon would darken all the ground a little
GROUND_STEP = 4  # distance, in pixels, between the ground points that are traced
EDGE = 0.06  # difference in shade between neighbours above which every pixel is traced


def share_of_light(
    bodies: Sequence[Body], environment: Environment, points: np.ndarray, normals: np.ndarray
) -> np.ndarray:
    """Return the fraction of the irradiance at ``points`` ``(P, 3)`` that the bodies let through, per colour.

    Light from below is reflected by the ground. Close to an object the ground is in its shadow, so light from below is
    reduced the more, the nearer a point is to the ground.
    """
    lights, powers = environment.lights, environment.powers
    cosine = sum(np.multiply.outer(normals[:, axis], lights[:, axis]) for axis in range(3))
    wanted = cosine > 0
    size = np.float32(np.mean([body.placement.radius for body in bodies]))
    blocked = is_blocked(bodies, points + normals * (0.02 * size), lights, wanted)
    lost = np.where(blocked, np.float32(1 - BOUNCE), np.float32(0))
    below = np.flatnonzero(lights[:, 2] < 0)
    reach = np.maximum(points[:, 2:], 0) / -lights[below, 2] / size
    lost[:, below] = np.maximum(lost[:, below], np.float32(1 - BOUNCE) * np.exp(-2 * reach))
    cosine = np.where(wanted, cosine, np.float32(0))
    held = np.einsum("pl,lc->pc", cosine * lost, powers)
    return 1 - held / np.maximum(np.einsum("pl,lc->pc", cosine, powers), np.float32(1e-12))


def shade_ground(bodies: Sequence[Body], environment: Environment, camera: Camera, size: int) -> np.ndarray:
    """Return the factor for each pixel of the ground, ``(size, size, 3)``: exactly 1 where no object blocks light.

    The factor is traced on a lattice of pixels and interpolated. Around the edges of shadows every pixel is traced.
    """
    cv2 = require("cv2", "objects")
    count = -(-size // GROUND_STEP)
    ticks = (np.arange(count) + 0.5) * (size / count)
    coarse = _shade_points(bodies, environment, camera, ticks, np.arange(count * count), size)
    coarse = coarse.reshape(count, count, 3)
    square = np.ones((3, 3), dtype=np.uint8)
    contrast = (cv2.dilate(coarse, square) - cv2.erode(coarse, square)).max(axis=2)
    edge = cv2.resize((contrast > EDGE).astype(np.uint8), (size, size), interpolation=cv2.INTER_NEAREST)
    shade = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_LINEAR).reshape(-1, 3)
    fine = np.flatnonzero(edge)
    shade[fine] = _shade_points(bodies, environment, camera, np.arange(size) + 0.5, fine, size)
    # One ray per pixel gives jagged edges of a sun's shadow, so only these pixels are blurred.
    shade[fine] = cv2.blur(shade.reshape(size, size, 3), (3, 3)).reshape(-1, 3)[fine]
    return shade.reshape(size, size, 3)


def _shade_points(
    bodies: Sequence[Body], environment: Environment, camera: Camera, ticks: np.ndarray, which: np.ndarray, size: int
) -> np.ndarray:
    """Return the shade at the ground points behind the lattice points ``which``, counted row by row."""
    rows, columns = np.divmod(which, len(ticks))
    directions = rays(camera, np.stack((ticks[columns], ticks[rows]), axis=1), size)
    ground = np.flatnonzero(directions[:, 2] < -1e-3)
    points = (
        camera.position.astype(np.float32) - directions[ground] * np.float32(camera.height) / directions[ground, 2:]
    )
    upper = environment.lights[:, 2] > 0
    lights, powers, spans = environment.lights[upper], environment.powers[upper], environment.spans[upper]
    direct, even = lights[:, 2:] * powers, lights[:, 2:] * spans[:, None]
    weights = (1 - AMBIENT) * direct / direct.sum(axis=0) + AMBIENT * even / even.sum(axis=0)
    blocked = is_blocked(bodies, points, lights, np.ones((len(points), len(lights)), dtype=bool))
    touched = np.flatnonzero(blocked.any(axis=1))
    held = np.einsum("pl,lc->pc", blocked[touched].astype(np.float32), weights) * np.float32(1 - BOUNCE)
    shade = np.ones((len(which), 3), dtype=np.float32)
    held = np.maximum(held - FAINT, 0) / np.float32(1 - FAINT)
    shade[ground[touched]] = (1 - held) ** DENSITY
    return shade


def fill_in(
    lattice: np.ndarray, values: np.ndarray, rows: np.ndarray, columns: np.ndarray, traits: np.ndarray, step: int
) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate ``values`` ``(Q, 3)``, known on every ``step``-th pixel, between pixels with similar surfaces.

    ``lattice`` ``(h, w)`` holds the index of each lattice pixel's value, or −1. ``traits`` ``(P, T)`` describe the
    surface at ``rows``, ``columns``; the first Q of them belong to the values. Return interpolated values and whether
    each has a sufficiently similar neighbour.
    """
    y, x = rows / step, columns / step
    top, left = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    total = np.zeros((len(rows), 1), dtype=np.float32)
    mixed = np.zeros((len(rows), 3), dtype=np.float32)
    for down in (0, 1):
        for right in (0, 1):
            row, column = np.minimum(top + down, lattice.shape[0] - 1), np.minimum(left + right, lattice.shape[1] - 1)
            index = lattice[row, column]
            near = (1 - np.abs(y - top - down)) * (1 - np.abs(x - left - right)) + 1e-3
            apart = traits - traits[index]
            alike = np.exp(-(apart * apart).sum(axis=1)) * (index >= 0)
            weight = (near * alike).astype(np.float32)[:, None]
            total += weight
            mixed += weight * values[index]
    return mixed / np.maximum(total, 1e-12), total[:, 0] > 0.15
