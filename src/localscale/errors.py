"""Every error this library raises on purpose.

Each message says what came, what was expected, and what to do about it.
"""

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ConvergenceError",
    "ConvergenceWarning",
    "DataError",
    "GradientError",
    "LocalScaleError",
    "MapError",
    "MissingExtraError",
    "OutputError",
    "ShapeError",
    "SiteError",
    "TrainingError",
]


class LocalScaleError(Exception):
    """Base of all errors raised by localscale."""


class MapError(LocalScaleError, ValueError):
    """A map cannot be built or used as asked."""


class ShapeError(LocalScaleError, ValueError):
    """A tensor has the wrong rank, size or dtype."""


class ConfigError(LocalScaleError, ValueError):
    """A configuration value is unknown or out of range."""


class SiteError(LocalScaleError, ValueError):
    """A place in a network cannot be adapted as asked."""


class CheckpointError(LocalScaleError, ValueError):
    """A saved model cannot be read, or belongs to another architecture."""


class ConvergenceError(LocalScaleError, RuntimeError):
    """An equilibrium was not reached and the policy is ``"raise"``."""


class GradientError(LocalScaleError, RuntimeError):
    """A derivative was asked for that a gradient rule does not give."""


class DataError(LocalScaleError, ValueError):
    """An image, mesh, panorama, digit file or manifest cannot be used."""


class TrainingError(LocalScaleError, RuntimeError):
    """Training cannot go on: numbers that are not finite, or no memory left."""


class OutputError(LocalScaleError, OSError):
    """A folder cannot be written as asked: it is full, closed, in use, or holds something else."""


class MissingExtraError(LocalScaleError, ImportError):
    """A package that an optional part of the library needs is not installed."""


class ConvergenceWarning(UserWarning):
    """An equilibrium was not reached and the policy is ``"warn"``."""


def near_misses(name: str, known: Iterable[str]) -> str:
    """A sentence naming the known names closest to ``name``, or all of them if few.

    >>> near_misses("blocks.12", ["blocks.0", "blocks.1"])
    'did you mean blocks.1, blocks.0?'
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {', '.join(close)}?"
    if len(known) <= 12:
        return f"known: {', '.join(known)}"
    return f"known: {', '.join(known[:6])} … {', '.join(known[-3:])} ({len(known)} in all)"
