"""Files that are read whole, and files that appear whole or not at all."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from localscale.errors import DataError, OutputError

__all__ = ["read_whole", "write_all", "write_whole"]


def read_whole(path: Path, what: str) -> bytes:
    """The bytes of a file that must not be empty; ``what`` names it in the error."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror or error}") from error
    if not data:
        raise DataError(f"{what} is empty (zero bytes)")
    return data


def write_all(writers: dict[Path, Callable[[Path], object]]) -> None:
    """Write every file beside its place, then rename them all: a full disk or an interruption leaves the old ones."""
    drafts = {path.with_name(f".{path.name}.{os.getpid()}.part"): path for path in writers}
    try:
        for draft, path in drafts.items():
            draft.touch()
            mode = draft.stat().st_mode  # as for any new file; safetensors would keep others out
            writers[path](draft)
            draft.chmod(mode)
        for draft, path in drafts.items():
            draft.replace(path)
    finally:
        for draft in drafts:
            with contextlib.suppress(OSError):  # it would hide the error that matters
                draft.unlink()


def write_whole(path: Path, data: bytes | str) -> None:
    """Write one file, and the folders above it, whole or not at all."""
    content = data.encode() if isinstance(data, str) else data
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_all({path: lambda draft: draft.write_bytes(content)})
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
