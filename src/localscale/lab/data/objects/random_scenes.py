"""Sample random groups of scenes in which both objects are visible and do not intersect.

All random numbers come from the given generator in a fixed order, so a group is a function of the generator's seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from localscale.lab.data.objects.cameras import Camera, project
from localscale.lab.data.objects.renderer import Renderer
from localscale.lab.data.objects.scenes import Placement, Scene, footprints_meet, place, size_factor

__all__ = ["Extent", "Limits", "is_framed", "random_group"]

Extent = tuple[float, float, float]
STEPS = 40  # distances tried to find the nearest and the farthest one that keeps an object in the frame


@dataclass(frozen=True)
class Limits:
    """Limits of a random scene.

    - ``distance``: nearest and farthest distance of an object, in units of half its diagonal, so that small and large
      objects fill the image alike.
    - ``range``: smallest ratio of the farthest to the nearest distance at which an object is still in the frame.
    - ``spread``: smallest ratio of an object's farthest to its nearest distance in a group.
    - ``area``: smallest and largest fraction of the image that an object covers.
    - ``visible``: smallest fraction of an object that the other one leaves visible.
    - ``together``: probability that both objects lie in nearly the same direction, where one may hide the other.
    - ``field_of_view``, ``pitch``: ranges of the camera's angles, in degrees.
    - ``below``: smallest angle of objects below the horizon, in degrees; above it a panorama shows walls and no floor.
    """

    distance: tuple[float, float] = (2.2, 9.0)
    range: float = 1.8
    spread: float = 1.25
    area: tuple[float, float] = (0.0115, 0.43)
    visible: float = 0.38
    together: float = 0.7
    field_of_view: tuple[float, float] = (38.0, 52.0)
    pitch: tuple[float, float] = (-40.0, -22.0)
    below: float = 15.0
    scene_attempts: int = 400
    member_attempts: int = 24


@dataclass(frozen=True)
class _Shared:
    """Everything that the members of a group share; ``reach`` is each object's nearest and farthest distance."""

    camera: Camera
    panorama: str
    names: tuple[str, ...]
    yaws: tuple[float, ...]
    bearings: tuple[float, ...]
    reach: tuple[tuple[float, float], ...] = ()


def random_group(
    rng: np.random.Generator,
    members: int,
    *,
    extents: Mapping[str, Extent],
    panoramas: Sequence[str],
    renderer: Renderer,
    limits: Limits | None = None,
) -> list[Scene] | None:
    """Return a random scene at ``members`` random distances of its objects, or None after too many attempts.

    If one member cannot be placed, the whole scene is dropped and another one is drawn.
    """
    limits = limits or Limits()
    names = sorted(extents)
    for _ in range(limits.scene_attempts):
        shared = _draw_shared(rng, names, extents, panoramas, limits)
        if shared is None:
            continue
        # Each member draws from its own part of the distance range, so that every object is near and far in the group.
        parts = np.stack([rng.permutation(members) for _ in shared.names], axis=1)
        scenes: list[Scene] = []
        for part in parts:
            scene = _draw_member(rng, shared, part, members, extents, renderer, limits)
            if scene is None:
                break
            scenes.append(scene)
        if len(scenes) == members and _spread(scenes) >= (limits.spread if members > 1 else 1):
            return scenes
    return None


def is_framed(camera: Camera, placement: Placement, *, margin: float = 0.01) -> bool:
    """Return whether an object's bounding box lies inside the image, at least ``margin`` of a side from its edges."""
    positions, depth = project(camera, placement.box(), 1)
    return bool(depth.min() > 0.05 and positions.min() >= margin and positions.max() <= 1 - margin)


def _draw_shared(
    rng: np.random.Generator,
    names: Sequence[str],
    extents: Mapping[str, Extent],
    panoramas: Sequence[str],
    limits: Limits,
) -> _Shared | None:
    """Return a random scene without distances, or None if the frame leaves an object too small a range of distances."""
    view, pitch = rng.uniform(*limits.field_of_view), rng.uniform(*limits.pitch)
    panorama = panoramas[int(rng.integers(len(panoramas)))]
    chosen = tuple(names[int(index)] for index in rng.choice(len(names), 2, replace=False))
    yaws = tuple(float(yaw) for yaw in rng.uniform(0, 360, 2))
    first, second = (float(bearing) for bearing in rng.uniform(-0.32 * view, 0.32 * view, 2))
    beside = first + float(rng.uniform(-0.15 * view, 0.15 * view))
    bearings = (first, beside if rng.random() < limits.together else second)
    # The camera looks at about where the objects will be, so that near objects stay in the frame, too.
    aim = rng.uniform(2.8, 4.2) * float(np.mean([_radius(extents[name]) for name in chosen]))
    height = 0.4 * min(_radius(extents[name]) for name in chosen) + aim * math.tan(math.radians(-pitch))
    camera = Camera(height, pitch, rng.uniform(0, 360), view)
    reach = []
    for name, yaw, bearing in zip(chosen, yaws, bearings, strict=True):
        low, high = _radius(extents[name]) * np.array(limits.distance)
        distances = low * (high / low) ** (np.arange(STEPS) / (STEPS - 1))
        placed = [place(camera, name, extents[name], yaw=yaw, bearing=bearing, distance=float(d)) for d in distances]
        fitting = [each.distance for each in placed if each is not None and _is_usable(camera, each, limits)]
        if not fitting or fitting[-1] < limits.range * fitting[0]:
            return None
        reach.append((fitting[0], fitting[-1]))
    return _Shared(camera, panorama, chosen, yaws, bearings, tuple(reach))


def _draw_member(
    rng: np.random.Generator,
    shared: _Shared,
    part: np.ndarray,
    parts: int,
    extents: Mapping[str, Extent],
    renderer: Renderer,
    limits: Limits,
) -> Scene | None:
    for attempt in range(limits.member_attempts):
        share = rng.random(len(part))
        if attempt < limits.member_attempts // 2:  # later attempts use the whole range
            share = (part + share) / parts
        distances = [near * (far / near) ** float(u) for (near, far), u in zip(shared.reach, share, strict=True)]
        objects = _arrange(shared, distances, extents, limits)
        if objects is None:
            continue
        scene = Scene(shared.camera, shared.panorama, objects)
        coverage = renderer.measure(scene)
        low, high = limits.area
        if min(coverage.visible) >= limits.visible and all(low <= area <= high for area in coverage.areas):
            return scene
    return None


def _arrange(
    shared: _Shared, distances: Sequence[float], extents: Mapping[str, Extent], limits: Limits
) -> tuple[Placement, ...] | None:
    """Place the objects at these distances; return None if one leaves the frame or if they intersect."""
    objects = []
    for name, yaw, bearing, distance in zip(shared.names, shared.yaws, shared.bearings, distances, strict=True):
        placement = place(shared.camera, name, extents[name], yaw=yaw, bearing=bearing, distance=distance)
        if placement is None or not _is_usable(shared.camera, placement, limits):
            return None
        objects.append(placement)
    return None if footprints_meet(*objects) else tuple(objects)


def _is_usable(camera: Camera, placement: Placement, limits: Limits) -> bool:
    below = math.degrees(math.atan2(camera.height, math.hypot(*placement.position)))
    return below >= limits.below and is_framed(camera, placement)


def _spread(scenes: Sequence[Scene]) -> float:
    """Return the ratio of the farthest to the nearest distance of the object that moves least."""
    distances = np.array([[placement.distance for placement in scene.objects] for scene in scenes])
    return float((distances.max(axis=0) / distances.min(axis=0)).min())


def _radius(extent: Extent) -> float:
    return math.hypot(*extent) * size_factor(extent) / 2
