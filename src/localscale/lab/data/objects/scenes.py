"""Scenes: a camera, a panorama, and objects that stand on an invisible ground at their own distances.

The members of a group are the same scene with other distances; camera, background, objects, yaw and bearing stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from localscale.lab.data.objects.cameras import Camera

__all__ = ["Placement", "Scene", "footprints_meet", "place", "size_factor"]

TYPICAL_SIZE = 0.25


@dataclass(frozen=True)
class Placement:
    """One object: what it is, and how it stands.

    ``bearing`` and ``yaw`` are degrees counter-clockwise, the bearing from the camera's heading; ``distance`` is that
    from the camera to the object's centre, in metres; ``factor`` multiplies the mesh's own size; ``extent`` is the
    mesh's own bounding box and ``position`` where it stands.
    """

    name: str
    yaw: float
    bearing: float
    distance: float
    factor: float
    extent: tuple[float, float, float]
    position: tuple[float, float]

    @property
    def centre(self) -> np.ndarray:
        """The middle of its bounding box, ``(3,)``."""
        return np.array([*self.position, self.extent[2] * self.factor / 2])

    @property
    def radius(self) -> float:
        """Half the diagonal of its bounding box."""
        return math.sqrt(sum(side * side for side in self.extent)) * self.factor / 2

    def corners(self) -> np.ndarray:
        """The four corners of its footprint's rectangle, in order, ``(4, 2)``."""
        half = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * (np.array(self.extent[:2]) * self.factor / 2)
        cosine, sine = math.cos(math.radians(self.yaw)), math.sin(math.radians(self.yaw))
        turned = (half[:, 0] * cosine - half[:, 1] * sine, half[:, 0] * sine + half[:, 1] * cosine)
        return np.stack(turned, axis=1) + np.array(self.position)

    def box(self) -> np.ndarray:
        """The eight corners of its bounding box, ``(8, 3)``."""
        corners = self.corners()
        top = self.extent[2] * self.factor
        return np.concatenate([np.column_stack((corners, np.full(4, z))) for z in (0.0, top)])


@dataclass(frozen=True)
class Scene:
    """What is to be seen: the same scene gives the same pixels."""

    camera: Camera
    panorama: str
    objects: tuple[Placement, ...]


def size_factor(extent: tuple[float, float, float], *, typical: float = TYPICAL_SIZE) -> float:
    """What an object's size is multiplied by, so that its longest side goes halfway, in octaves, to ``typical`` metres.

    It ends between a third and three times that, so that a mesh in millimetres can still stand beside one in metres.

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
    extent: tuple[float, float, float],
    *,
    yaw: float,
    bearing: float,
    distance: float,
) -> Placement | None:
    """An object on the ground whose centre is ``distance`` from the camera; None where that would be underneath it."""
    factor = size_factor(extent)
    drop = camera.height - extent[2] * factor / 2
    if distance <= abs(drop):
        return None
    along = math.sqrt(distance * distance - drop * drop)
    angle = math.radians(camera.heading + bearing)
    position = (along * math.cos(angle), along * math.sin(angle))
    return Placement(name, yaw, bearing, distance, factor, extent, position)


def footprints_meet(a: Placement, b: Placement, *, margin: float = 0.01) -> bool:
    """Whether the rectangles that two objects stand on come closer than ``margin`` along every separating axis.

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
