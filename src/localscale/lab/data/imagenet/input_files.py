"""Check the files and folders that options name, and identify them in the settings by content, not by path."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from localscale.errors import ConfigError, DataError

__all__ = ["check_checksum", "identify", "identify_model", "require_path"]

HEX_DIGITS = {"sha256": 64, "md5": 32}


def require_path(path: Path | None, option: str, name: str) -> Path:
    """Return the path that the stage ``name`` reads; raise if ``option`` is missing or its path does not exist."""
    if path is None:
        raise ConfigError(f'"{name}" reads from disk: name the file or folder with {option}')
    if not path.exists():
        raise DataError(f"{option} {path} does not exist; give the path of a file or folder that does")
    return path


def identify(path: Path) -> dict[str, str]:
    """Return a file's or folder's name and the SHA-256 of its content.

    A folder's hash covers the names and contents of its files; of images it covers the name and the size only.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(prefix="model-") as file:
    ...     identify(Path(file.name))["sha256"][:16]
    'e3b0c44298fc1c14'
    """
    return {"name": path.absolute().name, "sha256": _hash_folder(path) if path.is_dir() else _hash_file(path)}


def identify_model(name: str) -> str | dict[str, str]:
    """Return the name of a model on the Hugging Face hub as it is, and identify a local folder by its content."""
    return identify(Path(name)) if Path(name).is_dir() else name


def check_checksum(path: Path, checksum: str, *, option: str) -> None:
    """Raise ``DataError`` unless the file's hash is ``checksum``, written as ``sha256:…`` or ``md5:…``."""
    kind, _, expected = checksum.strip().lower().rpartition(":")
    kind = kind or next((name for name, length in HEX_DIGITS.items() if length == len(expected)), "")
    if kind not in HEX_DIGITS or len(expected) != HEX_DIGITS[kind] or set(expected) - set("0123456789abcdef"):
        raise ConfigError(
            f"{option} is {checksum!r}; expected sha256: and 64 hexadecimal digits, or md5: and 32 of them"
        )
    try:
        found = _hash_file(path, kind)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not hmac.compare_digest(found, expected):
        raise DataError(
            f"{path} has the {kind} checksum {found}; expected {expected}. Download the file again, or pass the "
            f"checksum of the file that you trust with {option} {kind}:…"
        )


def _hash_file(path: Path, kind: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _hash_folder(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        image = file.suffix.lower() in (".png", ".jpg", ".jpeg")
        content = str(file.stat().st_size) if image else _hash_file(file)
        digest.update(f"{file.relative_to(path).as_posix()}\t{content}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
