"""Read files with clear errors, and write files atomically."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from localscale.errors import ConfigError, DataError, LocalScaleError, OutputError

try:
    import fcntl
except ImportError:  # Windows: drafts are not locked there, and those of killed processes stay
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "clear_drafts",
    "errors_as",
    "is_sealed",
    "path_from",
    "read_whole",
    "reason_of",
    "seal",
    "unseal",
    "write_all",
    "write_whole",
]

DRAFT = re.compile(r"\..+\.\d+-\d+\.part")
NUMBERS = itertools.count()
SEAL = "crc32"


def path_from(name: str, value: object) -> Path:
    """Return ``value``, a text or a path, as a path; raise ``ConfigError``, which calls it ``name``, for others."""
    if isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str):
        return Path(path)
    raise ConfigError(f"{name} is {value!r}; expected a path, as a text or a pathlib.Path")


def read_whole(path: Path, what: str) -> bytes:
    """Return the bytes of a file; raise ``DataError``, which names it ``what``, if it is missing or empty."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"{what} cannot be read: {reason_of(error)}") from error
    if not data:
        raise DataError(f"{what} is empty (zero bytes)")
    return data


def write_all(writers: dict[Path, Callable[[Path], object]]) -> None:
    """Write every file under a temporary name, then rename them in the order given; if a write fails, old files stay.

    Each file is on the disk before the first is renamed, and each rename before the next. So after a crash, too, the
    first files are new and the others old. Drafts that killed processes left in the folders are removed.
    """
    for folder in {path.parent for path in writers}:
        clear_drafts(folder)
    _write_all(writers, durable=True)


def write_whole(path: Path, data: bytes | str, *, durable: bool = False) -> None:
    """Write one file atomically, and create the folders above it; ``durable`` does all that ``write_all`` does."""
    content = data.encode() if isinstance(data, str) else data
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if durable:
            clear_drafts(path.parent)
        _write_all({path: lambda draft: draft.write_bytes(content)}, durable=durable)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise OutputError(f"{path} cannot be written: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return why a file cannot be read or written, without its name.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "a.txt"))
    'No such file or directory'
    """
    return getattr(error, "strerror", None) or str(error)


@contextlib.contextmanager
def errors_as(kind: type[LocalScaleError], what: str) -> Iterator[None]:
    """Return a context in which errors of the file system, and of names that no file can have, become ``kind``.

    ``what`` is the first part of the sentence, such as "runs/a cannot be read".
    """
    try:
        yield
    except LocalScaleError:
        raise
    except (OSError, ValueError) as error:
        raise kind(f"{what}: {reason_of(error)}") from error


def seal(values: dict[str, Any], *, indent: int | None = None) -> str:
    """Return a JSON object as a text with a checksum in the field ``crc32``, which ``unseal`` compares.

    >>> seal({"epoch": 1})
    '{"epoch": 1, "crc32": "94919848"}\\n'
    """
    return json.dumps({**values, SEAL: _crc_of(values)}, indent=indent) + "\n"


def unseal(text: str) -> dict[str, Any]:
    """Return the JSON object in ``text`` without its checksum; raise ``ValueError`` if it does not fit.

    An object without a checksum is returned as it is.

    >>> unseal('{"epoch": 2, "crc32": "94919848"}')
    Traceback (most recent call last):
        ...
    ValueError: its checksum does not fit, so it is damaged, or was edited by hand: then remove its field crc32
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"it holds a {type(values).__name__}; expected a JSON object")
    given = values.pop(SEAL, None)
    if given is not None and given != _crc_of(values):
        raise ValueError(
            f"its checksum does not fit, so it is damaged, or was edited by hand: then remove its field {SEAL}"
        )
    return values


def is_sealed(text: str) -> bool:
    """Return whether the JSON object in ``text`` has a checksum."""
    return SEAL in json.loads(text)


def _crc_of(values: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(values, sort_keys=True).encode()):08x}"


def clear_drafts(folder: Path) -> None:
    """Remove the drafts in ``folder`` that killed processes left; a living process holds a lock on its own."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = [entry.name for entry in entries if DRAFT.fullmatch(entry.name)]
        for name in found:
            with contextlib.suppress(OSError):
                descriptor = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    (folder / name).unlink()
                finally:
                    os.close(descriptor)


def _write_all(writers: dict[Path, Callable[[Path], object]], *, durable: bool) -> None:
    with contextlib.ExitStack() as drafts:
        opened = [(path, *drafts.enter_context(_draft(path))) for path in writers]
        for path, draft, descriptor in opened:
            mode = os.fstat(descriptor).st_mode
            writers[path](draft)
            draft.chmod(mode)  # a writer may restrict the file to its owner
            if durable:
                os.fsync(descriptor)
        for path, draft, _ in opened:
            draft.replace(path)
            if durable:
                _sync(path.parent)


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[tuple[Path, int]]:
    """Create an empty file beside ``path`` and lock it; yield its path and descriptor, and remove it if it remains."""
    while True:
        draft = path.with_name(f".{path.name}.{os.getpid()}-{next(NUMBERS)}.part")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if fcntl is not None:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not os.fstat(descriptor).st_nlink:  # another process took it for a dead one before it was locked
                continue
            yield draft, descriptor
            return
        finally:
            with contextlib.suppress(OSError):  # an error here would hide the original one
                draft.unlink()
            os.close(descriptor)


def _sync(folder: Path) -> None:
    """Bring the names in ``folder`` onto the disk, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
