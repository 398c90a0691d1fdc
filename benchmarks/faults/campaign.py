"""Fault campaigns: many trials, each drawn from its own seed, that must leave nothing lost and nothing wrong."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import ClassVar

from tqdm import tqdm

__all__ = ["Campaign", "Tally", "run"]


class Campaign(ABC):
    """Faults of one kind. ``trial`` puts one fault, drawn from its random numbers, into a running system."""

    name: ClassVar[str]
    """One word, by which ``--replay`` finds the campaign."""
    about: ClassVar[str]
    """The faults and their target in a few words, for the table."""
    goal: ClassVar[int]
    """The number of trials that a run of ten minutes must reach."""
    share: ClassVar[float] = 1.0
    """Weight in the division of the time among campaigns."""
    patience: ClassVar[float] = 60.0
    """Seconds after which a trial counts as hanging."""

    def prepare(self, folder: Path) -> None:  # noqa: B027 (most campaigns need nothing)
        """Make once, in an empty ``folder``, what all trials share."""

    @abstractmethod
    def trial(self, draw: Random) -> str | None:
        """Try one fault; return ``None`` if it was survived, else one sentence that says what went wrong."""


@dataclass
class Tally:
    """The number of trials, and a sentence for each seed whose trial failed."""

    tried: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def survived(self) -> int:
        """The number of trials that failed in no way."""
        return self.tried - len(self.failures)


def run(
    campaign: Campaign, seeds: Iterator[int], *, seconds: float, most: int | None = None, progress: bool = True
) -> Tally:
    """Run trials from ``seeds`` until ``seconds`` have passed or ``most`` were tried."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix=f"faults-{campaign.name}-") as folder:
        campaign.prepare(Path(folder))
        started = time.monotonic()
        with tqdm(total=most, desc=campaign.name, unit="trial", leave=False, disable=not progress) as bar:
            for seed in seeds:
                if tally.tried == most or time.monotonic() - started > seconds:
                    break
                failure = _attempt(campaign, seed)
                tally.tried += 1
                if failure is not None:
                    tally.failures[seed] = failure
                    tqdm.write(f"{campaign.name}:{seed}: {failure}")
                bar.update()
        tally.seconds = time.monotonic() - started
    return tally


def _attempt(campaign: Campaign, seed: int) -> str | None:
    try:
        with _alarm(campaign.patience):
            return campaign.trial(Random(seed))
    except _HangError:
        return f"hangs: the trial did not end within {campaign.patience:g} seconds"
    except Exception as error:  # a campaign catches the errors that it expects
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:200]
        return f"foreign exception {type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {said}"


class _HangError(BaseException):
    """Raised in a trial that takes too long; not an ``Exception``, so that no trial catches it."""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
