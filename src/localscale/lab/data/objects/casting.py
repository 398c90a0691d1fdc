"""Cast rays at placed meshes with Embree.

Each mesh has one Embree scene in its own coordinates. Rays are transformed into them, so that an object can be placed
anywhere without building its scene again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from localscale.extras import require
from localscale.lab.data.objects.meshes import Mesh
from localscale.lab.data.objects.scenes import Placement

__all__ = ["Body", "Hits", "build_tree", "cast", "is_blocked"]


@dataclass(frozen=True, eq=False)
class Body:
    """A placed mesh: its arrays, its Embree scene and its placement."""

    mesh: Mesh
    tree: Any
    placement: Placement

    def to_world(self, vectors: np.ndarray, *, points: bool) -> np.ndarray:
        """Rotate vectors ``(P, 3)`` from the mesh's frame into the world's; points are also scaled and moved."""
        cosine, sine = self._rotation()
        x, y, z = vectors[:, 0], vectors[:, 1], vectors[:, 2]
        turned = np.stack((cosine * x - sine * y, sine * x + cosine * y, z), axis=1)
        if not points:
            return turned
        moved = turned * np.float32(self.placement.factor)
        moved[:, 0] += np.float32(self.placement.position[0])
        moved[:, 1] += np.float32(self.placement.position[1])
        return moved

    def to_mesh(self, vectors: np.ndarray, *, points: bool) -> np.ndarray:
        """Apply the inverse of ``to_world``."""
        x, y, z = vectors[:, 0], vectors[:, 1], vectors[:, 2]
        if points:
            x, y = x - np.float32(self.placement.position[0]), y - np.float32(self.placement.position[1])
        cosine, sine = self._rotation()
        turned = np.stack((cosine * x + sine * y, cosine * y - sine * x, z), axis=1)
        return turned / np.float32(self.placement.factor) if points else turned

    def _rotation(self) -> tuple[np.float32, np.float32]:
        yaw = math.radians(self.placement.yaw)
        return np.float32(math.cos(yaw)), np.float32(math.sin(yaw))


@dataclass(frozen=True, eq=False)
class Hits:
    """The first hits of rays on one body, one row per hit.

    ``ray`` is the index of the ray, ``distance`` is in metres, ``face`` is the index of the face that was hit, and
    ``weights`` ``(P, 3)`` are the barycentric weights of its corners.
    """

    ray: np.ndarray
    distance: np.ndarray
    face: np.ndarray
    weights: np.ndarray

    def select(self, which: np.ndarray | slice) -> Hits:
        """Return the hits at these indices."""
        return Hits(self.ray[which], self.distance[which], self.face[which], self.weights[which])


def build_tree(mesh: Mesh) -> Any:
    """Build the Embree scene of one mesh."""
    rtcore_scene = require("embreex.rtcore_scene", "objects")
    construction = require("embreex.mesh_construction", "objects")
    tree = rtcore_scene.EmbreeScene(robust=True)
    construction.TriangleMesh(tree, np.ascontiguousarray(mesh.vertices), np.ascontiguousarray(mesh.faces))
    return tree


def cast(body: Body, origin: np.ndarray, directions: np.ndarray) -> Hits:
    """Return the first hits of rays from ``origin`` ``(3,)`` along unit ``directions`` ``(P, 3)``; rays may miss."""
    start = body.to_mesh(np.asarray(origin, dtype=np.float32)[None], points=True)
    origins = np.broadcast_to(start, directions.shape).copy()
    answer = body.tree.run(origins, np.ascontiguousarray(body.to_mesh(directions, points=False)), output=True)
    ray = np.flatnonzero(answer["primID"] >= 0)
    u, v = answer["u"][ray], answer["v"][ray]
    return Hits(
        ray=ray,
        distance=answer["tfar"][ray] * np.float32(body.placement.factor),
        face=answer["primID"][ray],
        weights=np.stack((1 - u - v, u, v), axis=1),
    )


def is_blocked(bodies: Sequence[Body], points: np.ndarray, lights: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return whether any body lies between ``points`` ``(P, 3)`` and distant lights in the directions ``(L, 3)``.

    ``wanted`` and the result are ``(P, L)``. Only the ``wanted`` pairs are traced; the result is False for the others.
    """
    blocked = np.zeros(wanted.shape, dtype=bool)
    for body in bodies:
        offset = body.placement.centre.astype(np.float32) - points
        along = sum(np.multiply.outer(offset[:, axis], lights[:, axis]) for axis in range(3))
        square = (offset * offset).sum(axis=1)[:, None]
        radius = np.float32(body.placement.radius)
        reach = (along > -radius) & (square - along * along < radius * radius)
        point, light = np.nonzero(wanted & reach & ~blocked)
        if not len(point):
            continue
        origins = body.to_mesh(points, points=True)[point]
        directions = body.to_mesh(lights, points=False)[light]
        blocked[point, light] = body.tree.run(origins, directions, query="OCCLUDED") == 0
    return blocked
