"""Panoramas and their light, compared with brute force."""

import numpy as np
import pytest
from object_inputs import PANORAMAS, even_sky, needs_samples, noisy_radiance, sunny_sky, write_exr, write_hdr

from localscale.errors import DataError
from localscale.lab.data.objects.catalog import read_panoramas
from localscale.lab.data.objects.lighting import ROUGHNESS, irradiance, light_environment, luminance, reflection
from localscale.lab.data.objects.panoramas import (
    Panorama,
    directions_of,
    load_panorama,
    sample_panorama,
    split_panoramas,
)


def unit_vectors(count: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, 3))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def integrate(radiance: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """E(n) = ∫ L max(0, n·ω) dω, texel by texel."""
    looks, solid_angle = directions_of(*radiance.shape[:2])
    weight = np.maximum(looks @ normal, 0) * solid_angle[:, None]
    return (radiance * weight[..., None]).sum(axis=(0, 1))


# Sampling


def test_sampling_in_a_texels_direction_returns_the_texel():
    radiance = noisy_radiance(16)
    looks, solid_angle = directions_of(16, 32)
    np.testing.assert_allclose(sample_panorama(radiance, looks), radiance, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(looks, axis=-1), 1)
    assert solid_angle.sum() * 32 == pytest.approx(4 * np.pi)
    assert looks[0, 0, 2] > 0.9, "row 0 looks up"
    assert looks[8, 15, 0] > 0.9, "the middle looks along +x"
    assert looks[8, 8, 1] > 0.9, "the left quarter looks along +y: seen from inside, +y is left of +x"


def test_sampling_matches_a_loop_and_wraps_around_the_seam():
    radiance = noisy_radiance(8, seed=1)
    directions = np.concatenate([unit_vectors(200), [[-1, 1e-4, 0.1], [-1, -1e-4, 0.1], [0, 0, 1], [0, 0, -1]]])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    found = sample_panorama(radiance, directions)
    for (dx, dy, dz), value in zip(directions, found, strict=True):
        x = (0.5 - np.arctan2(dy, dx) / (2 * np.pi)) * 16 - 0.5
        y = np.clip(np.arccos(np.clip(dz, -1, 1)) / np.pi * 8 - 0.5, 0, 7)
        j, i = int(np.floor(x)), int(np.floor(y))
        expected = sum(
            (1 - abs(x - j - dj)) * (1 - abs(y - i - di)) * radiance[min(i + di, 7), (j + dj) % 16]
            for di in (0, 1)
            for dj in (0, 1)
        )
        np.testing.assert_allclose(value, expected, atol=1e-5)
    np.testing.assert_allclose(found[-4], found[-3], atol=1e-3)


# Lighting


def test_irradiance_matches_brute_force_for_a_smooth_sky():
    looks, _ = directions_of(64, 128)
    sky = 1 + 0.8 * looks[..., 2:] + 0.3 * looks[..., :1] * looks[..., 1:2] + np.array([0, 0.1, 0.2])
    environment = light_environment(Panorama("smooth", sky.astype(np.float32)))
    normals = unit_vectors(50)
    for normal, value in zip(normals, irradiance(environment, normals), strict=True):
        np.testing.assert_allclose(value, integrate(sky, normal), rtol=2e-3)


def test_irradiance_of_other_skies_is_close():
    """Order 2 omits the lobe's higher orders: a few percent of the mean, more for a single sun."""
    for panorama, tolerance in ((Panorama("noise", noisy_radiance(64)), 0.01), (sunny_sky((1, 1, 1)), 0.30)):
        environment = light_environment(panorama)
        normals = unit_vectors(60)
        exact = np.array([integrate(panorama.radiance, normal) for normal in normals])
        found = irradiance(environment, normals)
        assert found.min() > 0
        error = np.abs(found - exact)
        assert error.max() < tolerance * exact.mean() * (4 if panorama.name == "sunny" else 1)
        assert error.mean() < tolerance * exact.mean()


@pytest.mark.parametrize("panorama", [even_sky(), Panorama("noise", noisy_radiance(64)), sunny_sky((0.1, 0.2, 1.0))])
def test_the_powers_of_the_lights_add_up_to_the_panorama(panorama):
    environment = light_environment(panorama, lights=48)
    _, solid_angle = directions_of(*panorama.radiance.shape[:2])
    total = (panorama.radiance * solid_angle[:, None, None]).sum(axis=(0, 1))
    assert environment.lights.shape == environment.powers.shape == (48, 3)
    np.testing.assert_allclose(environment.powers.sum(axis=0), total, rtol=1e-4)
    assert environment.spans.sum() == pytest.approx(4 * np.pi, rel=1e-5)
    np.testing.assert_allclose(np.linalg.norm(environment.lights, axis=1), 1, atol=1e-5)


def test_lights_illuminate_as_the_panorama_does():
    """Most of a sun's power is in lights that point at it."""
    for panorama in (even_sky(), Panorama("noise", noisy_radiance(64)), sunny_sky((1, 0.5, 0.8))):
        environment = light_environment(panorama)
        for normal in unit_vectors(10):
            by_lights = (np.maximum(environment.lights @ normal, 0)[:, None] * environment.powers).sum(axis=0)
            exact = integrate(panorama.radiance, normal)
            assert np.abs(by_lights - exact).max() < 0.06 * environment.powers.sum() / 3 / 2
    sun = np.array([1, 0.5, 0.8]) / np.linalg.norm([1, 0.5, 0.8])
    toward = environment.lights @ sun > np.cos(np.radians(6))
    assert luminance(environment.powers)[toward].sum() > 0.8 * luminance(environment.powers).sum()
    assert toward.sum() <= 24, "a sun does not take all lights"


def test_blurring_keeps_the_mean_and_grows_with_roughness():
    panorama = sunny_sky((1, 0, 0.3))
    environment = light_environment(panorama)
    for copy in environment.blurred:
        _, solid_angle = directions_of(*copy.shape[:2])
        mean = (copy * solid_angle[:, None, None]).sum(axis=(0, 1)) / (4 * np.pi)
        np.testing.assert_allclose(mean, environment.powers.sum(axis=0) / (4 * np.pi), rtol=0.06)
    peaks = [copy.max() for copy in environment.blurred]
    assert peaks == sorted(peaks, reverse=True)
    directions = unit_vectors(30)
    for level, roughness in enumerate(ROUGHNESS):
        np.testing.assert_array_equal(
            reflection(environment, directions, roughness), sample_panorama(environment.blurred[level], directions)
        )
    between = reflection(environment, directions, 0.6)
    low, high = reflection(environment, directions, 0.5), reflection(environment, directions, 0.7)
    np.testing.assert_allclose(between, (low + high) / 2, rtol=1e-4)


# Files


def test_hdr_and_exr_give_the_same_light(tmp_path):
    radiance = noisy_radiance(16)
    from_exr = load_panorama(write_exr(tmp_path / "sky.exr", {"RGB": radiance}))
    np.testing.assert_array_equal(from_exr.radiance, radiance)
    from_hdr = load_panorama(write_hdr(tmp_path / "sky.hdr", radiance))
    np.testing.assert_allclose(from_hdr.radiance, radiance, rtol=0.01, atol=0.01)
    alpha = np.concatenate((radiance, np.ones((16, 32, 1), dtype=np.float32)), axis=2).astype(np.float16)
    half = load_panorama(write_exr(tmp_path / "half.exr", {"RGBA": alpha}))
    assert half.name == "half"
    assert half.radiance.dtype == np.float32
    np.testing.assert_allclose(half.radiance, radiance, rtol=1e-3)
    apart = {name: radiance[..., index].copy() for index, name in enumerate("RGB")}
    np.testing.assert_array_equal(load_panorama(write_exr(tmp_path / "apart.exr", apart)).radiance, radiance)


def test_large_panoramas_are_shrunk(tmp_path):
    panorama = load_panorama(write_hdr(tmp_path / "large.hdr", np.ones((1100, 2200, 3))))
    assert panorama.radiance.shape == (1024, 2048, 3)


def test_broken_panoramas_are_refused_with_the_reason(tmp_path):
    good = noisy_radiance(16)
    nan, negative = good.copy(), good.copy()
    nan[3, 4, 1], nan[5, 6, 0], negative[7, 8, 2] = np.nan, np.inf, -0.1
    (tmp_path / "empty.hdr").write_bytes(b"")
    (tmp_path / "text.hdr").write_bytes(b"no panorama")
    (tmp_path / "text.exr").write_bytes(b"no panorama")
    (tmp_path / "sky.png").write_bytes(b"x")
    cases = {
        tmp_path / "empty.hdr": r"panorama empty.hdr is empty \(zero bytes\)",
        tmp_path / "text.hdr": "panorama text.hdr is a broken .hdr file",
        tmp_path / "text.exr": "panorama text.exr is a broken .exr file",
        tmp_path / "sky.png": "panorama sky.png is not a .hdr or .exr file",
        tmp_path / "gone.hdr": "panorama gone.hdr cannot be read: No such file",
        write_exr(tmp_path / "nan.exr", {"RGB": nan}): "panorama nan.exr has 2 pixels that are not finite numbers",
        write_exr(tmp_path / "minus.exr", {"RGB": negative}): "panorama minus.exr has 1 pixels with negative light",
        write_exr(tmp_path / "depth.exr", {"Z": good[..., 0].copy()}): "has channels Z; expected R, G and B",
        write_hdr(tmp_path / "square.hdr", np.ones((32, 32, 3))): "square.hdr has 32×32 pixels; expected twice as wide",
        write_hdr(tmp_path / "black.hdr", np.zeros((16, 32, 3))): "panorama black.hdr is black everywhere",
    }
    for path, message in cases.items():
        with pytest.raises(DataError, match=message):
            load_panorama(path)


def test_rejected_panoramas_are_listed_and_the_others_are_used(tmp_path):
    for name in ("b", "a"):
        write_hdr(tmp_path / f"{name}.hdr", noisy_radiance())
    write_hdr(tmp_path / "wide.hdr", np.ones((8, 32, 3)))
    entries, rejected = read_panoramas(tmp_path)
    assert [entry.name for entry in entries] == ["a", "b"]
    assert [each.file for each in rejected] == ["wide.hdr"]
    assert "expected twice as wide as high (2:1)" in rejected[0].reason
    (tmp_path / "a.hdr").unlink()
    with pytest.raises(DataError, match="1 usable panoramas; expected at least 2, because train and test share none"):
        read_panoramas(tmp_path)


# The split


def test_the_split_depends_on_the_names_only():
    names = [f"panorama {k}" for k in range(400)]
    split = split_panoramas(names)
    assert sorted(split["train"] + split["test"]) == sorted(names)
    assert 0.18 < len(split["test"]) / 400 < 0.32
    assert split == split_panoramas(reversed(names))
    fewer = split_panoramas(names[:200])
    assert set(fewer["test"]) <= set(split["test"])
    assert set(fewer["train"]) <= set(split["train"])


def test_no_split_is_empty():
    for start in range(20):
        assert all(split_panoramas([f"{start} a", f"{start} b"]).values())
    with pytest.raises(DataError, match="1 usable panoramas; expected at least 2"):
        split_panoramas(["alone"])


@needs_samples
def test_sample_panoramas_are_all_usable():
    entries, rejected = read_panoramas(PANORAMAS)
    assert len(entries) == 22
    assert rejected == []
    split = split_panoramas(entry.name for entry in entries)
    assert 2 <= len(split["test"]) <= 9
