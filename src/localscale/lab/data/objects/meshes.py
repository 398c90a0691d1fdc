"""Read scanned objects from GLB and OBJ files as arrays: upright, standing on the ground, centred.

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

from localscale.errors import DataError
from localscale.extras import require
from localscale.files import read_whole
from localscale.lab.data.images import FORMATS, open_image
from localscale.lab.data.objects.embedded import embedded_images
from localscale.lab.data.objects.materials import Material, read_materials

__all__ = ["SUFFIXES", "Mesh", "UpAxis", "class_name", "load_mesh"]

SUFFIXES = (".glb", ".obj")
TEXTURES = (*FORMATS, "TGA")
MOST_TEXELS = 1 << 26  # 8192×8192
COMMENT = b"# read by localscale\n"
UpAxis = Literal["y", "z"]


@dataclass(frozen=True, eq=False)
class Mesh:
    """An object's surface.

    ``vertices`` and ``normals`` are ``(V, 3)``, ``faces`` ``(F, 3)``; ``uv`` ``(V, 2)`` and ``colours`` ``(V, 3)``
    (linear light) may be absent. ``materials[material_of[f]]`` is the material of face f, and ``texel_density[f]`` the
    base-2 logarithm of its texels per metre. ``notes`` tell which parts the file lacks and what replaces them.
    ``digest`` is a hash of the file and of the material and texture files that it uses.
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
    digest: str

    @property
    def extent(self) -> np.ndarray:
        """The sides of the bounding box, in metres."""
        return self.vertices.max(axis=0) - self.vertices.min(axis=0)


class Resolver:
    """The files that a mesh may refer to: those in its own folder, and in the texture folder of Google Scanned Objects.

    trimesh ignores errors while it resolves a name, so ``errors`` collects them. ``digest`` hashes all files read.
    """

    def __init__(self, path: Path) -> None:
        self.roots = [path.parent]
        if path.parent.name == "meshes":
            self.roots.append(path.parent.parent / "materials" / "textures")
        self.errors: list[str] = []
        self.digest = hashlib.sha256()

    def get(self, name: str) -> bytes:
        for root in self.roots:
            path = (root / name.strip()).resolve()
            if not path.is_relative_to(root.resolve()):
                self.errors.append(f'it refers to "{name}", which lies outside its folder')
                raise ValueError(name)
            if path.is_file():
                data = path.read_bytes()
                self.digest.update(name.encode() + b"\0" + data)
                if path.suffix.lower() == ".mtl":
                    return COMMENT + data  # nothing that begins with this is an image to any reader
                self._check_image(data, name)
                return data
        self.errors.append(f'it refers to "{name}", which does not exist')
        raise FileNotFoundError(name)

    def _check_image(self, data: bytes, name: str) -> None:
        """Check the header only; broken pixel data are found when the texture is built."""
        try:
            check_texture(data, f'its texture "{name}"')
        except DataError as error:
            self.errors.append(str(error))
            raise ValueError(name) from error

    def __getitem__(self, name: str) -> bytes:
        return self.get(name)

    def keys(self) -> Iterator[str]:
        return iter(())

    def namespaced(self, namespace: str) -> Resolver:
        return self


def check_texture(data: bytes, name: str) -> None:
    """Raise ``DataError``, which begins with ``name``, unless the bytes begin like an image that may be decoded."""
    with open_image(data, name, formats=TEXTURES, most_pixels=MOST_TEXELS):
        pass


def class_name(path: Path) -> str:
    """Return the class of a mesh file: its stem, or the model's folder for ``Name/meshes/model.obj``.

    >>> class_name(Path("gso/Android_Lego.glb")), class_name(Path("gso/Android_Lego/meshes/model.obj"))
    ('Android_Lego', 'Android_Lego')
    """
    if path.stem == "model" and path.parent.name == "meshes":
        return path.parent.parent.name
    return path.parent.name if path.stem == "model" else path.stem


def load_mesh(path: Path, *, up: UpAxis = "z") -> Mesh:
    """Read a GLB or OBJ file; raise ``DataError`` with the class's name and the cause if it cannot be rendered."""
    name = class_name(path)
    parts, digest = _read_parts(path, name)
    if not parts:
        raise DataError(f"mesh {name} has no faces; expected a surface made of triangles")
    vertices = np.concatenate([np.asarray(part.vertices, dtype=np.float64) for part in parts])
    if not np.isfinite(vertices).all():
        bad = int((~np.isfinite(vertices)).any(axis=1).sum())
        raise DataError(f"mesh {name} has {bad} of {len(vertices)} vertices that are not finite numbers")
    offsets = np.cumsum([0, *(len(part.vertices) for part in parts)])
    faces = np.concatenate([np.asarray(part.faces) + start for part, start in zip(parts, offsets, strict=False)])
    vertices = _stand(vertices, faces, up, name)
    faces, kept, cross = _drop_degenerate(vertices, faces, name)
    materials, uv, colours, notes = read_materials(parts, name)
    material_of = np.repeat(np.arange(len(parts)), [len(part.faces) for part in parts])[kept]
    area = np.linalg.norm(cross, axis=1)
    return Mesh(
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
        digest=digest,
    )


def _read_parts(path: Path, name: str) -> tuple[list[Any], str]:
    """Return the file's triangle meshes, transformed by their nodes, and a hash of all files that were read."""
    trimesh = require("trimesh", "objects")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"mesh {path.name} is not a {' or '.join(SUFFIXES)} file")
    data = read_whole(path, f"mesh {name}")
    resolver = Resolver(path)
    resolver.digest.update(data)
    kind = path.suffix.lower()[1:]
    try:
        for image in embedded_images(data) if kind == "glb" else ():
            check_texture(image, "one of its textures")
        scene = trimesh.load_scene(io.BytesIO(data), file_type=kind, resolver=resolver, process=False)
        parts = [part for part in scene.dump() if isinstance(part, trimesh.Trimesh) and len(part.faces)]
    except DataError as error:
        raise DataError(f"mesh {name}: {error}") from error
    except Exception as error:  # trimesh's parsers raise exceptions of many types
        cause = resolver.errors[0] if resolver.errors else f"it cannot be read ({type(error).__name__}: {error})"
        raise DataError(f"mesh {name}: {cause}") from error
    if resolver.errors:
        raise DataError(f"mesh {name}: {resolver.errors[0]}")
    return parts, resolver.digest.hexdigest()


def _stand(vertices: np.ndarray, faces: np.ndarray, up: UpAxis, name: str) -> np.ndarray:
    """Turn the mesh upright, set it on the ground and centre it."""
    if up == "y":
        vertices = np.stack((vertices[:, 0], -vertices[:, 2], vertices[:, 1]), axis=1)
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise DataError(f"mesh {name} has faces with corners beyond its {len(vertices)} vertices")
    used = vertices[np.unique(faces)]
    low, high = used.min(axis=0), used.max(axis=0)
    extent = high - low
    if extent.min() <= 1e-5 * extent.max() or not 1e-6 < extent.max() < 1e6:
        shown = " × ".join(f"{side:.3g}" for side in extent)
        raise DataError(f"mesh {name} measures {shown}; expected a solid object, in metres")
    return vertices - np.array([(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]])


def _drop_degenerate(vertices: np.ndarray, faces: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the faces with an area, which of all faces they are, and their normals times twice the area."""
    a, b, c = vertices[faces].transpose(1, 0, 2)
    cross = np.cross(b - a, c - a)
    area = np.linalg.norm(cross, axis=1)
    kept = area > 1e-12 * area.max() if area.max() > 0 else np.zeros(len(faces), dtype=bool)
    if not kept.any():
        raise DataError(f"mesh {name} has {len(faces)} faces, and none of them has an area")
    return faces[kept], kept, cross[kept]


def _smooth_normals(vertices: np.ndarray, faces: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """Average normals by area over the faces around a point, also across texture seams with duplicated vertices."""
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
