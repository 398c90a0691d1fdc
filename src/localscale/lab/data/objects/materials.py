"""Read the materials of a mesh: texture, colour and roughness, with replacements for what a file lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from localscale.errors import DataError
from localscale.lab.data.objects.textures import Texture, build_texture, decode_srgb

__all__ = ["GREY", "Material", "read_materials"]

GREY = (0.5, 0.5, 0.5)
ROUGHNESS = 0.6


@dataclass(frozen=True, eq=False)
class Material:
    """A surface material: the albedo is ``colour`` (linear light) times the texture, if there is one."""

    colour: tuple[float, float, float] = GREY
    texture: Texture | None = None
    roughness: float = ROUGHNESS


def read_materials(
    parts: list[Any], name: str
) -> tuple[tuple[Material, ...], np.ndarray | None, np.ndarray | None, tuple[str, ...]]:
    """Return one material per part, the ``uv`` and vertex ``colours`` of all parts, and notes on what is missing."""
    materials, coordinates, colours, notes = [], [], [], []
    for part in parts:
        count = len(part.vertices)
        uv, image = _coordinates(part), _image_of(part)
        texture = _texture_of(part, uv, name)
        vertex_colours = np.ones((count, 3), dtype=np.float32)
        if texture is not None:
            colour = _base_colour(part) or (1.0, 1.0, 1.0)
        else:
            missing = "no UVs and no texture" if uv is None else "no texture"
            missing = missing if image is None else "no UVs for its texture"
            colour, stand_in = _base_colour(part) or GREY, "base colour" if _base_colour(part) else "mid-grey"
            if getattr(part.visual, "kind", None) in ("vertex", "face"):  # trimesh spreads face colours over corners
                vertex_colours = decode_srgb(np.asarray(part.visual.vertex_colors, dtype=np.uint8)[:, :3])
                colour, stand_in = (1.0, 1.0, 1.0), "vertex colours"
            notes.append(f"{missing}; {stand_in} used")
        materials.append(Material(colour, texture, _roughness(part)))
        coordinates.append(uv if uv is not None and texture is not None else np.zeros((count, 2), dtype=np.float32))
        colours.append(vertex_colours)
    textured = any(material.texture is not None for material in materials)
    coloured = any((each != 1).any() for each in colours)
    return (
        tuple(materials),
        np.concatenate(coordinates) if textured else None,
        np.concatenate(colours) if coloured else None,
        tuple(dict.fromkeys(notes)),
    )


def _texture_of(part: Any, uv: np.ndarray | None, name: str) -> Texture | None:
    image = _image_of(part)
    if image is None or uv is None:
        return None
    if len(uv) != len(part.vertices) or not (np.abs(uv) < 1e6).all():
        raise DataError(
            f"mesh {name} has too few texture coordinates, or some that are not finite numbers below a million"
        )
    try:
        return build_texture(image)
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise DataError(f"mesh {name} has a broken texture: {error}") from error


def _coordinates(part: Any) -> np.ndarray | None:
    uv = getattr(part.visual, "uv", None)
    if uv is None or not len(uv) or np.ndim(uv) != 2 or np.shape(uv)[1] < 2:
        return None
    return np.asarray(uv, dtype=np.float32)[:, :2]


def _image_of(part: Any) -> Any:
    material = _material_of(part)
    return getattr(material, "baseColorTexture", None) or getattr(material, "image", None)


def _material_of(part: Any) -> Any:
    """Return the file's material, or None: to an OBJ with UVs but no material, trimesh adds one of four grey pixels."""
    material = getattr(part.visual, "material", None)
    image = getattr(material, "image", None)
    invented = image is not None and image.size == (2, 2) and len(image.convert("RGB").getcolors()) == 1
    return None if invented else material


def _base_colour(part: Any) -> tuple[float, float, float] | None:
    """Return the colour that the file states, or None; in an OBJ it is not multiplied with a texture."""
    material = _material_of(part)
    factor = getattr(material, "baseColorFactor", None)
    if factor is not None:  # GLB stores linear light, and trimesh converts it to bytes
        red, green, blue = (float(value) / 255 for value in np.asarray(factor)[:3])
    elif _image_of(part) is None and getattr(material, "diffuse", None) is not None:
        red, green, blue = (float(value) for value in decode_srgb(np.asarray(material.diffuse, dtype=np.uint8)[:3]))
    else:
        return None
    return red, green, blue


def _roughness(part: Any) -> float:
    value = getattr(getattr(part.visual, "material", None), "roughnessFactor", None)
    return ROUGHNESS if value is None or not np.isfinite(value) else float(np.clip(value, 0.2, 1.0))
