"""Meshes from files: position, materials, and broken files."""

import json
import struct

import numpy as np
import pytest
import trimesh
from object_inputs import MESHES, needs_samples, textured_box, write_glb, write_obj
from PIL import Image

from localscale.errors import DataError
from localscale.lab.data.objects.catalog import checksum, read_meshes
from localscale.lab.data.objects.materials import GREY
from localscale.lab.data.objects.meshes import class_name, load_mesh
from localscale.lab.data.objects.textures import build_texture, decode_srgb, encode_srgb, sample_texture


def save_texture(path, colour=(200, 100, 50)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), colour).save(path)


# Position


def test_a_mesh_stands_on_the_ground_and_is_centred(tmp_path):
    box = textured_box((0.2, 0.1, 0.3))
    box.apply_translation((3.0, -2.0, 7.5))
    mesh = load_mesh(write_glb(tmp_path / "box.glb", box))
    np.testing.assert_allclose(mesh.vertices.min(axis=0), [-0.1, -0.05, 0], atol=1e-6)
    np.testing.assert_allclose(mesh.vertices.max(axis=0), [0.1, 0.05, 0.3], atol=1e-6)
    np.testing.assert_allclose(mesh.extent, [0.2, 0.1, 0.3], atol=1e-6)
    assert mesh.notes == ()


def test_y_up_is_rotated_and_not_mirrored(tmp_path):
    tetrahedron = trimesh.Trimesh(
        [[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3.0]], [[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]
    )
    path = write_glb(tmp_path / "t.glb", tetrahedron)
    mesh = load_mesh(path, up="y")
    np.testing.assert_allclose(mesh.extent, [1, 3, 2], atol=1e-6)
    a, b, c = (mesh.vertices[mesh.faces][:, corner].astype(np.float64) for corner in range(3))
    volume = np.einsum("fi,fi->", a, np.cross(b, c)) / 6
    assert volume == pytest.approx(1.0), "a mirrored mesh would have a negative volume"


def test_parts_are_placed_by_their_nodes(tmp_path):
    scene = trimesh.Scene()
    scene.add_geometry(textured_box((0.1, 0.1, 0.1)), transform=trimesh.transformations.translation_matrix([0.4, 0, 0]))
    scene.add_geometry(trimesh.creation.icosphere(radius=0.05))
    mesh = load_mesh(write_glb(tmp_path / "two.glb", scene))
    np.testing.assert_allclose(mesh.extent[0], 0.45 + 0.05, atol=1e-3)
    assert len(mesh.materials) == 2
    assert set(mesh.material_of) == {0, 1}
    assert sum(material.texture is not None for material in mesh.materials) == 1
    assert mesh.notes == ("no UVs and no texture; mid-grey used",)


def test_normals_are_smooth_across_seams_and_point_out(tmp_path):
    sphere = trimesh.creation.icosphere(subdivisions=3)
    torn = trimesh.Trimesh(
        sphere.triangles.reshape(-1, 3), np.arange(3 * len(sphere.faces)).reshape(-1, 3), process=False
    )
    mesh = load_mesh(write_glb(tmp_path / "ball.glb", torn))
    outward = (mesh.vertices - [0, 0, 1]) / np.linalg.norm(mesh.vertices - [0, 0, 1], axis=1, keepdims=True)
    assert (mesh.normals * outward).sum(axis=1).min() > 0.999


# Materials


def test_texture_keeps_its_colours(tmp_path):
    save_texture(tmp_path / "Cup" / "meshes" / "texture.png")
    mesh = load_mesh(write_obj(tmp_path / "Cup" / "meshes" / "model.obj"))
    expected = decode_srgb(np.array([200, 100, 50], dtype=np.uint8))
    np.testing.assert_allclose(mesh.materials[0].texture.texels, np.broadcast_to(expected, (85, 3)), atol=1e-6)
    assert mesh.uv.shape == (len(mesh.vertices), 2)
    assert mesh.materials[0].colour == (1.0, 1.0, 1.0)


def test_textures_in_the_folder_of_google_scanned_objects_are_found(tmp_path):
    save_texture(tmp_path / "Cup" / "materials" / "textures" / "texture.png")
    path = write_obj(tmp_path / "Cup" / "meshes" / "model.obj")
    assert load_mesh(path).materials[0].texture is not None
    assert class_name(path) == "Cup"


def test_a_colour_replaces_a_missing_texture(tmp_path):
    box = trimesh.creation.box()
    box.visual = trimesh.visual.TextureVisuals(
        material=trimesh.visual.material.PBRMaterial(baseColorFactor=[255, 51, 0, 255])
    )
    mesh = load_mesh(write_glb(tmp_path / "red.glb", box))
    assert mesh.materials[0].colour == pytest.approx((1.0, 0.2, 0.0))
    assert mesh.notes == ("no UVs and no texture; base colour used",)
    plain = load_mesh(write_obj(tmp_path / "plain.obj", material=None))
    assert plain.materials[0].texture is None
    assert plain.notes == ("no texture; mid-grey used",)
    assert plain.materials[0].colour == GREY
    path = write_obj(tmp_path / "painted.obj")
    (tmp_path / "model.mtl").write_text("newmtl skin\nKd 1.0 0.5 0.0\n")
    painted = load_mesh(path)
    assert painted.notes == ("no texture; base colour used",)
    assert painted.materials[0].colour == pytest.approx((1.0, 0.212, 0.0), abs=0.01)


def test_vertex_colours_replace_a_missing_texture(tmp_path):
    box = trimesh.creation.box()
    codes = np.random.default_rng(0).integers(0, 256, (8, 3), dtype=np.uint8)
    box.visual = trimesh.visual.ColorVisuals(box, vertex_colors=np.column_stack((codes, np.full(8, 255))))
    mesh = load_mesh(write_glb(tmp_path / "coloured.glb", box))
    assert mesh.notes == ("no UVs and no texture; vertex colours used",)
    assert mesh.colours.shape == mesh.vertices.shape
    assert {tuple(row) for row in encode_srgb(mesh.colours)} == {tuple(row) for row in codes}


# Textures


def test_srgb_round_trip():
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(encode_srgb(decode_srgb(codes)), codes)


def test_all_mip_levels_have_the_same_mean_light():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 32, 3), dtype=np.uint8))
    texture = build_texture(image)
    assert texture.shapes.tolist() == [[64 >> k, max(1, 32 >> k)] for k in range(7)]
    expected = decode_srgb(np.asarray(image)).mean(axis=(0, 1))
    ends = np.append(texture.starts[1:], len(texture.texels))
    for start, end in zip(texture.starts, ends, strict=True):
        np.testing.assert_allclose(texture.texels[start:end].mean(axis=0), expected, rtol=1e-4)
    assert build_texture(Image.new("RGB", (3000, 1000))).shapes[0].tolist() == [171, 512]


def test_sampling_matches_a_loop():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    texture, light = build_texture(Image.fromarray(pixels)), decode_srgb(pixels)
    uv = rng.uniform(-1.5, 2.5, (50, 2))
    sampled = sample_texture(texture, uv.astype(np.float64), np.zeros(50))
    for (u, v), value in zip(uv, sampled, strict=True):
        x, y = u * 5 - 0.5, (1 - v) * 6 - 0.5
        j, i = int(np.floor(x)), int(np.floor(y))
        expected = sum(
            (1 - abs(x - j - dj)) * (1 - abs(y - i - di)) * light[(i + di) % 6, (j + dj) % 5]
            for di in (0, 1)
            for dj in (0, 1)
        )
        np.testing.assert_allclose(value, expected, atol=1e-5)
    centre = np.array([[2.5 / 5, 1 - 3.5 / 6]])
    np.testing.assert_allclose(sample_texture(texture, centre, np.zeros(1))[0], light[3, 2], atol=1e-6)
    np.testing.assert_allclose(sample_texture(texture, centre, np.array([99.0]))[0], light.mean(axis=(0, 1)), atol=0.02)


# Broken meshes


def broken_vertices(tmp_path, values):
    """Write a GLB whose positions are overwritten with ``values``."""
    data = bytearray(textured_box().export(file_type="glb"))
    length = struct.unpack_from("<I", data, 12)[0]
    tree = json.loads(data[20 : 20 + length])
    accessor = tree["accessors"][tree["meshes"][0]["primitives"][0]["attributes"]["POSITION"]]
    view = tree["bufferViews"][accessor["bufferView"]]
    start = 28 + length + view.get("byteOffset", 0) + accessor.get("byteOffset", 0)
    struct.pack_into(f"<{len(values)}f", data, start, *values)
    path = tmp_path / "broken.glb"
    path.write_bytes(data)
    return path


def test_broken_files_are_refused_with_the_reason(tmp_path):
    cases = {
        "empty.glb": (b"", r"mesh empty is empty \(zero bytes\)"),
        "text.glb": (b"this is no mesh at all", "mesh text: it cannot be read"),
        "cut.glb": (textured_box().export(file_type="glb")[:300], "mesh cut: it cannot be read"),
        "points.obj": (b"v 0 0 0\nv 1 0 0\n", "mesh points(: it cannot be read| has no faces)"),
        "line.obj": (b"v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n", "mesh line measures 2 × 0 × 0; expected a solid object"),
        "sheet.obj": (b"v 0 0 0\nv 1 0 0\nv 0 1 0\nv 1 1 0\nf 1 2 3\nf 2 4 3\n", "mesh sheet measures 1 × 1 × 0"),
        "torn.obj": (b"v 0 0 0\nv 1 0 0\nv 0 1 1\nf 1 2 9\n", "mesh torn"),
        "notes.txt": (b"x", r"mesh notes.txt is not a .glb or .obj file"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=message):
            load_mesh(tmp_path / name)
    with pytest.raises(DataError, match="mesh gone cannot be read: No such file"):
        load_mesh(tmp_path / "gone.glb")


def test_vertices_that_are_not_finite_are_counted(tmp_path):
    with pytest.raises(DataError, match=r"mesh broken has 2 of \d+ vertices that are not finite numbers"):
        load_mesh(broken_vertices(tmp_path, [np.nan, 0, 0, 0, np.inf, 0]))


def test_missing_files_and_files_outside_the_meshes_folder_are_refused(tmp_path):
    save_texture(tmp_path / "secret.png")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "texture.png").symlink_to(tmp_path / "secret.png")
    cases = {
        write_obj(
            tmp_path / "a" / "cup.obj", texture="../secret.png"
        ): '"../secret.png", which lies outside its folder',
        write_obj(tmp_path / "b" / "jug.obj"): 'mesh jug: it refers to "texture.png", which does not exist',
        write_obj(
            tmp_path / "c" / "mug.obj", material="../a/model.mtl"
        ): '"../a/model.mtl", which lies outside its folder',
        write_obj(tmp_path / "d" / "pot.obj"): "which lies outside its folder",
    }
    for path, message in cases.items():
        with pytest.raises(DataError, match=message):
            load_mesh(path)


def test_broken_textures_are_reported(tmp_path):
    save_texture(tmp_path / "texture.png")
    data = (tmp_path / "texture.png").read_bytes()
    path = write_obj(tmp_path / "cup.obj")
    for broken, message in (
        (b"no image", r'its texture "texture.png" is not a readable image'),
        (data[: len(data) // 2 + 8], "broken"),
    ):
        (tmp_path / "texture.png").write_bytes(broken)
        with pytest.raises(DataError, match=f"mesh cup: {message}|mesh cup: it cannot be read"):
            load_mesh(path)
    data = textured_box(size=(64, 64)).export(file_type="glb")
    start = data.index(b"IDAT")
    (tmp_path / "jug.glb").write_bytes(data[: start + 50] + bytes(2000) + data[start + 2050 :])
    with pytest.raises(DataError, match=r"mesh jug: it cannot be read \(OSError: broken data stream"):
        load_mesh(tmp_path / "jug.glb")


# Folders of meshes


def test_rejected_meshes_are_listed_and_the_others_are_used(tmp_path):
    for name in ("b", "a"):
        write_glb(tmp_path / f"{name}.glb", textured_box())
    (tmp_path / "bad.glb").write_bytes(b"")
    write_glb(tmp_path / "more" / "a.glb", textured_box((0.1, 0.1, 0.1)))
    entries, rejected = read_meshes(tmp_path)
    assert [entry.name for entry in entries] == ["a", "b"]
    assert entries[0].extent == pytest.approx((0.2, 0.1, 0.3))
    assert {each.file: each.reason for each in rejected} == {
        "bad.glb": "mesh bad is empty (zero bytes)",
        "more/a.glb": "another file has the name a, too",
    }
    assert str(tmp_path) not in str(rejected)


def test_too_few_meshes_are_reported(tmp_path):
    with pytest.raises(DataError, match=r"has no .glb or .obj files"):
        read_meshes(tmp_path)
    with pytest.raises(DataError, match=r"gone is not a folder; expected one with .glb or .obj files"):
        read_meshes(tmp_path / "gone")
    write_glb(tmp_path / "a.glb", textured_box())
    (tmp_path / "bad.glb").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"1 usable meshes; expected at least 2, because a scene shows two classes; bad.glb was"
    ):
        read_meshes(tmp_path)


def test_digests_and_checksums_depend_on_all_files(tmp_path):
    save_texture(tmp_path / "texture.png")
    path = write_obj(tmp_path / "cup.obj")
    first = load_mesh(path).digest
    assert load_mesh(path).digest == first
    save_texture(tmp_path / "texture.png", (1, 2, 3))
    second = load_mesh(path).digest
    path.write_text(path.read_text() + "# changed\n")
    assert len({first, second, load_mesh(path).digest}) == 3
    write_glb(tmp_path / "a.glb", textured_box())
    entries = read_meshes(tmp_path)[0]
    assert checksum(entries) != checksum(entries[:1])


@needs_samples
def test_sample_meshes_are_all_usable():
    entries, rejected = read_meshes(MESHES)
    assert len(entries) == 100
    assert rejected == []
    assert all(entry.notes == () for entry in entries)
    assert all(0.02 < max(entry.extent) < 0.6 for entry in entries), "metres"


def test_damaged_meshes_are_refused_or_read(tmp_path):
    """Whatever bytes change, the result is a mesh or a DataError."""
    save_texture(tmp_path / "texture.png")
    rng = np.random.default_rng(0)
    whole = {
        "box.glb": textured_box().export(file_type="glb"),
        "tent.obj": write_obj(tmp_path / "tent.obj").read_bytes(),
    }
    refused = 0
    for name, data in whole.items():
        for _ in range(30):
            damaged = np.frombuffer(data, dtype=np.uint8).copy()
            where = rng.integers(0, min(len(damaged), 1500), rng.integers(1, 12))
            damaged[where] = rng.integers(0, 256, len(where))
            (tmp_path / name).write_bytes(damaged.tobytes()[: rng.integers(1, 2 * len(data))])
            try:
                mesh = load_mesh(tmp_path / name)
            except DataError:
                refused += 1
            else:
                assert np.isfinite(mesh.vertices).all()
                assert np.isfinite(mesh.normals).all()
                assert mesh.faces.max() < len(mesh.vertices)
    assert refused > 30
