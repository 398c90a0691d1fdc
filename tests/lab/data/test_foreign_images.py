"""Files in unexpected formats start no program, and huge images are refused before they are decoded."""

import ast
import io
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import trimesh
from PIL import EpsImagePlugin, Image

import localscale
from localscale.errors import DataError
from localscale.lab.data.images import open_image, read_image, read_labels
from localscale.lab.data.objects.embedded import embedded_images
from localscale.lab.data.objects.meshes import load_mesh
from localscale.lab.data.objects.panoramas import load_panorama

ROOT = Path(__file__).parents[3]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\n0 0 16 16 rectfill\nshowpage\n%%EOF\n"


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch):
    """Fail a test in which Pillow would start Ghostscript."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("an interpreter was started"))


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def test_every_call_of_image_open_names_its_formats():
    wrong = []
    for part in (Path(localscale.__file__).parent, *(ROOT / name for name in ("benchmarks", "demo", "examples"))):
        for path in part.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Image.open"):
                    wrong += [] if any(word.arg == "formats" for word in node.keywords) else [f"{path}:{node.lineno}"]
    assert wrong == []


@pytest.mark.parametrize("name", ["photo.png", "photo.eps", "photo.jpg"])
def test_an_eps_file_is_no_image(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(EPS)
    for read in (read_image, read_labels):
        with pytest.raises(DataError, match="is not a readable image"):
            read(tmp_path / name)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "AVIF", "GIF", "TIFF", "BMP", "PPM"])
def test_the_formats_of_photographs_are_read(form: str):
    if form not in Image.SAVE:
        Image.init()
    read = read_image(saved(Image.new("RGB", (20, 30), "red"), form))
    assert (read.mode, read.size) == ("RGB", (20, 30))
    assert abs(read.getpixel((9, 9))[0] - 254) <= 2


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_of_an_animation_the_first_frame_is_read(form: str):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    data = saved(frames[0], form, save_all=True, append_images=frames[1:])
    red, _, blue = read_image(data).getpixel((5, 5))
    assert red > 250
    assert blue < 5


def test_a_huge_image_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch):
    data = saved(Image.new("I;16", (300, 200)), "TIFF", compression="tiff_deflate")
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("decoded"))
    with (
        pytest.raises(DataError, match="image has 300×200 pixels; at most 50,000 are read"),
        open_image(data, most_pixels=50_000),
    ):
        pass


def test_sixteen_bits_need_no_floating_point_copy():
    levels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = np.floor(levels / 257 + 0.5).astype(np.uint8)
    assert np.array_equal(np.asarray(read_image(saved(Image.fromarray(levels), "PNG")))[..., 0], expected)


def test_files_that_are_not_regular_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.png")
    for path, message in ((tmp_path / "pipe.png", "is not a regular file"), (tmp_path / "a\0b.png", "null")):
        with pytest.raises(DataError, match=message):
            read_image(path)
    with (tmp_path / "vast.png").open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(DataError, match=r"vast\.png has 3,221,225,472 bytes; at most"):
        read_image(tmp_path / "vast.png")


# Meshes and panoramas


def glb(header: dict, binary: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 4)
    binary += bytes(-len(binary) % 4)
    chunks = struct.pack("<II", len(text), 0x4E4F534A) + text + struct.pack("<II", len(binary), 0x004E4942) + binary
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks


def with_image(data: bytes, tmp_path: Path) -> Path:
    """Write a textured box whose image is replaced by ``data``."""
    box = trimesh.creation.box((0.2, 0.1, 0.3))
    uv = box.vertices[:, :2] + 0.5
    box.visual = trimesh.visual.TextureVisuals(uv, image=Image.new("RGB", (64, 64), "red"))
    whole = box.export(file_type="glb")
    length = struct.unpack_from("<I", whole, 12)[0]
    header, binary = json.loads(whole[20 : 20 + length]), whole[28 + length :]
    number = header["images"][0]["bufferView"]
    header["bufferViews"][number] = {"buffer": 0, "byteOffset": len(binary), "byteLength": len(data)}
    header["buffers"][0]["byteLength"] = len(binary) + len(data)
    (tmp_path / "box.glb").write_bytes(glb(header, binary + data))
    return tmp_path / "box.glb"


def test_a_texture_inside_a_mesh_is_checked(tmp_path: Path):
    good = load_mesh(with_image(saved(Image.new("RGB", (32, 32), "blue"), "PNG"), tmp_path))
    assert good.materials[0].texture is not None
    with pytest.raises(DataError, match="mesh box: one of its textures is not a readable image"):
        load_mesh(with_image(EPS, tmp_path))
    vast = saved(Image.new("1", (9000, 9000)), "PNG")
    with pytest.raises(DataError, match="one of its textures has 9000×9000 pixels"):
        load_mesh(with_image(vast, tmp_path))


@pytest.mark.parametrize("texture", ["skin.png", "skin.eps", "skin.mtl", "skin"])
def test_a_texture_beside_a_mesh_is_checked(texture: str, tmp_path: Path):
    (tmp_path / "cup.obj").write_text(
        "mtllib cup.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nvt 0 0\nvt 1 0\nvt 0 1\nusemtl skin\n"
        "f 1/1 3/3 2/2\nf 1/1 2/2 4/3\nf 2/2 3/3 4/1\nf 3/3 1/1 4/2\n"
    )
    (tmp_path / "cup.mtl").write_text(f"newmtl skin\nmap_Kd {texture}\n")
    (tmp_path / texture).write_bytes(EPS)
    if texture == "skin.mtl":  # the mesh is grey, as with any text in place of an image
        assert load_mesh(tmp_path / "cup.obj").materials[0].texture is None
    else:
        with pytest.raises(DataError, match=rf'its texture "{texture}" is not a readable image'):
            load_mesh(tmp_path / "cup.obj")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"buffers": [{"uri": "/etc/passwd"}]}, "keeps its geometry outside the file"),
        ({"buffers": [{}, {}]}, "keeps its geometry outside the file"),
        ({"images": {}}, "its images are not a list"),
        ({"images": [{"bufferView": 3}]}, "lies outside the file"),
        ({"images": [{"bufferView": -1}], "bufferViews": [{"buffer": 0, "byteLength": 1}]}, "lies outside the file"),
        ({"images": [{"bufferView": 0}], "bufferViews": [{"buffer": -1, "byteLength": 1}]}, "lies outside the file"),
        ({"images": [{"bufferView": 0}], "bufferViews": [{"buffer": 0, "byteLength": 99}]}, "lies outside the file"),
        ({"images": [{"uri": "data:image/png;base64,A"}]}, "is not valid base64"),
        ([], "cannot be read as a GLB file"),
    ],
)
def test_a_glb_file_that_points_elsewhere_is_refused(header: dict, message: str):
    with pytest.raises(DataError, match=message):
        embedded_images(glb(header, b"1234"))


def test_embedded_images_are_found():
    views = [{"buffer": 0, "byteLength": 2}, {"buffer": 0, "byteOffset": 1, "byteLength": 3}]
    images = [{"bufferView": 1}, {"uri": "data:image/png;base64,YWJj"}, {"uri": "beside.png"}]
    assert embedded_images(glb({"bufferViews": views, "images": images}, b"1234")) == [b"234", b"abc"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (saved(Image.new("RGB", (32, 16)), "PNG"), "or another format under that name"),
        (EPS, "or another format under that name"),
        (b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 60000 +X 120000\n", "has 120000×60000 pixels; at most 200,000,000"),
    ],
)
def test_a_panorama_in_another_format_or_size_is_refused(data: bytes, message: str, tmp_path: Path):
    (tmp_path / "sky.hdr").write_bytes(data)
    with pytest.raises(DataError, match=message):
        load_panorama(tmp_path / "sky.hdr")
