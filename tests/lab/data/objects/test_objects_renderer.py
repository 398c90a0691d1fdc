"""Rendering, compared with geometry and optics."""

import math

import cv2
import numpy as np
import pytest
import trimesh
from object_inputs import MadeAssets, even_sky, noisy_radiance, plain_mesh, sunny_sky

from localscale.lab.data.objects.cameras import Camera, project, stratified
from localscale.lab.data.objects.casting import Body, Hits, cast, is_blocked
from localscale.lab.data.objects.lighting import irradiance, light_environment
from localscale.lab.data.objects.panoramas import Panorama
from localscale.lab.data.objects.renderer import RENDERERS, EmbreeRenderer
from localscale.lab.data.objects.scenes import Placement, Scene, place
from localscale.lab.data.objects.shading import DIELECTRIC, choose_exposure, find_surface, reflect, tone
from localscale.lab.data.objects.shadows import BOUNCE, DENSITY, FAINT, fill_in, shade_ground, share_of_light

CAMERA = Camera(height=0.5, pitch=-30.0, heading=20.0, field_of_view=45.0)
SIZE = 96
RED, GREEN = (0.7, 0.05, 0.05), (0.05, 0.7, 0.05)


@pytest.fixture(scope="module")
def assets() -> MadeAssets:
    ball, box = (
        trimesh.creation.icosphere(subdivisions=5, radius=0.125),
        trimesh.creation.box(extents=(0.25, 0.15, 0.2)),
    )
    meshes = {"red ball": plain_mesh(ball, RED), "green ball": plain_mesh(ball, GREEN), "box": plain_mesh(box)}
    panoramas = [even_sky(), sunny_sky((1, 0.2, 0.9)), Panorama("noise", noisy_radiance(32))]
    return MadeAssets(meshes, {panorama.name: panorama for panorama in panoramas})


def put(assets: MadeAssets, name: str, distance: float, *, bearing: float = 0.0, yaw: float = 0.0) -> Placement:
    placement = place(CAMERA, name, assets.extents()[name], yaw=yaw, bearing=bearing, distance=distance)
    assert placement is not None
    return placement


def body_of(assets: MadeAssets, placement: Placement) -> Body:
    return Body(*assets.mesh(placement.name), placement)


def every_ray(samples: int) -> np.ndarray:
    """Return the rays through all samples by the pinhole model, ``(SIZE, SIZE, samples, 3)``."""
    forward, right, up = CAMERA.axes()
    spread = math.tan(math.radians(CAMERA.field_of_view / 2))
    offsets = stratified(samples) if samples > 1 else np.array([[0.5, 0.5]])
    pixels = np.arange(SIZE)
    x = (2 * (pixels[None, :, None] + offsets[:, 0]) / SIZE - 1)[..., None]
    y = (1 - 2 * (pixels[:, None, None] + offsets[:, 1]) / SIZE)[..., None]
    directions = forward + spread * (x * right + y * up)
    return directions / np.linalg.norm(directions, axis=-1, keepdims=True)


def sphere_hits(directions: np.ndarray, centre: np.ndarray, radius: float) -> np.ndarray:
    offset = centre - CAMERA.position
    along = directions @ offset
    return (along > 0) & (offset @ offset - along**2 <= radius**2)


def box_hits(directions: np.ndarray, placement: Placement, origin: np.ndarray = CAMERA.position) -> np.ndarray:
    """Return whether rays from ``origin`` along ``directions`` hit the placement's bounding box."""
    turn = math.radians(placement.yaw)
    axes = np.array([[math.cos(turn), math.sin(turn), 0], [-math.sin(turn), math.cos(turn), 0], [0, 0, 1]])
    start, local = (origin - placement.centre) @ axes.T, directions @ axes.T
    half = np.array(placement.extent) * placement.factor / 2
    near, far = (-np.sign(local) * half - start) / local, (np.sign(local) * half - start) / local
    return (near.max(axis=-1) <= far.min(axis=-1)) & (far.min(axis=-1) > 0)


# Silhouettes


@pytest.mark.parametrize(("name", "samples"), [("red ball", 4), ("box", 1)])
def test_silhouettes_match_a_pinhole_camera(assets: MadeAssets, name: str, samples: int):
    placement = put(assets, name, 0.8, bearing=4.0, yaw=33.0)
    scene = Scene(CAMERA, "even", (placement,))
    rendering = EmbreeRenderer(assets, size=SIZE, samples=samples).render(scene)
    directions = every_ray(samples)
    if name == "box":
        hit = box_hits(directions, placement)
    else:
        hit = sphere_hits(directions, placement.centre, placement.extent[0] * placement.factor / 2)
    count = hit.sum(axis=-1)
    expected = (2 * count > samples) | ((2 * count == samples) & hit[..., 0])
    wrong = (rendering.instances == 1) != expected
    assert wrong.sum() <= 0.01 * expected.sum(), "only the ball's facets may differ"
    assert rendering.coverage.areas[0] == pytest.approx(hit.mean(), rel=0.01)


def test_the_nearer_object_hides_the_other(assets: MadeAssets):
    near, far = put(assets, "red ball", 0.65), put(assets, "green ball", 0.9, bearing=2.0)
    rendering = EmbreeRenderer(assets, size=SIZE).render(Scene(CAMERA, "even", (near, far)))
    swapped = EmbreeRenderer(assets, size=SIZE).render(Scene(CAMERA, "even", (far, near)))
    directions = every_ray(1)[:, :, 0]
    front, back = (sphere_hits(directions, each.centre, each.extent[0] * each.factor / 2) for each in (near, far))
    both = front & back
    assert both.sum() > 50
    assert (rendering.instances[both] == 1).mean() > 0.99
    assert rendering.coverage.visible[0] == 1.0
    assert rendering.coverage.visible[1] == pytest.approx((back & ~front).sum() / back.sum(), abs=0.03)
    np.testing.assert_array_equal(swapped.image, rendering.image)
    np.testing.assert_array_equal(swapped.instances, np.array([0, 2, 1])[rendering.instances])


def test_distances_agree_with_the_surface(assets: MadeAssets):
    placement = put(assets, "red ball", 0.9)
    directions = every_ray(1).reshape(-1, 3).astype(np.float32)
    hits = cast(body_of(assets, placement), CAMERA.position, directions)
    points = CAMERA.position + hits.distance[:, None] * directions[hits.ray]
    radius = placement.extent[0] * placement.factor / 2
    np.testing.assert_allclose(np.linalg.norm(points - placement.centre, axis=1), radius, rtol=2e-3)
    assert (points[:, 2] >= -1e-4).all()
    assert project(CAMERA, points, SIZE)[1].max() < 0.9 + 1e-6, "the near side is hit"
    surface = find_surface(body_of(assets, placement), hits, CAMERA.position, directions[hits.ray])
    outward = (points - placement.centre) / radius
    assert (surface.normals * outward).sum(axis=1).min() > 0.99
    np.testing.assert_allclose(surface.points, points, atol=1e-5)


def test_the_area_grows_with_the_square_of_the_scale(assets: MadeAssets):
    renderer = EmbreeRenderer(assets, size=SIZE, samples=1)
    reference = renderer.render(Scene(CAMERA, "even", (put(assets, "box", 1.0),))).coverage.areas[0]
    for distance in (0.6, 1.4):
        area = renderer.render(Scene(CAMERA, "even", (put(assets, "box", distance),))).coverage.areas[0]
        assert area / reference == pytest.approx((1.0 / distance) ** 2, rel=0.15)


def test_measure_estimates_the_coverage(assets: MadeAssets):
    scene = Scene(CAMERA, "even", (put(assets, "red ball", 0.7), put(assets, "box", 1.1, bearing=6.0)))
    renderer = EmbreeRenderer(assets, size=SIZE)
    measured, rendered = renderer.measure(scene), renderer.render(scene).coverage
    np.testing.assert_allclose(measured.areas, rendered.areas, rtol=0.1)
    np.testing.assert_allclose(measured.visible, rendered.visible, atol=0.06)


# Light


def test_an_even_sky_lights_evenly(assets: MadeAssets):
    """Under uniform light 1, a surface reflects its albedo times the transmitted light, plus the mirrored light."""
    environment, placement = assets.environment("even"), put(assets, "red ball", 0.8)
    directions = every_ray(1).reshape(-1, 3).astype(np.float32)
    body = body_of(assets, placement)
    hits = cast(body, CAMERA.position, directions)
    directions = directions[hits.ray]
    surface = find_surface(body, hits, CAMERA.position, directions)
    light = reflect(body, hits, surface, directions, environment, lit=np.ones((len(hits.ray), 3)), angle=0.01)
    head_on = surface.facing > 0.9
    np.testing.assert_allclose(
        light[head_on], np.broadcast_to(np.array(RED) * 0.96 + DIELECTRIC, light[head_on].shape), atol=0.01
    )
    assert light[surface.facing < 0.2].mean() > light[head_on].mean(), "reflection grows at grazing angles"


def test_shadows_on_the_ground_fall_away_from_the_sun(assets: MadeAssets):
    placement = put(assets, "red ball", 0.9)
    shade = shade_ground([body_of(assets, placement)], assets.environment("sunny"), CAMERA, SIZE)
    assert shade.max() == 1.0
    assert (shade == 1).mean() > 0.45
    i, j = np.nonzero(shade[..., 1] < 0.5)
    directions = every_ray(1)[i, j, 0]
    points = CAMERA.position - directions * CAMERA.height / directions[:, 2:]
    away = points.mean(axis=0)[:2] - placement.position
    sun = np.array([1, 0.2])
    assert (away / np.linalg.norm(away)) @ (-sun / np.linalg.norm(sun)) > 0.9
    expected = placement.centre[2] * np.linalg.norm(sun) / 0.9
    assert np.linalg.norm(away) == pytest.approx(expected, rel=0.3)


def test_the_ground_is_dark_below_an_object_and_unchanged_far_away(assets: MadeAssets):
    placement = put(assets, "box", 0.9, yaw=10)
    shade = shade_ground([body_of(assets, placement)], assets.environment("even"), CAMERA, SIZE)
    directions = every_ray(1)[:, :, 0]
    points = CAMERA.position - directions * CAMERA.height / directions[..., 2:]
    distance = np.linalg.norm(points[..., :2] - placement.position, axis=-1)
    under = distance < 0.05
    np.testing.assert_allclose(shade[under], (1 - (1 - BOUNCE - FAINT) / (1 - FAINT)) ** DENSITY, rtol=1e-3)
    rings = [shade[(distance > low) & (distance < low + 0.05)].mean() for low in (0.15, 0.2, 0.3, 0.4)]
    assert rings == sorted(rings)
    assert rings[0] < 0.8


def test_the_share_of_light_is_one_above_an_object_and_small_inside(assets: MadeAssets):
    environment = assets.environment("even")
    body = body_of(assets, put(assets, "box", 0.9))
    centre = body.placement.centre
    top = np.add(centre, [0, 0, 0.3])[None].astype(np.float32)
    assert share_of_light([body], environment, top, np.array([[0, 0, 1]], dtype=np.float32)) == pytest.approx(1.0)
    inside = centre[None].astype(np.float32)
    share = share_of_light([body], environment, inside, np.array([[0, 0, 1]], dtype=np.float32))
    np.testing.assert_allclose(share, BOUNCE, atol=1e-3)


def test_blocked_pairs_match_a_ray_box_test(assets: MadeAssets):
    placement = put(assets, "box", 0.9, yaw=25)
    body, rng = body_of(assets, placement), np.random.default_rng(0)
    points = (placement.centre + rng.uniform(-0.3, 0.3, (40, 3))).astype(np.float32)
    lights = rng.normal(size=(30, 3))
    lights = (lights / np.linalg.norm(lights, axis=1, keepdims=True)).astype(np.float32)
    wanted = rng.random((40, 30)) < 0.8
    blocked = is_blocked([body], points, lights, wanted)
    assert not blocked[~wanted].any()
    expected = box_hits(lights, placement, points[:, None])
    assert ((blocked != expected) & wanted).mean() < 0.005


def test_values_are_interpolated_between_similar_pixels():
    rows, columns = (axis.reshape(-1) for axis in np.mgrid[0:9, 0:9])
    order = np.argsort((rows % 2 + columns % 2) > 0, kind="stable")
    rows, columns = rows[order], columns[order]
    lattice = np.arange(25).reshape(5, 5)
    values = np.stack((rows[:25], columns[:25], rows[:25] + columns[:25]), axis=1).astype(np.float32)
    alike, trusted = fill_in(lattice, values, rows, columns, np.zeros((81, 2)), 2)
    assert trusted.all()
    np.testing.assert_allclose(alike[:, 2], rows + columns, atol=0.01)
    traits = np.where(columns[:, None] < 4, 0.0, 9.0) * np.ones((1, 2))
    apart, trusted = fill_in(lattice, values, rows, columns, traits, 2)
    assert apart[(columns == 3) & trusted, 1] == pytest.approx(2.0, abs=0.01), "no value crosses the edge"
    lattice[:] = -1
    assert not fill_in(lattice, values, rows, columns, np.zeros((81, 2)), 2)[1].any()


def test_tone_is_monotone_and_smooth():
    light = np.linspace(0, 4, 4001)
    shown = tone(light)
    slope = np.diff(shown) / np.diff(light)
    assert (slope >= 0).all()
    assert slope.max() <= 1 + 1e-6
    assert np.abs(np.diff(slope)).max() < 0.01
    assert shown.max() <= 1


def test_exposure_follows_the_light_and_is_bounded():
    forward = np.array([1.0, 0, 0])
    dim, bright = (light_environment(even_sky(light)) for light in (0.01, 100.0))
    views = [np.full((10, 3), light) for light in (0.01, 100.0)]
    exposures = [choose_exposure(sky, view, forward) for sky, view in zip((dim, bright), views, strict=True)]
    assert exposures[0] / exposures[1] == pytest.approx(1e4, rel=0.01)
    dark_view = choose_exposure(dim, np.zeros((10, 3)), forward)
    surface = 0.4 * irradiance(dim, np.array([[0, 0, 1.0]], dtype=np.float32)).mean() / np.pi
    assert dark_view * surface == pytest.approx(1.4 * 0.25, rel=0.01), (
        "a black background does not overexpose the objects"
    )


# The whole image


def test_members_share_their_background_exactly(assets: MadeAssets):
    renderer = EmbreeRenderer(assets, size=SIZE)
    scenes = [
        Scene(CAMERA, "noise", (put(assets, "red ball", near), put(assets, "box", far, bearing=8.0)))
        for near, far in ((0.6, 1.2), (0.9, 1.0))
    ]
    shades = [
        shade_ground([body_of(assets, each) for each in scene.objects], assets.environment("noise"), CAMERA, SIZE)
        for scene in scenes
    ]
    first, second = (renderer.render(scene) for scene in scenes)
    empty = renderer.render(Scene(CAMERA, "noise", ()))
    objects = (first.instances > 0) | (second.instances > 0)
    touched = cv2.dilate(objects.astype(np.uint8), np.ones((5, 5))) > 0
    far = ~touched & (shades[0] == 1).all(axis=-1) & (shades[1] == 1).all(axis=-1)
    assert far.mean() > 0.25
    np.testing.assert_array_equal(first.image[far], second.image[far])
    np.testing.assert_array_equal(first.image[far], empty.image[far])


def test_objects_keep_their_colours(assets: MadeAssets):
    scene = Scene(CAMERA, "even", (put(assets, "red ball", 0.7, bearing=-8), put(assets, "green ball", 0.7, bearing=8)))
    rendering = EmbreeRenderer(assets, size=SIZE, samples=1).render(scene)
    red, green = (rendering.image[rendering.instances == index].mean(axis=0) for index in (1, 2))
    assert red[0] > 1.7 * red[1]
    assert green[1] > 1.7 * green[0]


def test_the_same_scene_gives_the_same_pixels_after_any_other(assets: MadeAssets):
    scene = Scene(CAMERA, "noise", (put(assets, "red ball", 0.7), put(assets, "box", 1.1, bearing=6.0)))
    renderer = EmbreeRenderer(assets, size=SIZE)
    first = renderer.render(scene)
    for panorama in ("even", "sunny", "noise"):
        renderer.render(Scene(CAMERA, panorama, (put(assets, "box", 0.8),)))
    for again in (renderer.render(scene), RENDERERS["embree"](assets, size=SIZE, samples=4).render(scene)):
        np.testing.assert_array_equal(first.image, again.image)
        np.testing.assert_array_equal(first.instances, again.instances)
        assert first.coverage == again.coverage


def test_edges_are_anti_aliased(assets: MadeAssets):
    """More samples per pixel come closer to an image with many."""
    scene = Scene(CAMERA, "even", (put(assets, "red ball", 0.7),))
    images = [EmbreeRenderer(assets, size=SIZE, samples=n).render(scene).image.astype(float) for n in (1, 4, 16)]
    errors = [np.abs(image - images[2]).mean() for image in images[:2]]
    assert errors[1] < 0.5 * errors[0]


def test_faces_and_weights_give_the_hit_points(assets: MadeAssets):
    placement = put(assets, "box", 0.8, yaw=20)
    body = body_of(assets, placement)
    directions = every_ray(1).reshape(-1, 3).astype(np.float32)
    hits: Hits = cast(body, CAMERA.position, directions)
    np.testing.assert_allclose(hits.weights.sum(axis=1), 1, atol=1e-5)
    corners = body.to_world(body.mesh.vertices, points=True)[body.mesh.faces[hits.face]]
    points = (corners * hits.weights[..., None]).sum(axis=1)
    expected = CAMERA.position + hits.distance[:, None] * directions[hits.ray]
    np.testing.assert_allclose(points, expected, atol=1e-4)
    np.testing.assert_allclose(body.to_mesh(body.to_world(points, points=True), points=True), points, atol=1e-5)
