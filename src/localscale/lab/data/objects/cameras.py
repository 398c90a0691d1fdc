"""A pinhole camera above the ground.

Convention: the camera stands at (0, 0, height), z up; ``heading`` turns counter-clockwise from +x, ``pitch`` is
negative below the horizon; ``field_of_view`` is the full angle across the square image. Image coordinates (x, y) run
from (0, 0) at the upper left corner to (size, size), so pixel (row i, column j) has its centre at (j + ½, i + ½).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["Camera", "project", "rays", "stratified"]


@dataclass(frozen=True)
class Camera:
    """A camera's height in metres and its angles in degrees.

    >>> Camera(height=0.5, pitch=-90.0, heading=0.0, field_of_view=50.0).axes()[0].round(6).tolist()
    [0.0, 0.0, -1.0]
    """

    height: float
    pitch: float
    heading: float
    field_of_view: float

    @property
    def position(self) -> np.ndarray:
        """The camera's position, ``(3,)``."""
        return np.array([0.0, 0.0, self.height])

    def axes(self) -> np.ndarray:
        """Return the unit vectors forward, right and up, as rows."""
        pitch, heading = math.radians(self.pitch), math.radians(self.heading)
        forward = [math.cos(pitch) * math.cos(heading), math.cos(pitch) * math.sin(heading), math.sin(pitch)]
        right = [math.sin(heading), -math.cos(heading), 0.0]
        return np.array([forward, right, np.cross(right, forward)])


def rays(camera: Camera, points: np.ndarray, size: int) -> np.ndarray:
    """Return the unit directions, float32, through the points ``(P, 2)`` of an image with ``size`` pixels a side."""
    forward, right, up = camera.axes()
    spread = math.tan(math.radians(camera.field_of_view) / 2)
    across = ((2 * points[:, 0] / size - 1) * spread)[:, None]
    down = ((2 * points[:, 1] / size - 1) * spread)[:, None]
    directions = forward + across * right - down * up
    return (directions / np.sqrt(1 + across**2 + down**2)).astype(np.float32)


def project(camera: Camera, points: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the image positions ``(P, 2)`` of ``points`` ``(P, 3)``, and their depths, ≤ 0 behind the camera.

    >>> camera = Camera(height=1.0, pitch=0.0, heading=0.0, field_of_view=90.0)
    >>> positions, depth = project(camera, np.array([[2.0, 0.0, 1.0], [2.0, 1.0, 1.0]]), 100)
    >>> positions.round(6).tolist(), depth.tolist()
    ([[50.0, 50.0], [25.0, 50.0]], [2.0, 2.0])
    """
    forward, right, up = camera.axes()
    offset = points - camera.position
    depth, across, above = (
        offset[:, 0] * axis[0] + offset[:, 1] * axis[1] + offset[:, 2] * axis[2] for axis in (forward, right, up)
    )
    spread = math.tan(math.radians(camera.field_of_view) / 2) * np.maximum(depth, 1e-9)
    return np.stack((1 + across / spread, 1 - above / spread), axis=1) * (size / 2), depth


def stratified(samples: int) -> np.ndarray:
    """Return points in a pixel's unit square, one in each row and each column of a samples × samples lattice.

    Every pixel uses the same points. Four samples also have one point in each quarter of the pixel.

    >>> stratified(4).tolist()
    [[0.125, 0.125], [0.375, 0.625], [0.625, 0.375], [0.875, 0.875]]
    """
    bits = max(1, (samples - 1).bit_length())
    mirrored = [int(format(k, f"0{bits}b")[::-1], 2) for k in range(samples)]
    rank = np.argsort(np.argsort(mirrored))
    return np.stack(((np.arange(samples) + 0.5) / samples, (rank + 0.5) / samples), axis=1)
