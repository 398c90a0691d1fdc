"""Find the images inside a GLB file, so that they can be checked before another library opens them."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

from localscale.errors import DataError

__all__ = ["embedded_images"]

MAGIC, JSON, BINARY = b"glTF", 0x4E4F534A, 0x004E4942
KTX2, BASE64 = "image/ktx2", "base64,"  # trimesh leaves out the former, and looks for the latter


def embedded_images(data: bytes) -> list[bytes]:
    """Return the bytes of every image that a GLB file holds; images in other files are left out.

    Raise ``DataError``, which completes "mesh NAME: it …", if the file refers to geometry outside itself, or if an
    image cannot be located.
    """
    header, binary = _chunks(data)
    buffers, views, images = (_listed(header, name) for name in ("buffers", "bufferViews", "images"))
    if len(buffers) > 1 or any("uri" in buffer for buffer in buffers):
        raise DataError("it keeps its geometry outside the file; export it as one self-contained .glb file")
    found = []
    for image in images:
        uri = image.get("uri", "")
        if image.get("mimeType") == KTX2:
            continue
        if "bufferView" in image:
            found.append(_view(image["bufferView"], views, binary))
        elif isinstance(uri, str) and BASE64 in uri:
            found.append(_decoded(uri))
    return found


def _chunks(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the JSON header and the first binary chunk."""
    try:
        magic, _, _, length, kind = struct.unpack_from("<4sIIII", data)
        header = json.loads(data[20 : 20 + length].decode())
    except (struct.error, ValueError, RecursionError) as error:
        raise DataError("it cannot be read as a GLB file") from error
    if magic != MAGIC or kind != JSON or not isinstance(header, dict):
        raise DataError("it cannot be read as a GLB file")
    start = 20 + length
    while start + 8 <= len(data):
        length, kind = struct.unpack_from("<II", data, start)
        if kind == BINARY:
            return header, data[start + 8 : start + 8 + length]
        start += 8 + length
    return header, b""


def _listed(header: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = header.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise DataError(f"it cannot be read as a GLB file: its {name} are not a list of objects")
    return values


def _view(number: Any, views: list[dict[str, Any]], binary: bytes) -> bytes:
    if type(number) is int and 0 <= number < len(views):
        view = views[number]
        numbers = view.get("buffer"), view.get("byteOffset", 0), view.get("byteLength")
        if all(type(value) is int for value in numbers):
            buffer, start, length = numbers
            if buffer == 0 and 0 <= start <= start + length <= len(binary):
                return binary[start : start + length]
    raise DataError("one of its textures lies outside the file")


def _decoded(uri: str) -> bytes:
    try:
        return base64.b64decode(uri.partition(BASE64)[2])
    except ValueError as error:
        raise DataError("one of its textures is not valid base64") from error
