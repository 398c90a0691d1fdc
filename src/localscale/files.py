"""Files that appear whole or not at all."""

import contextlib
import os
from pathlib import Path

from localscale.errors import OutputError

__all__ = ["write_whole"]


def write_whole(path: Path, data: bytes | str) -> None:
    """Write beside ``path``, then rename: a full disk or an interruption leaves what was there before."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data.encode() if isinstance(data, str) else data)
        draft.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
