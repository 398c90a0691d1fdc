"""Processes that are killed while they save: old or new files must load, and the next save clears drafts."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import time
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.interrupts import at_call, count_calls
from benchmarks.faults.saved import CHECKPOINT, MODEL, OPEN_MODEL, WEIGHTS, Saved, equal, in_memory, warmed_up
from localscale.errors import LocalScaleError

__all__ = ["KilledSaves"]


class KilledSaves(Campaign):
    """Fork a child that saves over the files in a folder, and kill it at a random call or after a random time."""

    name = "saves"
    about = "kills of save_pretrained and of checkpoint writes"
    goal = 600
    share = 1.5
    patience = 30.0
    kinds: ClassVar[tuple[Saved, ...]] = (MODEL, MODEL, CHECKPOINT, WEIGHTS)

    def prepare(self, folder: Path) -> None:
        folder = in_memory(folder)
        warmed_up(folder / "warm")
        self.folder = folder / "trial"
        self.before: dict[str, dict[int, Path]] = {}
        self.values: dict[str, dict[int, Any]] = {}
        self.calls: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        for kind in (*self.kinds, OPEN_MODEL):
            folders = {version: folder / kind.name / str(version) for version in (0, 1)}
            for version, path in folders.items():
                kind.write(path, version)
            self.before[kind.name] = folders
            self.values[kind.name] = {version: kind.read(path) for version, path in folders.items()}
            started = time.perf_counter()
            kind.write(folders[1], 1)
            self.seconds[kind.name] = time.perf_counter() - started
            self.calls[kind.name] = count_calls(functools.partial(kind.write, folders[1], 1))

    def trial(self, draw: Random) -> str | None:
        kind = draw.choice(self.kinds)
        old = draw.choice((kind, kind, OPEN_MODEL)) if kind is MODEL else kind  # also one of an earlier version
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before[old.name][0], self.folder)
        for _ in range(draw.choice((1, 1, 1, 3))):
            self._kill(kind, draw)
        try:
            found = kind.read(self.folder)
        except LocalScaleError as error:
            return f"after a kill the {old.name} loads neither as old nor as new: {error}"
        if not any(equal(found, values) for values in self.values[kind.name].values()):
            return f"after a kill the {old.name} loads, but as a mixture of old and new"
        kind.write(self.folder, 1)
        names, expected = ({p.name for p in path.iterdir()} for path in (self.folder, self.before[kind.name][1]))
        if names != expected:
            return f"the next save leaves {', '.join(sorted(names ^ expected))}"
        return None if equal(kind.read(self.folder), self.values[kind.name][1]) else "the next save is not what loads"

    def _kill(self, kind: Saved, draw: Random) -> None:
        """Save version 1 in a child that is killed, or that ends just before."""
        number = draw.randrange(self.calls[kind.name] + 1) if draw.random() < 0.7 else None
        pause = draw.uniform(0, 1.2) * self.seconds[kind.name]
        child = os.fork()
        if not child:
            self._save_and_die(kind, number)
        try:
            if number is None:
                time.sleep(pause)
        finally:
            if number is None:
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def _save_and_die(self, kind: Saved, number: int | None) -> None:
        """In the child: save, and die at call ``number``; never return."""
        try:
            signal.setitimer(signal.ITIMER_REAL, self.patience)  # an orphan ends, too
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            if number is None:
                kind.write(self.folder, 1)
            else:
                at_call(lambda: kind.write(self.folder, 1), number, lambda _: os.kill(os.getpid(), signal.SIGKILL))
        finally:
            os._exit(0)
