"""Read files with clear errors, and write files atomically."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from localscale.errors import DataError, OutputError

__all__ = ["read_whole", "write_all", "write_whole"]


def read_whole(path: Path, what: str) -> bytes:
    """Return the bytes of a file; raise ``DataError``, which names it ``what``, if it is missing or empty."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror or error}") from error
    if not data:
        raise DataError(f"{what} is empty (zero bytes)")
    return data


def write_all(writers: dict[Path, Callable[[Path], object]]) -> None:
    """Write every file under a temporary name, then rename them all; if a write fails, the old files stay."""
    drafts = {path.with_name(f".{path.name}.{os.getpid()}.part"): path for path in writers}
    try:
        for draft, path in drafts.items():
            draft.touch()
            mode = draft.stat().st_mode  # safetensors would restrict the file to its owner
            writers[path](draft)
            draft.chmod(mode)
        for draft, path in drafts.items():
            draft.replace(path)
    finally:
        for draft in drafts:
            with contextlib.suppress(OSError):  # an error here would hide the original one
                draft.unlink()


def write_whole(path: Path, data: bytes | str) -> None:
    """Write one file atomically, and create the folders above it."""
    content = data.encode() if isinstance(data, str) else data
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_all({path: lambda draft: draft.write_bytes(content)})
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
