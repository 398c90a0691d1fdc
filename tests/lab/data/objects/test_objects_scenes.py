"""Cameras, placements, and random groups of scenes."""

import math

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st
from object_inputs import MadeAssets, even_sky, plain_mesh

from localscale.lab.data.objects.cameras import Camera, project, rays, stratified
from localscale.lab.data.objects.random_scenes import is_framed, random_group
from localscale.lab.data.objects.renderer import Coverage, EmbreeRenderer
from localscale.lab.data.objects.scenes import Placement, footprints_meet, place, size_factor

CAMERA = Camera(height=0.4, pitch=-25.0, heading=40.0, field_of_view=45.0)
cameras = st.builds(
    Camera,
    height=st.floats(0.1, 2),
    pitch=st.floats(-80, 20),
    heading=st.floats(0, 360),
    field_of_view=st.floats(20, 90),
)


# Cameras


@settings(max_examples=20)
@given(camera=cameras, size=st.sampled_from([1, 64, 256]), seed=st.integers(0, 1000))
def test_projection_inverts_rays(camera: Camera, size: int, seed: int):
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, size, (20, 2))
    directions = rays(camera, points, size).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-6)
    far = camera.position + directions * rng.uniform(0.5, 5, (20, 1))
    positions, depth = project(camera, far, size)
    np.testing.assert_allclose(positions, points, atol=2e-5 * size)
    assert depth.min() > 0
    assert (project(camera, camera.position - directions, size)[1] < 0).all()


def test_axes_are_a_right_handed_frame():
    forward, right, up = CAMERA.axes()
    np.testing.assert_allclose(CAMERA.axes() @ CAMERA.axes().T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.cross(right, forward), up, atol=1e-12)
    assert up[2] > 0
    assert forward[2] == pytest.approx(math.sin(math.radians(-25)))


def test_samples_are_one_per_row_and_column():
    for samples in range(1, 17):
        points = np.sort(stratified(samples), axis=0)
        np.testing.assert_allclose(points, np.repeat(np.arange(samples)[:, None] + 0.5, 2, axis=1) / samples)


# Placements


@settings(max_examples=20)
@given(distance=st.floats(0.5, 3), bearing=st.floats(-30, 30), yaw=st.floats(0, 360), height=st.floats(0.05, 0.4))
def test_an_object_has_the_distance_it_was_placed_at(distance: float, bearing: float, yaw: float, height: float):
    placement = place(CAMERA, "it", (0.2, 0.1, height), yaw=yaw, bearing=bearing, distance=distance)
    assert placement is not None
    assert np.linalg.norm(placement.centre - CAMERA.position) == pytest.approx(distance)
    angle = math.degrees(math.atan2(placement.position[1], placement.position[0]))
    assert (angle - CAMERA.heading - bearing + 180) % 360 == pytest.approx(180, abs=1e-6)
    assert placement.box()[:, 2].min() == 0, "it stands on the ground"
    assert np.abs(placement.box() - placement.centre).max() <= placement.radius + 1e-9


def test_nothing_is_placed_under_the_camera():
    assert place(CAMERA, "it", (0.1, 0.1, 0.1), yaw=0, bearing=0, distance=0.2) is None


def test_size_factors_bring_sizes_closer_and_keep_their_order():
    sides = np.array([0.01, 0.05, 0.25, 1.0, 4.0, 300.0])
    shown = [side * size_factor((side, side / 2, side / 3)) for side in sides]
    np.testing.assert_allclose(shown, [0.25 / 3, *(0.25 * np.sqrt(sides[1:4] / 0.25)), 0.75, 0.75])


@settings(max_examples=50)
@given(st.lists(st.floats(-0.6, 0.6), min_size=4, max_size=4), st.floats(0, 360), st.floats(0, 360))
def test_footprints_meet_if_a_point_is_in_both(numbers: list[float], yaw: float, other: float):
    a = Placement("a", yaw, 0, 1, 1, (0.4, 0.2, 0.1), (numbers[0], numbers[1]))
    b = Placement("b", other, 0, 1, 1, (0.3, 0.5, 0.1), (numbers[2], numbers[3]))
    steps = np.stack(np.meshgrid(*[np.linspace(-0.5, 0.5, 41)] * 2), axis=-1).reshape(-1, 2)

    def inside(placement: Placement, points: np.ndarray) -> np.ndarray:
        turn = math.radians(placement.yaw)
        axes = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
        return (np.abs((points - placement.position) @ axes.T) <= np.array(placement.extent[:2]) / 2).all(axis=1)

    turn = math.radians(a.yaw)
    points = (steps * a.extent[:2]) @ np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    share = inside(b, points + a.position).any()
    if share:
        assert footprints_meet(a, b, margin=0)
    assert footprints_meet(a, b, margin=0) == footprints_meet(b, a, margin=0)
    if np.hypot(numbers[0] - numbers[2], numbers[1] - numbers[3]) > 0.52 + 0.02:
        assert not footprints_meet(a, b), "apart by more than both half diagonals"


def test_objects_outside_the_image_are_not_framed():
    inside = place(CAMERA, "it", (0.1, 0.1, 0.1), yaw=0, bearing=0, distance=0.8)
    beside = place(CAMERA, "it", (0.1, 0.1, 0.1), yaw=0, bearing=22, distance=0.8)
    behind = place(CAMERA, "it", (0.1, 0.1, 0.1), yaw=0, bearing=180, distance=0.8)
    assert is_framed(CAMERA, inside)
    assert not is_framed(CAMERA, beside)
    assert not is_framed(CAMERA, behind)


# Random groups


@pytest.fixture(scope="module")
def assets() -> MadeAssets:
    shapes = {
        "ball": trimesh.creation.icosphere(radius=0.1),
        "box": trimesh.creation.box(extents=(0.3, 0.2, 0.1)),
        "post": trimesh.creation.cylinder(radius=0.04, height=0.3),
    }
    return MadeAssets({name: plain_mesh(shape) for name, shape in shapes.items()}, {"even": even_sky()})


def draw(assets: MadeAssets, seed: int, members: int = 4, renderer=None):
    renderer = renderer or EmbreeRenderer(assets, size=64, samples=1)
    rng = np.random.Generator(np.random.PCG64([seed]))
    return random_group(rng, members, extents=assets.extents(), panoramas=["even"], renderer=renderer)


@pytest.mark.parametrize("seed", range(3))
def test_members_differ_in_distances_only(assets: MadeAssets, seed: int):
    scenes = draw(assets, seed)
    assert len(scenes) == 4
    first = scenes[0]
    assert len({placement.name for placement in first.objects}) == 2
    for scene in scenes:
        assert (scene.camera, scene.panorama) == (first.camera, first.panorama)
        for placement, reference in zip(scene.objects, first.objects, strict=True):
            fixed = ("name", "yaw", "bearing", "factor")
            assert all(getattr(placement, name) == getattr(reference, name) for name in fixed)
    for index in (0, 1):
        distances = [scene.objects[index].distance for scene in scenes]
        assert len(set(distances)) == 4
        assert max(distances) / min(distances) > 1.1


@pytest.mark.parametrize("seed", range(3))
def test_every_member_keeps_the_limits(assets: MadeAssets, seed: int):
    renderer = EmbreeRenderer(assets, size=96, samples=2)
    for scene in draw(assets, seed, renderer=renderer):
        assert not footprints_meet(*scene.objects)
        assert all(is_framed(scene.camera, placement) for placement in scene.objects)
        coverage = renderer.render(scene).coverage
        assert all(0.01 <= area <= 0.45 for area in coverage.areas)
        assert min(coverage.visible) >= 0.35


def test_a_group_is_a_function_of_the_seed(assets: MadeAssets):
    assert draw(assets, 3) == draw(assets, 3)
    assert draw(assets, 3) != draw(assets, 4)


def test_impossible_scenes_return_none(assets: MadeAssets):
    class Hidden(EmbreeRenderer):
        def measure(self, scene):
            return Coverage((0.1, 0.1), (1.0, 0.0))

    rng = np.random.Generator(np.random.PCG64(0))
    renderer = Hidden(assets, size=64, samples=1)
    drawn = random_group(rng, 2, extents=assets.extents(), panoramas=["even"], renderer=renderer, attempts=3)
    assert drawn is None
