"""Renderers: draw scenes as images and masks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from localscale.lab.data.objects.cameras import Camera, project, rays, stratified
from localscale.lab.data.objects.casting import Body, Hits, build_tree, cast
from localscale.lab.data.objects.lighting import Environment, light_environment
from localscale.lab.data.objects.meshes import Mesh, UpAxis, load_mesh
from localscale.lab.data.objects.panoramas import load_panorama, sample_panorama
from localscale.lab.data.objects.scenes import Placement, Scene
from localscale.lab.data.objects.shading import choose_exposure, find_surface, reflect, tone
from localscale.lab.data.objects.shadows import fill_in, shade_ground, share_of_light
from localscale.lab.data.objects.textures import encode_srgb

__all__ = ["RENDERERS", "Assets", "Coverage", "EmbreeRenderer", "Renderer", "Rendering"]

STEP = 2  # distance, in pixels, between the points of an object whose light is traced
COVERAGE_SIZE = 96  # side, in pixels, of the image with which ``measure`` estimates the coverage
MESHES_KEPT = 32  # about 7 MB each
PANORAMAS_KEPT = 24  # 6 MB each at 1024×512


class Assets:
    """The meshes and panoramas of a process by name; they are loaded when needed, and the latest ones are kept."""

    def __init__(self, meshes: Mapping[str, Path], panoramas: Mapping[str, Path], *, up: UpAxis = "z") -> None:
        self._meshes, self._panoramas, self._up = dict(meshes), dict(panoramas), up
        self.mesh = functools.lru_cache(maxsize=MESHES_KEPT)(self._load_mesh)
        self.environment = functools.lru_cache(maxsize=PANORAMAS_KEPT)(self._load_environment)

    def _load_mesh(self, name: str) -> tuple[Mesh, Any]:
        mesh = load_mesh(self._meshes[name], up=self._up)
        return mesh, build_tree(mesh)

    def _load_environment(self, name: str) -> Environment:
        return light_environment(load_panorama(self._panoramas[name]))


@dataclass(frozen=True)
class Coverage:
    """For each object: the fraction of the image that it covers, and the fraction of this area that is not hidden."""

    areas: tuple[float, ...]
    visible: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Rendering:
    """An image ``(S, S, 3)`` in 8-bit sRGB, and the object's number in each pixel, ``(S, S)``, 0 for background."""

    image: np.ndarray
    instances: np.ndarray
    coverage: Coverage


class Renderer(Protocol):
    """A renderer returns the same pixels for the same scene, in any process and after any other scene."""

    def measure(self, scene: Scene) -> Coverage:
        """Estimate the coverage of each object; it must be fast, because every attempt to place objects needs it."""
        ...

    def render(self, scene: Scene) -> Rendering:
        """Return the image and the masks of a scene."""
        ...


@dataclass(frozen=True, eq=False)
class View:
    """The rays, the background and the exposure, which all members of a group share."""

    directions: np.ndarray
    background: np.ndarray
    exposure: np.float32


class EmbreeRenderer:
    """Ray casting on the CPU with anti-aliasing and light from the panorama; ``reflect`` describes the shading."""

    def __init__(self, assets: Assets, *, size: int = 256, samples: int = 4) -> None:
        self.assets = assets
        self.size = size
        self.samples = samples
        self._view = functools.lru_cache(maxsize=2)(self._make_view)

    def measure(self, scene: Scene) -> Coverage:
        directions = _rays_of(scene.camera, COVERAGE_SIZE, 1)
        found = [cast(body, scene.camera.position, directions) for body in self._bodies(scene.objects)]
        seen = np.bincount(_first_objects(found, len(directions)), minlength=len(found) + 1)
        return _coverage(found, seen[1:], len(directions))

    def render(self, scene: Scene) -> Rendering:
        camera, size, samples = scene.camera, self.size, self.samples
        environment = self.assets.environment(scene.panorama)
        view = self._view(camera, scene.panorama)
        bodies = self._bodies(scene.objects)
        found = [_cast_within(body, camera, view.directions, size, samples) for body in bodies]
        seen = _first_objects(found, size * size * samples)
        ground = shade_ground(bodies, environment, camera, size).reshape(-1, 3)
        background = tone(view.background * ground * view.exposure)
        colours = np.zeros((size * size, 3), dtype=np.float32)
        angle = math.radians(camera.field_of_view) / size / math.sqrt(samples)
        for index, hits in enumerate(found, start=1):
            hits = hits.select(seen[hits.ray] == index)
            if not len(hits.ray):
                continue
            directions = view.directions[hits.ray]
            surface = find_surface(bodies[index - 1], hits, camera.position, directions)
            pixel = hits.ray // samples
            lit = _light(bodies, environment, pixel, surface.points, surface.normals, size, bodies[index - 1])
            light = reflect(bodies[index - 1], hits, surface, directions, environment, lit=lit, angle=angle)
            shown = tone(light * view.exposure)
            for channel in range(3):
                colours[:, channel] += np.bincount(pixel, shown[:, channel], minlength=size * size).astype(np.float32)

        counts = _counts(seen.reshape(-1, samples), len(bodies))
        free = counts[:, :1].astype(np.float32)
        image = encode_srgb((colours + background * free) / np.float32(samples)).reshape(size, size, 3)
        coverage = _coverage(found, counts[:, 1:].sum(axis=0), size * size * samples)
        # The first sample breaks ties; argmax alone would prefer the background and shrink objects by half a sample.
        counts = counts * 2
        counts[np.arange(len(counts)), seen[::samples]] += 1
        return Rendering(image, counts.argmax(axis=1).astype(np.uint8).reshape(size, size), coverage)

    def _bodies(self, objects: Sequence[Placement]) -> list[Body]:
        return [Body(*self.assets.mesh(placement.name), placement) for placement in objects]

    def _make_view(self, camera: Camera, panorama: str) -> View:
        environment = self.assets.environment(panorama)
        background = sample_panorama(environment.panorama.radiance, _rays_of(camera, self.size, 1))
        exposure = choose_exposure(environment, background, camera.axes()[0])
        return View(_rays_of(camera, self.size, self.samples), background, np.float32(exposure))


RENDERERS: dict[str, Callable[..., Renderer]] = {"embree": EmbreeRenderer}


def _rays_of(camera: Camera, size: int, samples: int) -> np.ndarray:
    """Return the directions ``(size² · samples, 3)``; the samples of a pixel follow each other."""
    rows, columns = np.divmod(np.arange(size * size), size)
    corners = np.stack((columns, rows), axis=1)
    points = corners[:, None] + (stratified(samples) if samples > 1 else np.full((1, 2), 0.5))
    return rays(camera, points.reshape(-1, 2), size)


def _cast_within(body: Body, camera: Camera, directions: np.ndarray, size: int, samples: int) -> Hits:
    """Return the hits of the image's rays on a body; only rays near its bounding box are cast."""
    positions, depth = project(camera, body.placement.box(), size)
    low, high = np.floor(positions.min(axis=0)) - 1, np.ceil(positions.max(axis=0)) + 1
    if depth.min() <= 0:
        low, high = np.zeros(2), np.full(2, size)
    left, upper = np.clip(low, 0, size).astype(int)
    right, lower = np.clip(high, 0, size).astype(int)
    pixel = (np.arange(upper, lower)[:, None] * size + np.arange(left, right)).reshape(-1)
    ray = (pixel[:, None] * samples + np.arange(samples)).reshape(-1)
    hits = cast(body, camera.position, directions[ray])
    return Hits(ray[hits.ray], hits.distance, hits.face, hits.weights)


def _light(
    bodies: Sequence[Body],
    environment: Environment,
    pixel: np.ndarray,
    points: np.ndarray,
    normals: np.ndarray,
    size: int,
    own: Body,
) -> np.ndarray:
    """Return the share of light at each sample.

    It is traced at every ``STEP``-th pixel and interpolated; pixels that differ from their neighbours are traced, too.
    """
    shown, first, back = np.unique(pixel, return_index=True, return_inverse=True)
    rows, columns = np.divmod(shown, size)
    known = (rows % STEP == 0) & (columns % STEP == 0)
    order = np.concatenate((np.flatnonzero(known), np.flatnonzero(~known)))
    rank = np.argsort(order)
    first, rows, columns, count = first[order], rows[order], columns[order], int(known.sum())
    light = np.ones((len(order), 3), dtype=np.float32)
    trusted = np.zeros(len(order), dtype=bool)
    if count:
        traced = share_of_light(bodies, environment, points[first[:count]], normals[first[:count]])
        cells = -(-size // STEP)
        lattice = np.full((cells, cells), -1, dtype=np.int64)
        lattice[rows[:count] // STEP, columns[:count] // STEP] = np.arange(count)
        near = np.float32(6 / own.placement.radius)
        traits = np.concatenate((normals[first] * np.float32(1.5), points[first] * near), axis=1)
        light, trusted = fill_in(lattice, traced, rows, columns, traits, STEP)
        light[:count], trusted[:count] = traced, True
    rest = np.flatnonzero(~trusted)
    if len(rest):
        light[rest] = share_of_light(bodies, environment, points[first[rest]], normals[first[rest]])
    return light[rank][back]


def _counts(seen: np.ndarray, objects: int) -> np.ndarray:
    """Count the samples of each pixel that show the background and each object, ``(P, 1 + objects)``."""
    return np.stack([(seen == index).sum(axis=1) for index in range(objects + 1)], axis=1)


def _first_objects(found: Sequence[Hits], rays: int) -> np.ndarray:
    """Return the number of the object that each ray hits first, counted from 1, or 0 if it hits none."""
    nearest, seen = np.full(rays, np.inf, dtype=np.float32), np.zeros(rays, dtype=np.uint8)
    for index, hits in enumerate(found, start=1):
        front = hits.distance < nearest[hits.ray]
        seen[hits.ray[front]] = index
        nearest[hits.ray[front]] = hits.distance[front]
    return seen


def _coverage(found: Sequence[Hits], seen: np.ndarray, total: int) -> Coverage:
    alone = [len(hits.ray) for hits in found]
    areas = tuple(count / total for count in alone)
    visible = tuple(float(shown / count) if count else 0.0 for shown, count in zip(seen, alone, strict=True))
    return Coverage(areas, visible)
