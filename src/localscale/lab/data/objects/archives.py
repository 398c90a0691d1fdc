"""Unpack a model's zip file: only the files that a mesh needs, and never outside its folder."""

from __future__ import annotations

import json
import re
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from localscale.errors import DataError, OutputError
from localscale.lab.data.objects.downloads import is_intact

__all__ = ["is_unpacked", "unpack_model"]

WANTED = (".obj", ".mtl", ".png", ".jpg", ".jpeg")
CONTENTS = "contents.json"
MOST_BYTES = 1 << 30
PART = re.compile(r"[^\x00-\x1f/\\:]+")


def unpack_model(archive: Path, folder: Path) -> list[str]:
    """Unpack the meshes, materials and textures of ``archive``; ``folder`` appears complete or not at all.

    Thumbnails and simulator files are left out. If any member would be written outside ``folder``, nothing is unpacked.
    """
    draft = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as file:
            members = [member for member in file.infolist() if _is_wanted(member, archive.name)]
            if sum(member.file_size for member in members) > MOST_BYTES:
                raise DataError(f"{archive.name} unpacks to more than {MOST_BYTES:,} bytes")
            if not any(member.filename.lower().endswith(".obj") for member in members):
                raise DataError(f"{archive.name} has no .obj mesh")
            for member in members:
                path = draft.joinpath(*PurePosixPath(member.filename).parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                with file.open(member) as source, path.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        sizes = {member.filename: member.file_size for member in members}
        (draft / CONTENTS).write_text(json.dumps(sizes, indent=1, sort_keys=True), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        draft.replace(folder)
        return sorted(sizes)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive.name} is a broken zip file: {error}") from error
    except OSError as error:
        raise OutputError(f"{folder.parent} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def is_unpacked(folder: Path) -> bool:
    """Return whether a model was unpacked here, and all its files still exist with the same size."""
    try:
        sizes = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
        return bool(sizes) and all(is_intact(folder / name, size=size) for name, size in sizes.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _is_wanted(member: zipfile.ZipInfo, archive: str) -> bool:
    parts = member.filename.rstrip("/").split("/")
    link = stat.S_ISLNK(member.external_attr >> 16)
    if link or any(part in (".", "..") or not PART.fullmatch(part) for part in parts):
        raise DataError(f'{archive} holds "{member.filename}", which lies outside its folder; nothing was unpacked')
    return not member.is_dir() and parts[0] != "thumbnails" and parts[-1].lower().endswith(WANTED)
