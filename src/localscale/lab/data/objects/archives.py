"""Unpack a model's zip file: only the files that a mesh needs, and never outside its folder."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from localscale.errors import DataError, OutputError
from localscale.lab.data.objects.answers import plain
from localscale.lab.data.objects.downloads import is_intact

__all__ = ["digest_of_model", "is_unpacked", "unpack_model"]

WANTED = (".obj", ".mtl", ".png", ".jpg", ".jpeg")
CONTENTS = "contents.json"
MOST_BYTES, MOST_DIRECTORY_BYTES, BLOCK = 1 << 30, 4 << 20, 1 << 20
MOST_MEMBERS, MOST_DEPTH, MOST_NAME_BYTES = 10_000, 8, 200
END = struct.Struct("<4s4H2LH")  # the record at the end of a zip file
PART = re.compile(r"[^\x00-\x1f/\\:]+")


def unpack_model(archive: Path, folder: Path) -> list[str]:
    """Unpack the meshes, materials and textures of ``archive``; ``folder`` appears complete or not at all.

    Thumbnails and simulator files are left out. If any member would be written outside ``folder``, nothing is unpacked.
    """
    draft = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with _reading(archive.name):
            _check_directory(archive)
            file = zipfile.ZipFile(archive)
        with file:
            members = _wanted(file, archive.name)
            for member in members:
                path = draft.joinpath(*PurePosixPath(member.filename).parts)
                with _writing(folder.parent):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    target = path.open("wb")
                with target:
                    for block in _blocks(file, member, archive.name):
                        with _writing(folder.parent):
                            target.write(block)
        sizes = {member.filename: member.file_size for member in members}
        with _writing(folder.parent):
            (draft / CONTENTS).write_text(json.dumps(sizes, indent=1, sort_keys=True), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            draft.replace(folder)
        return sorted(sizes)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def digest_of_model(folder: Path) -> str:
    """Return the SHA-256 of the names of a model's files and the SHA-256 of each."""
    try:
        names = sorted(json.loads((folder / CONTENTS).read_text(encoding="utf-8")))
        lines = [f"{_sha256(folder / name)}  {name}\n" for name in names]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{folder.name} cannot be read again: {error}") from error
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_unpacked(folder: Path) -> bool:
    """Return whether a model was unpacked here, and all its files still exist with the same size."""
    try:
        sizes = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
        return bool(sizes) and all(is_intact(folder / name, size=size) for name, size in sizes.items())
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return False


def _check_directory(archive: Path) -> None:
    """Raise if the list of an archive's members is too long to be read, before it is read."""
    with archive.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - END.size - 0xFFFF))
        tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < END.size:
        raise zipfile.BadZipFile("File is not a zip file")
    _, _, _, _, count, length, _, _ = END.unpack_from(tail, at)
    if count > MOST_MEMBERS or length > MOST_DIRECTORY_BYTES:
        raise DataError(f"{archive.name} lists {count:,} files in {length:,} bytes; at most {MOST_MEMBERS:,} are read")


def _wanted(file: zipfile.ZipFile, archive: str) -> list[zipfile.ZipInfo]:
    """Return the members to unpack; raise if any member is unsafe, or all of them are too many, large or useless."""
    if len(file.infolist()) > MOST_MEMBERS:
        raise DataError(f"{archive} holds {len(file.infolist()):,} files; at most {MOST_MEMBERS:,} are read")
    members = [member for member in file.infolist() if _is_wanted(member, archive)]
    if sum(member.file_size for member in members) > MOST_BYTES:
        raise DataError(f"{archive} unpacks to more than {MOST_BYTES:,} bytes")
    if not any(member.filename.lower().endswith(".obj") for member in members):
        raise DataError(f"{archive} has no .obj mesh")
    names = {member.filename.lower() for member in members}  # some file systems ignore case
    above = {str(parent).lower() for member in members for parent in PurePosixPath(member.filename).parents}
    if len(names) < len(members) or names & above:
        raise DataError(f"{archive} holds two files of one name")
    return members


def _is_wanted(member: zipfile.ZipInfo, archive: str) -> bool:
    parts = member.filename.rstrip("/").split("/")
    shown = plain(member.filename)
    link = stat.S_ISLNK(member.external_attr >> 16)
    if link or any(part in (".", "..") or not PART.fullmatch(part) for part in parts):
        raise DataError(f'{archive} holds "{shown}", which lies outside its folder; nothing was unpacked')
    if len(parts) > MOST_DEPTH or any(len(part.encode(errors="replace")) > MOST_NAME_BYTES for part in parts):
        raise DataError(f'{archive} holds "{shown}", whose name is too long or whose folders are nested too deeply')
    if member.is_dir() or parts[0] == "thumbnails" or not parts[-1].lower().endswith(WANTED):
        return False
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f'{archive} compresses "{shown}" in a way that is not read; expected stored or deflated files')
    return True


def _blocks(file: zipfile.ZipFile, member: zipfile.ZipInfo, archive: str) -> Iterator[bytes]:
    """Yield the content of a member, which ends after the size that its header states."""
    with _reading(archive):
        source = file.open(member)
    with source:
        while True:
            with _reading(archive):
                block = source.read(BLOCK)
            if not block:
                return
            yield block


@contextlib.contextmanager
def _reading(archive: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # zipfile and zlib raise exceptions of many types
        raise DataError(f"{archive} is a broken zip file: {plain(error)}") from error


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror or error}") from error
