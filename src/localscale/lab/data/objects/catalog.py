"""List the usable meshes and panoramas of a folder, and the unusable ones with the reason."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from localscale.errors import DataError
from localscale.lab.data.objects import meshes as mesh_files
from localscale.lab.data.objects import panoramas as panorama_files
from localscale.lab.data.objects.meshes import UpAxis, class_name, load_mesh
from localscale.lab.data.objects.panoramas import load_panorama
from localscale.lab.folders import stays_inside

__all__ = ["Entry", "Rejection", "checksum", "read_meshes", "read_panoramas"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rejection:
    """A file that cannot be used: its path below the folder, and the reason."""

    file: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """A usable mesh or panorama; ``digest`` is a hash of its content.

    A mesh's ``name`` is its class and ``extent`` its bounding box in metres; ``notes`` tell what its file lacks.
    """

    name: str
    path: Path
    digest: str
    extent: tuple[float, float, float] = (0.0, 0.0, 0.0)
    notes: tuple[str, ...] = ()


def read_meshes(folder: Path, *, up: UpAxis = "z") -> tuple[list[Entry], list[Rejection]]:
    """Return the usable meshes below ``folder``, sorted by class, and the rejected ones; raise if fewer than 2.

    A process reads each file once, unless the file changes.
    """
    entries, rejected = _read_all(folder, mesh_files.SUFFIXES, functools.partial(_mesh_entry, up=up), "mesh")
    if len(entries) < 2:
        raise DataError(_too_few(folder, "meshes", len(entries), rejected, "a scene shows two classes"))
    return entries, rejected


def read_panoramas(folder: Path) -> tuple[list[Entry], list[Rejection]]:
    """Return the usable panoramas below ``folder``, sorted by name, and the rejected ones; raise if fewer than 2."""
    entries, rejected = _read_all(folder, panorama_files.SUFFIXES, _panorama_entry, "panorama")
    if len(entries) < 2:
        raise DataError(_too_few(folder, "panoramas", len(entries), rejected, "train and test share none"))
    return entries, rejected


def checksum(entries: Iterable[Entry]) -> str:
    """Return one SHA-256 of the names and contents of all entries."""
    total = hashlib.sha256()
    for entry in entries:
        total.update(f"{entry.name}\0{entry.digest}\n".encode())
    return total.hexdigest()


def _read_all(
    folder: Path, suffixes: tuple[str, ...], read: Callable[[Path, tuple[int, int]], Entry], what: str
) -> tuple[list[Entry], list[Rejection]]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; expected one with {' or '.join(suffixes)} files")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())
    if not files:
        raise DataError(f"{folder} has no {' or '.join(suffixes)} files")
    entries: dict[str, Entry] = {}
    rejected = []
    for path in files:
        shown = path.relative_to(folder).as_posix()
        try:
            if path.is_symlink() and not stays_inside(path, folder):
                raise DataError(f"it is a symbolic link out of {folder}; copy the file to its place")
            status = path.stat()
            entry = read(path.absolute(), (status.st_size, status.st_mtime_ns))
            if entry.name in entries:
                raise DataError(f"another file has the name {entry.name}, too")
            entries[entry.name] = entry
        except (DataError, OSError) as error:
            logger.warning("%s %s is left out: %s", what, shown, error)
            rejected.append(Rejection(shown, str(error)))
    return [entries[name] for name in sorted(entries)], rejected


@functools.lru_cache(maxsize=8192)
def _mesh_entry(path: Path, stamp: tuple[int, int], *, up: UpAxis) -> Entry:
    mesh = load_mesh(path, up=up)
    width, depth, height = (float(side) for side in mesh.extent)
    return Entry(class_name(path), path, mesh.digest, (width, depth, height), mesh.notes)


@functools.lru_cache(maxsize=1024)
def _panorama_entry(path: Path, stamp: tuple[int, int]) -> Entry:
    return Entry(load_panorama(path).name, path, hashlib.sha256(path.read_bytes()).hexdigest())


def _too_few(folder: Path, what: str, count: int, rejected: list[Rejection], why: str) -> str:
    first = f"; {rejected[0].file} was rejected: {rejected[0].reason}" if rejected else ""
    return f"{folder} has {count} usable {what}; expected at least 2, because {why}{first}"
