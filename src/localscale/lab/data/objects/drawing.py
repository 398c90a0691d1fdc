"""Drawing scenes at random, until the objects can be seen and do not run into each other.

All randomness comes from the generator that is passed in, in a fixed order, so a group is a function of its seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from localscale.lab.data.objects.cameras import Camera, project
from localscale.lab.data.objects.renderer import Renderer
from localscale.lab.data.objects.scenes import Placement, Scene, footprints_meet, place, size_factor

__all__ = ["Extent", "Limits", "draw_group", "is_framed"]

Extent = tuple[float, float, float]
STEPS = 40  # distances that are tried to find how near and how far an object may be


@dataclass(frozen=True)
class Limits:
    """What is drawn, and what is kept.

    ``distance`` is the nearest and the farthest an object may be, in halves of its own diagonal, so that small and
    large ones fill the image alike; ``range`` the least ratio of the two that the frame must leave, and ``spread``
    the least ratio between an object's nearest and farthest place in a group; ``area`` the least and the most of the
    image an object may cover; ``visible`` the least part of it that must not be hidden; ``together`` how often the two
    are drawn in nearly one direction, where one may hide the other; ``below`` how many degrees below the horizon
    objects must stand, because above that a panorama shows walls and not a floor.
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
class _Cast:
    """What stays the same in a group; ``reach`` is how near and how far each object may be, in metres."""

    camera: Camera
    panorama: str
    names: tuple[str, ...]
    yaws: tuple[float, ...]
    bearings: tuple[float, ...]
    reach: tuple[tuple[float, float], ...] = ()


def draw_group(
    rng: np.random.Generator,
    members: int,
    *,
    extents: Mapping[str, Extent],
    panoramas: Sequence[str],
    renderer: Renderer,
    limits: Limits | None = None,
) -> list[Scene] | None:
    """One scene at ``members`` draws of its objects' distances; None if no scene fits after many attempts.

    A scene for which one of the members cannot be placed is dropped as a whole, and another one drawn.
    """
    limits = limits or Limits()
    names = sorted(extents)
    for _ in range(limits.scene_attempts):
        cast = _draw_cast(rng, names, extents, panoramas, limits)
        if cast is None:
            continue
        # Each object visits near and far over the group: member k draws from its own part of the range, shuffled.
        parts = np.stack([rng.permutation(members) for _ in cast.names], axis=1)
        scenes: list[Scene] = []
        for part in parts:
            scene = _draw_member(rng, cast, part, members, extents, renderer, limits)
            if scene is None:
                break
            scenes.append(scene)
        if len(scenes) == members and _spread(scenes) >= (limits.spread if members > 1 else 1):
            return scenes
    return None


def is_framed(camera: Camera, placement: Placement, *, margin: float = 0.01) -> bool:
    """Whether an object's bounding box lies inside the image, ``margin`` of a side away from its edges."""
    places, depth = project(camera, placement.box(), 1)
    return bool(depth.min() > 0.05 and places.min() >= margin and places.max() <= 1 - margin)


def _draw_cast(
    rng: np.random.Generator,
    names: Sequence[str],
    extents: Mapping[str, Extent],
    panoramas: Sequence[str],
    limits: Limits,
) -> _Cast | None:
    """A scene without distances, or None where the frame leaves an object too little room to come and go."""
    view, pitch = rng.uniform(*limits.field_of_view), rng.uniform(*limits.pitch)
    panorama = panoramas[int(rng.integers(len(panoramas)))]
    chosen = tuple(names[int(index)] for index in rng.choice(len(names), 2, replace=False))
    yaws = tuple(float(yaw) for yaw in rng.uniform(0, 360, 2))
    first, second = (float(bearing) for bearing in rng.uniform(-0.32 * view, 0.32 * view, 2))
    beside = first + float(rng.uniform(-0.15 * view, 0.15 * view))
    bearings = (first, beside if rng.random() < limits.together else second)
    # The camera looks at about where the objects will be, so that coming near does not take them out of the frame.
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
    return _Cast(camera, panorama, chosen, yaws, bearings, tuple(reach))


def _draw_member(
    rng: np.random.Generator,
    cast: _Cast,
    part: np.ndarray,
    parts: int,
    extents: Mapping[str, Extent],
    renderer: Renderer,
    limits: Limits,
) -> Scene | None:
    for attempt in range(limits.member_attempts):
        share = rng.random(len(part))
        if attempt < limits.member_attempts // 2:  # later draws may come from the whole range
            share = (part + share) / parts
        distances = [near * (far / near) ** float(u) for (near, far), u in zip(cast.reach, share, strict=True)]
        objects = _arrange(cast, distances, extents, limits)
        if objects is None:
            continue
        scene = Scene(cast.camera, cast.panorama, objects)
        coverage = renderer.measure(scene)
        low, high = limits.area
        if min(coverage.visible) >= limits.visible and all(low <= area <= high for area in coverage.areas):
            return scene
    return None


def _arrange(
    cast: _Cast, distances: Sequence[float], extents: Mapping[str, Extent], limits: Limits
) -> tuple[Placement, ...] | None:
    """The objects at these distances, if they are in the frame and stand apart."""
    objects = []
    for name, yaw, bearing, distance in zip(cast.names, cast.yaws, cast.bearings, distances, strict=True):
        placement = place(cast.camera, name, extents[name], yaw=yaw, bearing=bearing, distance=distance)
        if placement is None or not _is_usable(cast.camera, placement, limits):
            return None
        objects.append(placement)
    return None if footprints_meet(*objects) else tuple(objects)


def _is_usable(camera: Camera, placement: Placement, limits: Limits) -> bool:
    below = math.degrees(math.atan2(camera.height, math.hypot(*placement.position)))
    return below >= limits.below and is_framed(camera, placement)


def _spread(scenes: Sequence[Scene]) -> float:
    """The ratio of an object's farthest to its nearest distance, for the object that moves least."""
    distances = np.array([[placement.distance for placement in scene.objects] for scene in scenes])
    return float((distances.max(axis=0) / distances.min(axis=0)).min())


def _radius(extent: Extent) -> float:
    return math.hypot(*extent) * size_factor(extent) / 2
