"""What lies in a folder of meshes and a folder of panoramas: what can be used, and what cannot, with reasons."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from localscale.errors import DataError
from localscale.lab.data.objects import meshes as mesh_files
from localscale.lab.data.objects import panoramas as panorama_files
from localscale.lab.data.objects.meshes import UpAxis, class_name, read_mesh
from localscale.lab.data.objects.panoramas import load_panorama, panorama_digest

__all__ = ["MeshEntry", "PanoramaEntry", "Rejection", "fingerprint", "read_meshes", "read_panoramas"]

logger = logging.getLogger(__name__)
Entry = TypeVar("Entry", "MeshEntry", "PanoramaEntry")


@dataclass(frozen=True)
class Rejection:
    """A file that cannot be used, by its path within its folder, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class MeshEntry:
    """A usable mesh: the class it stands for, its sides in metres, and what had to stand in for what it lacks."""

    name: str
    path: Path
    extent: tuple[float, float, float]
    notes: tuple[str, ...]
    digest: str


@dataclass(frozen=True)
class PanoramaEntry:
    """A usable panorama."""

    name: str
    path: Path
    digest: str


def read_meshes(folder: Path, *, up: UpAxis = "z") -> tuple[list[MeshEntry], list[Rejection]]:
    """Every mesh in ``folder`` and below it, sorted by class, and those that were rejected; two must be usable.

    Each file is read once per process, for as long as it does not change.
    """
    entries, rejected = _read_all(folder, mesh_files.SUFFIXES, functools.partial(_mesh_entry, up=up), "mesh")
    if len(entries) < 2:
        raise DataError(_too_few(folder, "meshes", len(entries), rejected, "a scene shows two classes"))
    return entries, rejected


def read_panoramas(folder: Path) -> tuple[list[PanoramaEntry], list[Rejection]]:
    """Every panorama in ``folder`` and below it, sorted by name, and those that were rejected; two must be usable."""
    entries, rejected = _read_all(folder, panorama_files.SUFFIXES, _panorama_entry, "panorama")
    if len(entries) < 2:
        raise DataError(_too_few(folder, "panoramas", len(entries), rejected, "train and test share none"))
    return entries, rejected


def fingerprint(entries: Iterable[MeshEntry | PanoramaEntry]) -> str:
    """One hash for the names and contents of all entries."""
    total = hashlib.sha256()
    for entry in entries:
        total.update(f"{entry.name}\0{entry.digest}\n".encode())
    return total.hexdigest()


def _read_all(
    folder: Path, suffixes: tuple[str, ...], read: Callable[[Path, tuple[int, int]], Entry], what: str
) -> tuple[list[Entry], list[Rejection]]:
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; expected one with {' or '.join(suffixes)} files")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())
    if not files:
        raise DataError(f"{folder} has no {' or '.join(suffixes)} files")
    entries: dict[str, Entry] = {}
    rejected = []
    for path in files:
        shown = path.relative_to(folder).as_posix()
        try:
            status = path.stat()
            entry = read(path.absolute(), (status.st_size, status.st_mtime_ns))
            if entry.name in entries:
                raise DataError(f"another file stands for {entry.name} already")
            entries[entry.name] = entry
        except (DataError, OSError) as error:
            logger.warning("%s %s is left out: %s", what, shown, error)
            rejected.append(Rejection(shown, str(error)))
    return [entries[name] for name in sorted(entries)], rejected


@functools.lru_cache(maxsize=8192)
def _mesh_entry(path: Path, stamp: tuple[int, int], *, up: UpAxis) -> MeshEntry:
    mesh, digest = read_mesh(path, up=up)
    width, depth, height = (float(side) for side in mesh.extent)
    return MeshEntry(class_name(path), path, (width, depth, height), mesh.notes, digest)


@functools.lru_cache(maxsize=1024)
def _panorama_entry(path: Path, stamp: tuple[int, int]) -> PanoramaEntry:
    return PanoramaEntry(load_panorama(path).name, path, panorama_digest(path))


def _too_few(folder: Path, what: str, count: int, rejected: list[Rejection], why: str) -> str:
    first = f"; {rejected[0].file} was rejected: {rejected[0].reason}" if rejected else ""
    return f"{folder} has {count} usable {what}; expected at least 2, because {why}{first}"
