"""Shading: surfaces at hits, diffuse and glossy reflection, exposure and tone mapping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localscale.lab.data.objects.casting import Body, Hits
from localscale.lab.data.objects.lighting import Environment, irradiance, luminance, reflection
from localscale.lab.data.objects.textures import sample_texture

__all__ = ["Surface", "choose_exposure", "find_surface", "reflect", "tone"]

DIELECTRIC = 0.04  # reflectance of a non-metal at normal incidence
SHOULDER = 0.5  # ``tone`` compresses light above this value


@dataclass(frozen=True, eq=False)
class Surface:
    """World points ``(P, 3)``, unit normals ``(P, 3)`` that face the viewer, and ``facing`` ``(P,)``.

    ``facing`` is the cosine of the angle between the normal and the direction to the viewer, at least 0.05.
    """

    points: np.ndarray
    normals: np.ndarray
    facing: np.ndarray


def find_surface(body: Body, hits: Hits, origin: np.ndarray, directions: np.ndarray) -> Surface:
    """Return the surface at the hits of rays from ``origin`` along ``directions`` ``(P, 3)``, one per hit."""
    mesh = body.mesh
    smooth = _interpolate(mesh.normals, mesh.faces, hits)
    flat = mesh.face_normals[hits.face]
    # At a sharp edge, such as a box's, the averaged normal is wrong for both faces, so the face's own normal is used.
    trust = np.clip((_dot(smooth, flat) - 0.6) / 0.25, 0, 1)[:, None]
    normals = body.to_world(flat + trust * (smooth - flat), points=False)
    normals *= np.where(_dot(body.to_world(flat, points=False), directions) > 0, np.float32(-1), np.float32(1))[:, None]
    normals /= np.maximum(np.sqrt(_dot(normals, normals)), np.float32(1e-12))[:, None]
    points = np.asarray(origin, dtype=np.float32) + hits.distance[:, None] * directions
    return Surface(points, normals, np.maximum(-_dot(normals, directions), np.float32(0.05)))


def _read_albedo(body: Body, hits: Hits, *, facing: np.ndarray, angle: float) -> np.ndarray:
    """Return the albedo per colour, ``(P, 3)``; ``angle`` is the width of a sample in radians."""
    mesh = body.mesh
    albedo = np.empty((len(hits.face), 3), dtype=np.float32)
    if mesh.colours is not None:
        albedo[:] = _interpolate(mesh.colours, mesh.faces, hits)
    else:
        albedo[:] = 1
    material_of = mesh.material_of[hits.face]
    for index, material in enumerate(mesh.materials):
        here = slice(None) if len(mesh.materials) == 1 else np.flatnonzero(material_of == index)
        albedo[here] *= np.array(material.colour, dtype=np.float32)
        if material.texture is None or mesh.uv is None or mesh.texel_density is None:
            continue
        part = hits.select(here)
        if not len(part.face):
            continue
        width = part.distance * np.float32(angle / body.placement.factor) / np.sqrt(facing[here])
        level = np.log2(np.maximum(width, 1e-12)) + mesh.texel_density[part.face]
        albedo[here] *= sample_texture(material.texture, _interpolate(mesh.uv, mesh.faces, part), level)
    return albedo


def reflect(
    body: Body,
    hits: Hits,
    surface: Surface,
    directions: np.ndarray,
    environment: Environment,
    *,
    lit: np.ndarray,
    angle: float,
) -> np.ndarray:
    """Return the light from the surface to the viewer, ``(P, 3)``: albedo · E(n)/π plus Fresnel reflection.

    ``lit`` ``(P, 3)`` is the fraction of the light that reaches the surface. The reflected panorama is blurred by the
    material's roughness.
    """
    albedo = _read_albedo(body, hits, facing=surface.facing, angle=angle)
    diffuse = albedo * irradiance(environment, surface.normals) * np.float32(1 / np.pi)
    mirrored = directions - 2 * _dot(directions, surface.normals)[:, None] * surface.normals
    material_of = body.mesh.material_of[hits.face]
    gloss = np.empty_like(diffuse)
    for index, material in enumerate(body.mesh.materials):
        here = np.flatnonzero(material_of == index)
        edge = max(1 - material.roughness, DIELECTRIC) - DIELECTRIC  # rough surfaces brighten less at grazing angles
        fresnel = np.float32(DIELECTRIC) + np.float32(edge) * (1 - surface.facing[here]) ** 5
        gloss[here] = fresnel[:, None] * reflection(environment, mirrored[here], material.roughness)
    return (diffuse * np.float32(1 - DIELECTRIC) + gloss) * lit


def choose_exposure(environment: Environment, background: np.ndarray, forward: np.ndarray) -> float:
    """Return the exposure of a group: a compromise between the best one for the background and for the objects.

    ``background`` is the radiance ``(…, 3)`` of the background, ``forward`` the direction of the camera.
    """
    normals = np.stack(([0.0, 0.0, 1.0], -forward)).astype(np.float32)
    surface = 0.4 * float(luminance(irradiance(environment, normals)).mean()) / np.pi
    view = float(np.exp(np.log(luminance(background).astype(np.float64) + 1e-6).mean()))
    for_objects, for_view = 0.25 / max(surface, 1e-9), 0.24 / max(view, 1e-9)
    # A dark background must not overexpose the objects, and a bright one must not underexpose them.
    return float(np.clip(for_objects**0.65 * for_view**0.35, 0.6 * for_objects, 1.4 * for_objects))


def tone(light: np.ndarray) -> np.ndarray:
    """Map exposed light in [0, ∞) to [0, 1): unchanged up to ``SHOULDER``, then compressed smoothly.

    >>> tone(np.array([0.25, 0.5, 50.0])).round(3).tolist()
    [0.25, 0.5, 1.0]
    """
    over = np.maximum(light - SHOULDER, 0)
    return np.minimum(light, SHOULDER) + (1 - SHOULDER) * (1 - np.exp(over * (-1 / (1 - SHOULDER))))


def _interpolate(values: np.ndarray, faces: np.ndarray, hits: Hits) -> np.ndarray:
    """Interpolate values at vertices to the hits."""
    corners = faces[hits.face]
    weights = hits.weights
    return (
        values[corners[:, 0]] * weights[:, :1]
        + values[corners[:, 1]] * weights[:, 1:2]
        + values[corners[:, 2]] * weights[:, 2:]
    )


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return row-wise dot products, written out because a library's order of summation may depend on the machine."""
    return a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1] + a[:, 2] * b[:, 2]
