"""safetensors files with checksums: equal tensors give equal files, and a damaged file is refused.

The metadata in the header holds two CRC-32: ``tensors_crc32`` of the bytes after the header, and ``header_crc32`` of
the header itself with its own digits set to zero. A file without them, as other programs write it, is not checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from localscale.errors import CheckpointError, ConfigError
from localscale.files import reason_of

__all__ = ["read_metadata", "read_tensors", "write_tensors"]

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
KINDS = {name: dtype for dtype, name in DTYPES.items()}
HEADER, TENSORS = "header_crc32", "tensors_crc32"
CHUNK = 1 << 22  # bytes


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file with checksums; its bytes depend on the names, the tensors and ``metadata`` alone."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # wide ones first, for alignment
    header: dict[str, Any] = {"__metadata__": {HEADER: 8 * "0", TENSORS: 8 * "0", "format": "pt", **(metadata or {})}}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
            raise ConfigError(
                f"{name} is {tensor.dtype}, {tensor.layout}; a safetensors file cannot hold such a tensor"
            )
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    crc = 0
    with path.open("wb") as file:
        file.write(_encode(header))
        for name in names:
            data = _bytes_of(tensors[name])
            crc = zlib.crc32(data, crc)
            file.write(data)
        header["__metadata__"][TENSORS] = f"{crc:08x}"
        header["__metadata__"][HEADER] = f"{zlib.crc32(_encode(header)):08x}"
        file.seek(0)
        file.write(_encode(header))


def read_tensors(path: Path, *, missing: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a file; raise ``CheckpointError`` if it is damaged or ``missing``.

    ``missing`` is the error's sentence if there is no such file. The file is not mapped into memory, so that nothing
    that happens to it later changes the tensors.
    """
    with _reading(path, missing) as file:
        header, metadata = _read_header(file)
        return _split(_read_data(file, metadata.get(TENSORS)), header), metadata


def read_metadata(path: Path, *, missing: str = "") -> dict[str, str]:
    """Return the metadata of a file, and read none of its tensors."""
    with _reading(path, missing) as file:
        return _read_header(file)[1]


@contextlib.contextmanager
def _reading(path: Path, missing: str) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise CheckpointError(missing or f"there is no {path.name} in {path.parent}; copy it again") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({reason_of(error)}); was it copied whole? Copy or save it again"
        ) from error


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the entries of the tensors and the metadata; afterwards the file stands at the first tensor."""
    whole = os.fstat(file.fileno()).st_size
    start = file.read(8)
    size = int.from_bytes(start, "little")
    if len(start) < 8 or size > whole - 8:
        raise ValueError("its header is incomplete")
    text = file.read(size)
    header = json.loads(text.decode())
    metadata = header.pop("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its header is not the one of a safetensors file")
    if (HEADER in metadata) != (TENSORS in metadata):
        raise ValueError("one of its checksums is lost")
    if (given := metadata.get(HEADER)) is not None:
        blank = text.replace(f'"{HEADER}":"{given}"'.encode(), f'"{HEADER}":"{8 * "0"}"'.encode(), 1)
        _compare(given, zlib.crc32(start + blank), "header")
    return header, metadata


def _read_data(file: BinaryIO, given: str | None) -> Tensor:
    """Return the rest of a file as bytes, after they were compared with their checksum."""
    data = torch.empty(os.fstat(file.fileno()).st_size - file.tell(), dtype=torch.uint8)
    view, place, crc = memoryview(data.numpy().data), 0, 0
    while count := file.readinto(view[place : place + CHUNK]):  # type: ignore[attr-defined]
        crc = zlib.crc32(view[place : place + count], crc)
        place += count
    if given is not None:
        _compare(given, crc, "tensors")
    return data


def _split(data: Tensor, header: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors in ``data`` by their names; they share its memory."""
    try:
        entries = sorted((e["data_offsets"], name, KINDS[e["dtype"]], e["shape"]) for name, e in header.items())
        found, end = {}, 0
        for (first, last), name, dtype, shape in entries:
            if first != end or last > len(data) or min(shape, default=0) < 0:
                raise ValueError(f"the place or shape of {name} is wrong")
            end, part = last, data[first:last]
            aligned = part if first % dtype.itemsize == 0 else part.clone()
            found[name] = aligned.view(dtype).view(shape)
    except (TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise ValueError(f"its header does not describe its tensors ({error!r})") from error
    if end != len(data):
        raise ValueError(f"it holds {len(data) - end} bytes more than its tensors")
    return {name: found[name] for name in header}


def _compare(given: str, found: int, part: str) -> None:
    if given != f"{found:08x}":
        raise ValueError(f"the checksum of its {part} is {found:08x} and should be {given}")


def _encode(header: dict[str, Any]) -> bytes:
    """Return the first bytes of a file: the header's length, and the header, padded to a multiple of eight bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    whole = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().data if whole.numel() else memoryview(b"")
