"""Disks that are full, read-only or broken, and folders that vanish or cannot exist: one error, nothing lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.interrupts import at_call, count_calls
from benchmarks.faults.saved import KINDS, Saved, equal, in_memory, warmed_up
from localscale.errors import LocalScaleError

__all__ = ["FaultyDisks"]

LONG = "/".join(["deep"] * 2000)
NAMES = ("a\0b", "\ud800", "x" * 300, LONG, "file", "file/below", "/proc/nowhere", "/dev/null/below")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.ESTALE, errno.ENOLCK, errno.EMFILE)


class FaultyDisks(Campaign):
    """Save or load on a disk with one fault; what was saved before must still be there."""

    name = "disks"
    about = "full, read-only, broken disks and odd folders"
    goal = 1_000
    share = 0.5
    patience = 30.0
    kinds: ClassVar[tuple[Saved, ...]] = KINDS

    def prepare(self, folder: Path) -> None:
        folder = in_memory(folder)
        warmed_up(folder / "warm")
        self.folder = folder / "trial"
        (folder / "file").touch()
        self.before = {kind.name: {n: folder / kind.name / str(n) for n in (0, 1)} for kind in self.kinds}
        self.values: dict[str, dict[int, Any]] = {}
        self.calls: dict[str, tuple[int, int]] = {}
        for kind in self.kinds:
            for version, path in self.before[kind.name].items():
                kind.write(path, version)
            self.values[kind.name] = {version: kind.read(path) for version, path in self.before[kind.name].items()}
            path = self.before[kind.name][1]
            new = folder / "new" / kind.name
            self.calls[kind.name] = count_calls(lambda: kind.write(new, 1)), count_calls(lambda: kind.read(path))  # noqa: B023

    def trial(self, draw: Random) -> str | None:
        kind = draw.choice(self.kinds)
        shutil.rmtree(self.folder, ignore_errors=True)
        if kind.rewritable:
            shutil.copytree(self.before[kind.name][0], self.folder)
        fault = draw.choice((self._full, self._broken, self._vanished, self._odd_name, self._unreadable))
        wrong = fault(kind, draw)
        return f"{fault.__name__.strip('_').replace('_', ' ')}, {kind.name}: {wrong}" if wrong else None

    def _full(self, kind: Saved, draw: Random) -> str | None:
        """Save where no file can be longer than some bytes."""
        size = int(10 ** draw.uniform(0, 5))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            raised = _error_of(lambda: kind.write(self.folder, 1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return self._judge(kind, raised)

    def _broken(self, kind: Saved, draw: Random) -> str | None:
        """Save while one call to the operating system fails."""
        code, number = draw.choice(ERRORS), draw.randrange(self.calls[kind.name][0] + 1)

        def fail(name: str) -> None:
            if name == "close":  # which closes a file even if it fails
                return
            raise OSError(code, os.strerror(code))

        return self._judge(kind, _error_of(lambda: at_call(lambda: kind.write(self.folder, 1), number, fail)))

    def _vanished(self, kind: Saved, draw: Random) -> str | None:
        """Save while the folder is removed, or becomes a file."""
        number, to_file = draw.randrange(self.calls[kind.name][0] + 1), draw.random() < 0.5

        def remove(name: str) -> None:
            shutil.rmtree(self.folder, ignore_errors=True)
            if to_file:
                self.folder.touch()

        raised = _error_of(lambda: at_call(lambda: kind.write(self.folder, 1), number, remove))
        if self.folder.is_file():
            self.folder.unlink()
        if isinstance(raised, Exception) and not isinstance(raised, LocalScaleError):
            return f"foreign {raised!r}"
        shutil.rmtree(self.folder, ignore_errors=True)
        kind.write(self.folder, 1)
        return None if equal(kind.read(self.folder), self.values[kind.name][1]) else "the next save is not what loads"

    def _odd_name(self, kind: Saved, draw: Random) -> str | None:
        """Save to, and load from, a folder that cannot exist."""
        path = self.folder.parent / draw.choice(NAMES)
        for work in (lambda: kind.write(path, 1), lambda: kind.read(path)):
            raised = _error_of(work)
            if not isinstance(raised, LocalScaleError):
                return f"{str(path)[-20:]!r} gives {raised!r}"
        return None

    def _unreadable(self, kind: Saved, draw: Random) -> str | None:
        """Load while one call to the operating system fails."""
        code, number = draw.choice(ERRORS), draw.randrange(self.calls[kind.name][1] + 1)

        def fail(name: str) -> None:
            if name == "close":  # which closes a file even if it fails
                return
            raise OSError(code, os.strerror(code))

        found: list[Any] = []
        path = self.before[kind.name][1]
        raised = _error_of(lambda: found.append(at_call(lambda: kind.read(path), number, fail)))
        if raised is None:
            return None if equal(found[0], self.values[kind.name][1]) else "it loads, but not what was written"
        return None if isinstance(raised, LocalScaleError) else f"foreign {raised!r}"

    def _judge(self, kind: Saved, raised: Exception | None) -> str | None:
        """Say what is wrong after a save over version 0 that ended with ``raised``."""
        if raised is not None and not isinstance(raised, LocalScaleError):
            return f"foreign {raised!r}"
        if raised is not None and not str(raised).strip():
            return "an error without a message"
        values = self.values[kind.name]
        if kind.atomic:
            found = kind.read(self.folder)
            if not any(equal(found, version) for version in values.values()):
                return "what loads is a mixture of old and new"
            if raised is None and not equal(found, values[1]):
                return "no error, and yet the old loads"
        kind.write(self.folder, 1)
        if not equal(kind.read(self.folder), values[1]):
            return "the next save is not what loads"
        left = [path.name for path in self.folder.iterdir() if path.name.endswith(".part")]
        return f"the next save leaves {left[0]}" if left else None


def _error_of(work: Any) -> Exception | None:
    try:
        work()
    except Exception as error:
        return error
    return None
