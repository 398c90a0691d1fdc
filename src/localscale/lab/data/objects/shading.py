"""From light to pixels: diffuse and glossy reflection, exposure and tone."""

from __future__ import annotations

import numpy as np

from localscale.lab.data.objects.casting import Body, Hits
from localscale.lab.data.objects.lighting import Environment, irradiance, luminance, reflection
from localscale.lab.data.objects.surfaces import Surface, dot, read_albedo

__all__ = ["choose_exposure", "reflect", "tone"]

DIELECTRIC = 0.04  # of the light that meets a non-metal straight on, the part reflected at the surface
SHOULDER = 0.5


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
    """Light from the surface to the viewer, ``(P, 3)``: albedo · E(n)/π and a blurred mirror image by Fresnel's law.

    ``lit`` ``(P, 3)`` is the share of light that arrives.
    """
    albedo = read_albedo(body, hits, facing=surface.facing, angle=angle)
    diffuse = albedo * irradiance(environment, surface.normals) * np.float32(1 / np.pi)
    mirrored = directions - 2 * dot(directions, surface.normals)[:, None] * surface.normals
    material_of = body.mesh.material_of[hits.face]
    gloss = np.empty_like(diffuse)
    for index, material in enumerate(body.mesh.materials):
        here = np.flatnonzero(material_of == index)
        edge = max(1 - material.roughness, DIELECTRIC) - DIELECTRIC  # rough surfaces brighten less at grazing angles
        fresnel = np.float32(DIELECTRIC) + np.float32(edge) * (1 - surface.facing[here]) ** 5
        gloss[here] = fresnel[:, None] * reflection(environment, mirrored[here], material.roughness)
    return (diffuse * np.float32(1 - DIELECTRIC) + gloss) * lit


def choose_exposure(environment: Environment, background: np.ndarray, forward: np.ndarray) -> float:
    """A factor for a scene, the same for all its members: between what suits the view and what suits its objects.

    ``background`` is the view's radiance ``(…, 3)``, ``forward`` where the camera looks.
    """
    normals = np.stack(([0.0, 0.0, 1.0], -forward)).astype(np.float32)
    surface = 0.4 * float(luminance(irradiance(environment, normals)).mean()) / np.pi
    view = float(np.exp(np.log(luminance(background).astype(np.float64) + 1e-6).mean()))
    for_objects, for_view = 0.25 / max(surface, 1e-9), 0.24 / max(view, 1e-9)
    # A black curtain behind them must not burn the objects out, nor a bright window drown them.
    return float(np.clip(for_objects**0.65 * for_view**0.35, 0.6 * for_objects, 1.4 * for_objects))


def tone(light: np.ndarray) -> np.ndarray:
    """Exposed light in [0, ∞) to [0, 1): as it is up to a shoulder, then rolled off smoothly.

    >>> tone(np.array([0.25, 0.5, 50.0])).round(3).tolist()
    [0.25, 0.5, 1.0]
    """
    over = np.maximum(light - SHOULDER, 0)
    return np.minimum(light, SHOULDER) + (1 - SHOULDER) * (1 - np.exp(over * (-1 / (1 - SHOULDER))))
