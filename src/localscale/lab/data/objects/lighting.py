"""Light from a panorama: irradiance by spherical harmonics, blurred copies for gloss, directed lights for shadows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localscale.extras import require
from localscale.lab.data.objects.panoramas import Panorama, directions_of, sample_panorama

__all__ = ["Environment", "irradiance", "light_environment", "luminance", "reflection"]

LIGHTS = 64
ROUGHNESS = (0.2, 0.35, 0.5, 0.7, 1.0)
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


@dataclass(frozen=True, eq=False)
class Environment:
    """A panorama with everything that shading needs.

    ``coefficients`` ``(9, 3)`` are the irradiance's spherical harmonics and ``blurred`` are copies for ``ROUGHNESS``.
    Each light represents a patch of the panorama: ``lights`` ``(L, 3)`` are their directions, ``powers`` ``(L, 3)`` the
    light of each patch, ∫ L dω, and ``spans`` ``(L,)`` its solid angle.
    """

    panorama: Panorama
    coefficients: np.ndarray
    blurred: tuple[np.ndarray, ...]
    lights: np.ndarray
    powers: np.ndarray
    spans: np.ndarray


def light_environment(panorama: Panorama, *, lights: int = LIGHTS) -> Environment:
    """Prepare a panorama for shading."""
    directions, powers, spans = _place_lights(_shrink(panorama.radiance, 64), lights)
    return Environment(
        panorama=panorama,
        coefficients=_project(_shrink(panorama.radiance, 64)),
        blurred=_blur(_shrink(panorama.radiance, 24)),
        lights=directions.astype(np.float32),
        powers=powers.astype(np.float32),
        spans=spans.astype(np.float32),
    )


def luminance(colours: np.ndarray) -> np.ndarray:
    """Return the luminance of linear colours ``(..., 3)``."""
    return colours[..., 0] * LUMINANCE[0] + colours[..., 1] * LUMINANCE[1] + colours[..., 2] * LUMINANCE[2]


def irradiance(environment: Environment, normals: np.ndarray) -> np.ndarray:
    """Return E(n) = ∫ L(ω) max(0, n·ω) dω for unit ``normals`` ``(P, 3)``, by spherical harmonics up to order 2.

    Order 2 represents the cosine lobe to within a few percent. A small bright sun causes ringing, so values are at
    least a twentieth of the mean and never negative.
    """
    mean = environment.coefficients[0] * _BASIS_0
    values = np.zeros((len(normals), 3), dtype=np.float32)
    for basis, coefficient in zip(_harmonics(normals), environment.coefficients, strict=True):
        values += np.multiply.outer(basis, coefficient).astype(np.float32)
    return np.maximum(values, (0.05 * mean).astype(np.float32))


def reflection(environment: Environment, directions: np.ndarray, roughness: float) -> np.ndarray:
    """Return the panorama along ``directions`` ``(P, 3)``, blurred as by a surface of this roughness."""
    position = float(np.interp(roughness, ROUGHNESS, np.arange(len(ROUGHNESS))))
    lower = int(position)
    share = np.float32(position - lower)
    sharp = sample_panorama(environment.blurred[lower], directions)
    if share == 0:
        return sharp
    return sharp + share * (sample_panorama(environment.blurred[lower + 1], directions) - sharp)


_BASIS_0 = 0.28209479177387814


def _harmonics(n: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the nine real spherical harmonics up to order 2 at unit vectors ``(..., 3)``."""
    x, y, z = n[..., 0], n[..., 1], n[..., 2]
    return (
        np.full_like(x, _BASIS_0),
        0.4886025119029199 * y,
        0.4886025119029199 * z,
        0.4886025119029199 * x,
        1.0925484305920792 * x * y,
        1.0925484305920792 * y * z,
        0.31539156525252005 * (3 * z * z - 1),
        1.0925484305920792 * x * z,
        0.5462742152960396 * (x * x - y * y),
    )


def _project(radiance: np.ndarray) -> np.ndarray:
    """Return the irradiance's coefficients ``(9, 3)``: the radiance's times the cosine lobe's, order by order."""
    looks, solid_angle = directions_of(*radiance.shape[:2])
    weighted = radiance * solid_angle[:, None, None]
    lobe = (np.pi, *[2 * np.pi / 3] * 3, *[np.pi / 4] * 5)
    return np.stack(
        [
            factor * (weighted * basis[..., None]).sum((0, 1))
            for factor, basis in zip(lobe, _harmonics(looks), strict=True)
        ]
    )


def _shrink(radiance: np.ndarray, height: int) -> np.ndarray:
    """Shrink a panorama without changing its total light: rows are weighted by their solid angle."""
    if radiance.shape[0] <= height:
        return radiance.astype(np.float64)
    cv2 = require("cv2", "objects")
    rows = np.sin(np.pi * (np.arange(radiance.shape[0]) + 0.5) / radiance.shape[0]).astype(np.float32)[:, None, None]
    size = (2 * height, height)
    light = cv2.resize(radiance * rows, size, interpolation=cv2.INTER_AREA).astype(np.float64)
    return light / cv2.resize(rows, (1, height), interpolation=cv2.INTER_AREA).reshape(-1, 1, 1)


def _blur(radiance: np.ndarray) -> tuple[np.ndarray, ...]:
    """Convolve the panorama with lobes cosⁿ, where n depends on the roughness."""
    looks, solid_angle = directions_of(*radiance.shape[:2])
    looks = looks.reshape(-1, 3)
    weights = np.repeat(solid_angle, radiance.shape[1])
    light = radiance.reshape(-1, 3) * weights[:, None]
    cosine = sum(np.multiply.outer(looks[:, axis], looks[:, axis]) for axis in range(3))
    logarithm = np.log(np.maximum(cosine, 1e-6)).astype(np.float32)
    copies = []
    for roughness in ROUGHNESS:
        power = max(0.5, (2 / roughness**4 - 2) / 4)
        lobe = np.where(cosine > 0, np.exp(power * logarithm), 0)
        total = np.einsum("pq,qc->pc", lobe, light) / np.einsum("pq,q->p", lobe, weights)[:, None]
        copies.append(total.reshape(radiance.shape).astype(np.float32))
    return tuple(copies)


def _place_lights(radiance: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide the panorama into ``count`` patches of similar importance and represent each by one light.

    The patch with the largest product of light and extent is split where its light halves. So a sun gets few lights,
    however bright it is, and a wide sky gets many. The powers add up to the light of the whole panorama.
    """
    looks, solid_angle = directions_of(*radiance.shape[:2])
    light = radiance * solid_angle[:, None, None]
    power = luminance(light)
    patches = [(0, radiance.shape[0], 0, radiance.shape[1])]
    while len(patches) < count:
        scores = [_importance(power, solid_angle, patch) for patch in patches]
        best = int(np.argmax(scores))
        if scores[best] <= 0:
            break
        patches[best : best + 1] = _halve(power, solid_angle, patches[best])
    directions, powers, spans = [], [], []
    for top, bottom, left, right in patches:
        part = power[top:bottom, left:right, None] + 1e-12
        centre = (looks[top:bottom, left:right] * part).sum((0, 1))
        directions.append(centre / np.linalg.norm(centre))
        powers.append(light[top:bottom, left:right].sum((0, 1)))
        spans.append(solid_angle[top:bottom].sum() * (right - left))
    return np.array(directions), np.array(powers), np.array(spans)


def _sides(solid_angle: np.ndarray, patch: tuple[int, int, int, int]) -> tuple[float, float]:
    """Return the height and the width of a patch, in texels at the equator."""
    top, bottom, left, right = patch
    ring = float(solid_angle[top:bottom].mean() / solid_angle.max())
    return bottom - top, (right - left) * ring


def _importance(power: np.ndarray, solid_angle: np.ndarray, patch: tuple[int, int, int, int]) -> float:
    top, bottom, left, right = patch
    if bottom - top == 1 and right - left == 1:
        return 0.0
    return float(power[top:bottom, left:right].sum() + 1e-9) * max(_sides(solid_angle, patch))


def _halve(
    power: np.ndarray, solid_angle: np.ndarray, patch: tuple[int, int, int, int]
) -> list[tuple[int, int, int, int]]:
    top, bottom, left, right = patch
    height, width = _sides(solid_angle, patch)
    down = (height >= width and bottom - top > 1) or right - left == 1
    profile = power[top:bottom, left:right].sum(axis=1 if down else 0)
    running = np.cumsum(profile)
    cut = 1 + int(np.searchsorted(running[:-1], running[-1] / 2))
    cut = min(max(cut, 1), len(profile) - 1)
    if down:
        return [(top, top + cut, left, right), (top + cut, bottom, left, right)]
    return [(top, bottom, left, left + cut), (top, bottom, left + cut, right)]
