"""Scanned objects from GLB and OBJ files, as plain arrays: upright, standing on the ground, centred.

Convention: metres, z up; the lowest vertex has z = 0 and the footprint's bounding box is centred at x = y = 0.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from localscale.errors import DataError
from localscale.extras import require
from localscale.files import read_whole
from localscale.lab.data.objects.materials import Material, read_materials

__all__ = ["SUFFIXES", "Mesh", "UpAxis", "class_name", "load_mesh", "read_mesh"]

SUFFIXES = (".glb", ".obj")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tga", ".tif", ".tiff", ".webp")
UpAxis = Literal["y", "z"]


@dataclass(frozen=True, eq=False)
class Mesh:
    """An object's surface.

    ``vertices`` and ``normals`` are ``(V, 3)``, ``faces`` ``(F, 3)``; ``uv`` ``(V, 2)`` and ``colours`` ``(V, 3)``
    (linear light) may be absent; ``materials[material_of[f]]`` is the material of face f, and ``texel_density[f]`` the
    base-2 logarithm of how many texels its texture lays along a metre. ``notes`` tells what was missing in the file
    and what stands in for it.
    """

    vertices: np.ndarray
    faces: np.ndarray
    normals: np.ndarray
    face_normals: np.ndarray
    uv: np.ndarray | None
    colours: np.ndarray | None
    materials: tuple[Material, ...]
    material_of: np.ndarray
    texel_density: np.ndarray | None
    notes: tuple[str, ...]

    @property
    def extent(self) -> np.ndarray:
        """The sides of the bounding box, in metres."""
        return self.vertices.max(axis=0) - self.vertices.min(axis=0)


class Folder:
    """The files that a mesh may refer to: those of its own folder, and where Google Scanned Objects keep textures.

    trimesh swallows what goes wrong while it resolves a name, so ``missing`` remembers it.
    """

    def __init__(self, path: Path) -> None:
        self.roots = [path.parent]
        if path.parent.name == "meshes":
            self.roots.append(path.parent.parent / "materials" / "textures")
        self.missing: list[str] = []
        self.digest = hashlib.sha256()

    def get(self, name: str) -> bytes:
        for root in self.roots:
            path = (root / name.strip()).resolve()
            if not path.is_relative_to(root.resolve()):
                self.missing.append(f'it refers to "{name}", which lies outside its folder')
                raise ValueError(name)
            if path.is_file():
                data = path.read_bytes()
                self.digest.update(name.encode() + b"\0" + data)
                if path.suffix.lower() in IMAGES:
                    self._check_image(data, name)
                return data
        self.missing.append(f'it refers to "{name}", which is not there')
        raise FileNotFoundError(name)

    def _check_image(self, data: bytes, name: str) -> None:
        """Look at the header only: what is broken behind it shows when the texture is built."""
        try:
            with Image.open(io.BytesIO(data)):
                pass
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            self.missing.append(f'its texture "{name}" is no image that can be read')
            raise ValueError(name) from error

    def __getitem__(self, name: str) -> bytes:
        return self.get(name)

    def keys(self) -> Iterator[str]:
        return iter(())

    def namespaced(self, namespace: str) -> Folder:
        return self


def class_name(path: Path) -> str:
    """The class a mesh file stands for: its stem, or its model's folder in ``Name/meshes/model.obj``.

    >>> class_name(Path("gso/Android_Lego.glb")), class_name(Path("gso/Android_Lego/meshes/model.obj"))
    ('Android_Lego', 'Android_Lego')
    """
    if path.stem == "model" and path.parent.name == "meshes":
        return path.parent.parent.name
    return path.parent.name if path.stem == "model" else path.stem


def load_mesh(path: Path, *, up: UpAxis = "z") -> Mesh:
    """Read a GLB or OBJ file; raise ``DataError`` with the class's name and the cause if it cannot be rendered."""
    return read_mesh(path, up=up)[0]


def read_mesh(path: Path, *, up: UpAxis = "z") -> tuple[Mesh, str]:
    """A mesh, and a hash of all it is made of: its file, and the material and texture files that were read for it."""
    name = class_name(path)
    parts, folder, digest = _read_parts(path, name)
    if folder.missing:
        raise DataError(f"mesh {name}: {folder.missing[0]}")
    if not parts:
        raise DataError(f"mesh {name} has no faces; expected a surface made of triangles")
    vertices = _join([np.asarray(part.vertices, dtype=np.float64) for part in parts])
    if not np.isfinite(vertices).all():
        bad = int((~np.isfinite(vertices)).any(axis=1).sum())
        raise DataError(f"mesh {name} has {bad} of {len(vertices)} vertices that are not finite numbers")
    offsets = np.cumsum([0, *(len(part.vertices) for part in parts)])
    faces = _join([np.asarray(part.faces) + start for part, start in zip(parts, offsets, strict=False)])
    vertices = _stand(vertices, faces, up, name)
    faces, kept, cross = _drop_degenerate(vertices, faces, name)
    materials, uv, colours, notes = read_materials(parts, name)
    material_of = np.repeat(np.arange(len(parts)), [len(part.faces) for part in parts])[kept]
    area = np.linalg.norm(cross, axis=1)
    mesh = Mesh(
        vertices=vertices.astype(np.float32),
        faces=faces.astype(np.int32),
        normals=_smooth_normals(vertices, faces, cross).astype(np.float32),
        face_normals=(cross / area[:, None]).astype(np.float32),
        uv=uv,
        colours=colours,
        materials=materials,
        material_of=material_of.astype(np.int32),
        texel_density=None if uv is None else _texel_density(uv[faces], area, materials, material_of),
        notes=notes,
    )
    return mesh, digest


def _read_parts(path: Path, name: str) -> tuple[list[Any], Folder, str]:
    """The file's triangle meshes, each moved to where its node puts it."""
    trimesh = require("trimesh", "objects")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"mesh {path.name} is no {' or '.join(SUFFIXES)} file")
    data = read_whole(path, f"mesh {name}")
    folder = Folder(path)
    folder.digest.update(data)
    try:
        scene = trimesh.load_scene(io.BytesIO(data), file_type=path.suffix.lower()[1:], resolver=folder, process=False)
        parts = [part for part in scene.dump() if isinstance(part, trimesh.Trimesh) and len(part.faces)]
    except Exception as error:  # trimesh raises whatever its parsers stumble over
        cause = folder.missing[0] if folder.missing else f"it cannot be read ({type(error).__name__}: {error})"
        raise DataError(f"mesh {name}: {cause}") from error
    return parts, folder, folder.digest.hexdigest()


def _stand(vertices: np.ndarray, faces: np.ndarray, up: UpAxis, name: str) -> np.ndarray:
    if up == "y":
        vertices = np.stack((vertices[:, 0], -vertices[:, 2], vertices[:, 1]), axis=1)
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise DataError(f"mesh {name} has faces whose corners are none of its {len(vertices)} vertices")
    used = vertices[np.unique(faces)]
    low, high = used.min(axis=0), used.max(axis=0)
    extent = high - low
    if extent.min() <= 1e-5 * extent.max() or not 1e-6 < extent.max() < 1e6:
        shown = " × ".join(f"{side:.3g}" for side in extent)
        raise DataError(f"mesh {name} measures {shown}; expected a solid object, in metres")
    return vertices - np.array([(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]])


def _drop_degenerate(vertices: np.ndarray, faces: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The faces with an area, which of all they are, and their normals times twice that area."""
    a, b, c = vertices[faces].transpose(1, 0, 2)
    cross = np.cross(b - a, c - a)
    area = np.linalg.norm(cross, axis=1)
    kept = area > 1e-12 * area.max() if area.max() > 0 else np.zeros(len(faces), dtype=bool)
    if not kept.any():
        raise DataError(f"mesh {name} has {len(faces)} faces, none with an area")
    return faces[kept], kept, cross[kept]


def _smooth_normals(vertices: np.ndarray, faces: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """Normals averaged by area over the faces around a point, across texture seams, where vertices are doubled."""
    _, group = np.unique(vertices, axis=0, return_inverse=True)
    corner = group.reshape(-1)[faces.reshape(-1)]
    weights = np.repeat(cross, 3, axis=0)
    total = np.stack([np.bincount(corner, weights[:, axis], minlength=len(vertices)) for axis in range(3)], axis=1)
    length = np.linalg.norm(total, axis=1, keepdims=True)
    return np.where(length > 0, total / np.maximum(length, 1e-300), (0.0, 0.0, 1.0))[group.reshape(-1)]


def _texel_density(
    corners: np.ndarray, area: np.ndarray, materials: tuple[Material, ...], material_of: np.ndarray
) -> np.ndarray:
    sides = corners[:, 1:] - corners[:, :1]
    covered = np.abs(sides[:, 0, 0] * sides[:, 1, 1] - sides[:, 0, 1] * sides[:, 1, 0])
    texels = np.array([1 if each.texture is None else each.texture.shapes[0].prod() for each in materials])[material_of]
    return (0.5 * np.log2(np.maximum(covered * texels, 1e-12) / area)).astype(np.float32)


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
