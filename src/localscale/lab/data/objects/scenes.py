"""Scenes: a camera, a panorama, and objects that stand on an invisible ground, each at its own distance.

The members of a group differ in the distances only; camera, panorama, objects, yaw and bearing are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from localscale.lab.data.objects.cameras import Camera

__all__ = ["Extent", "Placement", "Scene", "footprints_meet", "place", "size_factor"]

Extent = tuple[float, float, float]
TYPICAL_SIZE = 0.25  # metres


@dataclass(frozen=True)
class Placement:
    """An object and its position.

    ``yaw`` and ``bearing`` are in degrees, counter-clockwise; the bearing is relative to the camera's heading.
    ``distance`` is the distance from the camera to the object's centre, in metres. ``extent`` are the sides of the
    mesh's bounding box, and ``factor`` multiplies them. ``position`` is the centre of the footprint on the ground.
    """

    name: str
    yaw: float
    bearing: float
    distance: float
    factor: float
    extent: Extent
    position: tuple[float, float]

    @property
    def centre(self) -> np.ndarray:
        """The centre of the bounding box, ``(3,)``."""
        return np.array([*self.position, self.extent[2] * self.factor / 2])

    @property
    def radius(self) -> float:
        """Half the diagonal of the bounding box."""
        return math.sqrt(sum(side * side for side in self.extent)) * self.factor / 2

    def corners(self) -> np.ndarray:
        """Return the four corners of the footprint, in order, ``(4, 2)``."""
        half = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * (np.array(self.extent[:2]) * self.factor / 2)
        cosine, sine = math.cos(math.radians(self.yaw)), math.sin(math.radians(self.yaw))
        turned = (half[:, 0] * cosine - half[:, 1] * sine, half[:, 0] * sine + half[:, 1] * cosine)
        return np.stack(turned, axis=1) + np.array(self.position)

    def box(self) -> np.ndarray:
        """Return the eight corners of the bounding box, ``(8, 3)``."""
        corners = self.corners()
        top = self.extent[2] * self.factor
        return np.concatenate([np.column_stack((corners, np.full(4, z))) for z in (0.0, top)])


@dataclass(frozen=True)
class Scene:
    """Everything that a renderer needs; the same scene gives the same pixels."""

    camera: Camera
    panorama: str
    objects: tuple[Placement, ...]


def size_factor(extent: Extent, *, typical: float = TYPICAL_SIZE) -> float:
    """Return the factor that makes an object's longest side the geometric mean of itself and ``typical`` metres.

    The result is limited to between a third and three times ``typical``, so that a mesh in millimetres and one in
    metres fit into one scene.

    >>> size_factor((0.5, 0.1, 0.1)) * 0.5 == math.sqrt(0.5 * 0.25)
    True
    >>> size_factor((250.0, 100.0, 100.0)) * 250
    0.75
    """
    side = max(extent)
    return min(max(math.sqrt(typical * side), typical / 3), typical * 3) / side


def place(
    camera: Camera,
    name: str,
    extent: Extent,
    *,
    yaw: float,
    bearing: float,
    distance: float,
) -> Placement | None:
    """Place an object on the ground at ``distance`` from the camera; return None if the ground is farther away."""
    factor = size_factor(extent)
    drop = camera.height - extent[2] * factor / 2
    if distance <= abs(drop):
        return None
    along = math.sqrt(distance * distance - drop * drop)
    angle = math.radians(camera.heading + bearing)
    position = (along * math.cos(angle), along * math.sin(angle))
    return Placement(name, yaw, bearing, distance, factor, extent, position)


def footprints_meet(a: Placement, b: Placement, *, margin: float = 0.01) -> bool:
    """Return whether the footprints of two objects come closer than ``margin``, by the separating axis theorem.

    >>> camera = Camera(height=0.5, pitch=-20.0, heading=0.0, field_of_view=50.0)
    >>> near, far = (place(camera, "box", (0.25,) * 3, yaw=0, bearing=0, distance=d) for d in (1.0, 1.5))
    >>> footprints_meet(near, far), footprints_meet(near, near)
    (False, True)
    """
    for first, second in ((a, b), (b, a)):
        corners = first.corners()
        for edge in (corners[1] - corners[0], corners[2] - corners[1]):
            axis = edge / np.hypot(*edge)
            own, other = (shape[:, 0] * axis[0] + shape[:, 1] * axis[1] for shape in (corners, second.corners()))
            if own.max() + margin < other.min() or other.max() + margin < own.min():
                return False
    return True
