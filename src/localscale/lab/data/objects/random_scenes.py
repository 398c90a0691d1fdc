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
from localscale.lab.data.objects.scenes import Extent, Placement, Scene, footprints_meet, place, size_factor

__all__ = ["is_framed", "random_group"]

FIELD_OF_VIEW, PITCH = (38.0, 52.0), (-40.0, -22.0)  # ranges of the camera's angles, in degrees
DISTANCE = (2.2, 9.0)  # range of distances, in halves of an object's diagonal, so that all sizes fill the image alike
STEPS = 40  # distances tried to find the nearest and the farthest one that keeps an object in the frame
REACH = 1.8  # smallest ratio of these two distances
SPREAD = 1.25  # smallest ratio of an object's farthest to its nearest distance in a group
AREA = (0.0115, 0.43)  # smallest and largest fraction of the image that an object covers
VISIBLE = 0.38  # smallest fraction of an object that the other one leaves visible
TOGETHER = 0.7  # probability that both objects lie in nearly the same direction, where one may hide the other
BELOW = 15.0  # smallest angle of objects below the horizon, in degrees; above it a panorama shows walls and no floor
ATTEMPTS, MEMBER_ATTEMPTS = 400, 24


@dataclass(frozen=True)
class _Object:
    """An object without its distance, as in all members of a group; ``reach`` limits the distance, in metres."""

    name: str
    extent: Extent
    yaw: float
    bearing: float
    reach: tuple[float, float] = (0.0, 0.0)

    def place(self, camera: Camera, distance: float) -> Placement | None:
        """Place the object; return None if it is outside the image or too close to the horizon."""
        placed = place(camera, self.name, self.extent, yaw=self.yaw, bearing=self.bearing, distance=distance)
        if placed is None or math.degrees(math.atan2(camera.height, math.hypot(*placed.position))) < BELOW:
            return None
        return placed if is_framed(camera, placed) else None


def random_group(
    rng: np.random.Generator,
    members: int,
    *,
    extents: Mapping[str, Extent],
    panoramas: Sequence[str],
    renderer: Renderer,
    attempts: int = ATTEMPTS,
) -> list[Scene] | None:
    """Return a random scene at ``members`` random distances of its objects, or None after too many attempts.

    If one member cannot be placed, the whole scene is dropped and another one is drawn.
    """
    for _ in range(attempts):
        drawn = _draw_objects(rng, extents, panoramas)
        if drawn is None:
            continue
        camera, panorama, objects = drawn
        # Each member draws from its own part of the distance range, so that every object is near and far in the group.
        parts = np.stack([rng.permutation(members) for _ in objects], axis=1)
        scenes: list[Scene] = []
        for part in parts:
            scene = _draw_member(rng, camera, panorama, objects, part, members, renderer)
            if scene is None:
                break
            scenes.append(scene)
        if len(scenes) == members and _spread(scenes) >= (SPREAD if members > 1 else 1):
            return scenes
    return None


def is_framed(camera: Camera, placement: Placement, *, margin: float = 0.01) -> bool:
    """Return whether an object's bounding box lies inside the image, at least ``margin`` of a side from its edges."""
    positions, depth = project(camera, placement.box(), 1)
    return bool(depth.min() > 0.05 and positions.min() >= margin and positions.max() <= 1 - margin)


def _draw_objects(
    rng: np.random.Generator, extents: Mapping[str, Extent], panoramas: Sequence[str]
) -> tuple[Camera, str, list[_Object]] | None:
    """Return a random scene without distances, or None if the frame leaves an object too small a range of distances."""
    names = sorted(extents)
    view, pitch = rng.uniform(*FIELD_OF_VIEW), rng.uniform(*PITCH)
    panorama = panoramas[int(rng.integers(len(panoramas)))]
    chosen = [names[int(index)] for index in rng.choice(len(names), 2, replace=False)]
    yaws = [float(yaw) for yaw in rng.uniform(0, 360, 2)]
    first, second = (float(bearing) for bearing in rng.uniform(-0.32 * view, 0.32 * view, 2))
    beside = first + float(rng.uniform(-0.15 * view, 0.15 * view))
    bearings = (first, beside if rng.random() < TOGETHER else second)
    # The camera looks at about where the objects will be, so that near objects stay in the frame, too.
    radii = [math.hypot(*extents[name]) * size_factor(extents[name]) / 2 for name in chosen]
    height = 0.4 * min(radii) + rng.uniform(2.8, 4.2) * float(np.mean(radii)) * math.tan(math.radians(-pitch))
    camera = Camera(height, pitch, rng.uniform(0, 360), view)
    objects = []
    for name, radius, yaw, bearing in zip(chosen, radii, yaws, bearings, strict=True):
        low, high = radius * np.array(DISTANCE)
        distances = low * (high / low) ** (np.arange(STEPS) / (STEPS - 1))
        placed = _Object(name, extents[name], yaw, bearing)
        fitting = [float(distance) for distance in distances if placed.place(camera, float(distance)) is not None]
        if not fitting or fitting[-1] < REACH * fitting[0]:
            return None
        objects.append(_Object(name, extents[name], yaw, bearing, (fitting[0], fitting[-1])))
    return camera, panorama, objects


def _draw_member(
    rng: np.random.Generator,
    camera: Camera,
    panorama: str,
    objects: Sequence[_Object],
    part: np.ndarray,
    parts: int,
    renderer: Renderer,
) -> Scene | None:
    """Return the scene at random distances of its objects, or None after too many attempts."""
    for attempt in range(MEMBER_ATTEMPTS):
        share = rng.random(len(part))
        if attempt < MEMBER_ATTEMPTS // 2:  # later attempts use the whole range
            share = (part + share) / parts
        placed = []
        for each, u in zip(objects, share, strict=True):
            near, far = each.reach
            placement = each.place(camera, near * (far / near) ** float(u))
            if placement is not None:
                placed.append(placement)
        if len(placed) < len(objects) or footprints_meet(*placed):
            continue
        scene = Scene(camera, panorama, tuple(placed))
        coverage = renderer.measure(scene)
        if min(coverage.visible) >= VISIBLE and all(AREA[0] <= area <= AREA[1] for area in coverage.areas):
            return scene
    return None


def _spread(scenes: Sequence[Scene]) -> float:
    """Return the ratio of the farthest to the nearest distance of the object that moves least."""
    distances = np.array([[placement.distance for placement in scene.objects] for scene in scenes])
    return float((distances.max(axis=0) / distances.min(axis=0)).min())
