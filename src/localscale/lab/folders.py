"""Lock a folder, so that one process at a time writes to it; compare settings; recognize links out of a folder."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from localscale.errors import OutputError
from localscale.files import reason_of

__all__ = ["differences", "locked", "stays_inside"]

logger = logging.getLogger(__name__)

HELD: set[int] = set()  # descriptors of this process that hold a lock


@contextlib.contextmanager
def locked(folder: Path, *, activity: str, patience: float = 0.0) -> Iterator[int]:
    """Create ``folder`` if it is missing and hold an exclusive lock on it; yield the descriptor that holds the lock.

    The operating system releases the lock when the last duplicate of the descriptor is closed, also after a crash. A
    forked process, such as a data worker, gives its duplicate up at once, because it may outlive this process.

    Args:
        folder: the folder to lock.
        activity: words for the error "another process is …", such as ``"training in"``.
        patience: seconds to wait for another process before raising ``OutputError``; infinity waits for its end.
    """
    try:
        if folder.is_file():
            raise OutputError(f"{folder} is a file, not a folder; choose another folder with --out")
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OutputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no folder can have
        raise OutputError(
            f"{folder} cannot be created: {reason_of(error)}; choose a folder you can write to with --out"
        ) from error
    try:
        _close_in_forks()
        HELD.add(descriptor)
        _wait_for_lock(descriptor, folder, activity, time.monotonic() + patience)
        yield descriptor
    finally:
        if descriptor in HELD:  # else this is a fork that has closed it
            HELD.remove(descriptor)
            with contextlib.suppress(OSError):
                os.close(descriptor)


@functools.cache
def _close_in_forks() -> None:
    def close() -> None:
        while HELD:
            os.close(HELD.pop())

    os.register_at_fork(after_in_child=close)


def _wait_for_lock(descriptor: int, folder: Path, activity: str, deadline: float) -> None:
    said = deadline < math.inf
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if not said:
                logger.warning("another process is %s %s; waiting for its end", activity, folder)
                said = True
            if time.monotonic() >= deadline:
                raise OutputError(
                    f"another process is {activity} {folder}; wait for it, or choose another folder with --out"
                ) from error
            time.sleep(0.1)
        except OSError as error:
            raise OutputError(
                f"{folder} cannot be locked ({error.strerror}); choose a folder on a file system that supports locks"
            ) from error


def stays_inside(path: Path, root: Path) -> bool:
    """Return whether ``path`` lies in ``root`` after all symbolic links are followed; ``root`` itself may be a link.

    >>> stays_inside(Path("photos/cat/1.jpg"), Path("photos")), stays_inside(Path("photos/../1.jpg"), Path("photos"))
    (True, False)
    """
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a name that no file can have
        return False


def differences(found: Any, wanted: Any, name: str = "") -> list[str]:
    """Return one sentence for each value in which two JSON documents differ.

    >>> differences({"seed": 0, "data": {"count": 5}}, {"seed": 1, "data": {"count": 5}})
    ['seed was 0 and is now 1']
    """
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        prefix = f"{name}." if name else ""
        keys = {**found, **wanted}
        return [line for key in keys for line in differences(found.get(key), wanted.get(key), f"{prefix}{key}")]
    return [] if found == wanted else [f"{name} was {_short(found)} and is now {_short(wanted)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
