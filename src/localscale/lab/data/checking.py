"""Check the files of a folder before training, and tell which of them are left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

__all__ = ["check_all", "warn_left_out"]

READERS = 8  # threads that check images; decoding releases the global interpreter lock
NAMED = 3  # broken images that a warning names

Item = TypeVar("Item")
Found = TypeVar("Found")

log = logging.getLogger(__name__)


def check_all(check: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
    """Return ``check(item)`` of every item, computed in threads, with a progress bar on a terminal."""
    with ThreadPoolExecutor(READERS) as pool:
        checked = tqdm(
            pool.map(check, items), total=len(items), desc="checking images", unit="image", leave=False, disable=None
        )
        return list(checked)


def warn_left_out(faults: Sequence[str], total: int, root: Path) -> None:
    """Warn that images of ``root`` are left out; the first faults are named and the others counted."""
    log.warning(
        "%d of %d images in %s are left out, because they cannot be read: %s%s",
        len(faults),
        total,
        root,
        "; ".join(faults[:NAMED]),
        f"; and {len(faults) - NAMED} more" if len(faults) > NAMED else "",
    )
