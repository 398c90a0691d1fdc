"""What rays see of a mesh: position, normal and albedo at each hit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localscale.lab.data.objects.casting import Body, Hits
from localscale.lab.data.objects.textures import sample_texture

__all__ = ["Surface", "look_at", "read_albedo"]


@dataclass(frozen=True, eq=False)
class Surface:
    """Points ``(P, 3)`` in the world, unit normals ``(P, 3)`` toward the viewer, and the cosine between ``(P,)``."""

    points: np.ndarray
    normals: np.ndarray
    facing: np.ndarray


def look_at(body: Body, hits: Hits, origin: np.ndarray, directions: np.ndarray) -> Surface:
    """The surface that rays from ``origin`` along ``directions`` ``(P, 3)``, one per hit, arrived at."""
    mesh = body.mesh
    smooth = mix(mesh.normals, mesh.faces, hits)
    flat = mesh.face_normals[hits.face]
    # On a crease, such as the edge of a box, the average of the faces' normals belongs to neither of them.
    trust = np.clip((dot(smooth, flat) - 0.6) / 0.25, 0, 1)[:, None]
    normals = body.to_world(flat + trust * (smooth - flat), points=False)
    normals *= np.where(dot(body.to_world(flat, points=False), directions) > 0, np.float32(-1), np.float32(1))[:, None]
    normals /= np.maximum(np.sqrt(dot(normals, normals)), np.float32(1e-12))[:, None]
    points = np.asarray(origin, dtype=np.float32) + hits.distance[:, None] * directions
    return Surface(points, normals, np.maximum(-dot(normals, directions), np.float32(0.05)))


def read_albedo(body: Body, hits: Hits, *, facing: np.ndarray, angle: float) -> np.ndarray:
    """The share of light that the surface sends back, per colour, ``(P, 3)``; a sample covers ``angle`` radians."""
    mesh = body.mesh
    albedo = np.empty((len(hits.face), 3), dtype=np.float32)
    if mesh.colours is not None:
        albedo[:] = mix(mesh.colours, mesh.faces, hits)
    else:
        albedo[:] = 1
    material_of = mesh.material_of[hits.face]
    for index, material in enumerate(mesh.materials):
        here = slice(None) if len(mesh.materials) == 1 else np.flatnonzero(material_of == index)
        albedo[here] *= np.array(material.colour, dtype=np.float32)
        if material.texture is None or mesh.uv is None or mesh.texel_density is None:
            continue
        part = Hits(hits.ray[here], hits.distance[here], hits.face[here], hits.weights[here])
        if not len(part.face):
            continue
        width = part.distance * np.float32(angle / body.placement.factor) / np.sqrt(facing[here])
        level = np.log2(np.maximum(width, 1e-12)) + mesh.texel_density[part.face]
        albedo[here] *= sample_texture(material.texture, mix(mesh.uv, mesh.faces, part), level)
    return albedo


def mix(values: np.ndarray, faces: np.ndarray, hits: Hits) -> np.ndarray:
    """Values at vertices, interpolated to where the faces were hit."""
    corners = faces[hits.face]
    weights = hits.weights
    return (
        values[corners[:, 0]] * weights[:, :1]
        + values[corners[:, 1]] * weights[:, 1:2]
        + values[corners[:, 2]] * weights[:, 2:]
    )


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row; written out, so that no library may sum in another order on another machine's threads."""
    return a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1] + a[:, 2] * b[:, 2]
