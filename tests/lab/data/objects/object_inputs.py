"""Small meshes and panoramas for tests, and the folders of real ones."""

from pathlib import Path

import numpy as np
import pytest
import trimesh
from PIL import Image
from shared import SHARED

from localscale.lab.data.objects.casting import build_tree
from localscale.lab.data.objects.lighting import light_environment
from localscale.lab.data.objects.materials import Material
from localscale.lab.data.objects.meshes import Mesh
from localscale.lab.data.objects.panoramas import Panorama, directions_of

MESHES, PANORAMAS = SHARED / "gso", SHARED / "hdri"
needs_samples = pytest.mark.skipif(
    not (MESHES.is_dir() and PANORAMAS.is_dir()), reason="the sample meshes and panoramas (../shared/data) are absent"
)


def plain_mesh(shape: trimesh.Trimesh, colour: tuple[float, float, float] = (0.5, 0.5, 0.5)) -> Mesh:
    """Return a shape of one colour that stands on the ground as loaded meshes do."""
    vertices = shape.vertices - [*shape.bounds.mean(axis=0)[:2], shape.bounds[0, 2]]
    return Mesh(
        vertices=vertices.astype(np.float32),
        faces=shape.faces.astype(np.int32),
        normals=np.asarray(shape.vertex_normals, dtype=np.float32),
        face_normals=np.asarray(shape.face_normals, dtype=np.float32),
        uv=None,
        colours=None,
        materials=(Material(colour),),
        material_of=np.zeros(len(shape.faces), dtype=np.int32),
        texel_density=None,
        notes=(),
        digest="",
    )


def even_sky(light: float = 1.0, *, height: int = 32) -> Panorama:
    return Panorama("even", np.full((height, 2 * height, 3), light, dtype=np.float32))


def sunny_sky(sun: tuple[float, float, float], *, height: int = 64, strength: float = 3000.0) -> Panorama:
    """Return a dim sky with a bright patch in the direction ``sun``."""
    looks, _ = directions_of(height, 2 * height)
    direction = np.array(sun) / np.linalg.norm(sun)
    radiance = np.full((height, 2 * height, 3), 0.2)
    radiance[looks @ direction > np.cos(np.radians(3.5))] = strength
    return Panorama("sunny", radiance.astype(np.float32))


class MadeAssets:
    """Assets in memory."""

    def __init__(self, meshes: dict[str, Mesh], panoramas: dict[str, Panorama]) -> None:
        self._meshes = {name: (mesh, build_tree(mesh)) for name, mesh in meshes.items()}
        self._environments = {name: light_environment(panorama) for name, panorama in panoramas.items()}

    def mesh(self, name: str):
        return self._meshes[name]

    def environment(self, name: str):
        return self._environments[name]

    def extents(self) -> dict[str, tuple[float, float, float]]:
        return {name: tuple(float(side) for side in mesh.extent) for name, (mesh, _) in self._meshes.items()}


def textured_box(extents=(0.2, 0.1, 0.3), *, size: tuple[int, int] = (16, 16)) -> trimesh.Trimesh:
    box = trimesh.creation.box(extents=extents)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    uv = np.random.default_rng(1).random((len(box.vertices), 2))
    material = trimesh.visual.material.PBRMaterial(baseColorTexture=image, metallicFactor=0.0, roughnessFactor=0.7)
    box.visual = trimesh.visual.TextureVisuals(uv=uv, material=material)
    return box


def write_glb(path: Path, shape: trimesh.Trimesh | trimesh.Scene) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(shape.export(file_type="glb"))
    return path


def write_obj(path: Path, *, material: str | None = "model.mtl", texture: str = "texture.png") -> Path:
    """Write a textured tetrahedron as OBJ with a material file beside it; the caller writes the texture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [] if material is None else [f"mtllib {material}"]
    lines += ["v 0 0 0", "v 1 0 0", "v 0 1 0", "v 0 0 1", "vt 0 0", "vt 1 0", "vt 0 1", "vt 1 1"]
    lines += [] if material is None else ["usemtl skin"]
    lines += ["f 1/1 3/3 2/2", "f 1/1 2/2 4/4", "f 2/2 3/3 4/4", "f 3/3 1/1 4/4"]
    path.write_text("\n".join(lines) + "\n")
    if material is not None and "/" not in material:
        (path.parent / material).write_text(f"newmtl skin\nKd 0.8 0.8 0.8\nmap_Kd {texture}\n")
    return path


def write_hdr(path: Path, radiance: np.ndarray) -> Path:
    cv2 = pytest.importorskip("cv2")
    path.parent.mkdir(parents=True, exist_ok=True)
    done, data = cv2.imencode(".hdr", np.ascontiguousarray(radiance[..., ::-1].astype(np.float32)))
    assert done
    path.write_bytes(data.tobytes())
    return path


def write_exr(path: Path, channels: dict[str, np.ndarray]) -> Path:
    openexr = pytest.importorskip("OpenEXR")
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    with openexr.File(header, channels) as file:
        file.write(str(path))
    return path


def noisy_radiance(height: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((height, 2 * height, 3)).astype(np.float32) + 0.1
