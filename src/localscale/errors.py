"""The errors and warnings that this library raises.

Each message states the value that was given, the values that are allowed, and how to correct it.
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
    "HubError",
    "KernelError",
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
    """A map has invalid parameters, or does not fit the tensors it is used with."""


class ShapeError(LocalScaleError, ValueError):
    """A tensor has the wrong rank, size or dtype."""


class ConfigError(LocalScaleError, ValueError):
    """A configuration value is unknown or out of range."""


class SiteError(LocalScaleError, ValueError):
    """A module cannot be adapted, or its features have an unexpected layout."""


class CheckpointError(LocalScaleError, ValueError):
    """A saved model cannot be read, or belongs to another architecture."""


class HubError(LocalScaleError, OSError):
    """A model cannot be downloaded from the Hugging Face Hub, or uploaded to it."""


class ConvergenceError(LocalScaleError, RuntimeError):
    """A solver did not converge and ``on_failure`` is ``"raise"``."""


class GradientError(LocalScaleError, RuntimeError):
    """A gradient was differentiated again, but its rule gives first derivatives only."""


class KernelError(LocalScaleError, RuntimeError):
    """A kernel needs more shared memory than the GPU has."""


class DataError(LocalScaleError, ValueError):
    """An image, mesh, panorama, digit file or manifest cannot be used."""


class TrainingError(LocalScaleError, RuntimeError):
    """Training cannot continue, because values are not finite, memory is exhausted or a process died."""


class OutputError(LocalScaleError, OSError):
    """A folder cannot be written: the disk is full, or the folder is read-only, in use, or holds other files."""


class MissingExtraError(LocalScaleError, ImportError):
    """A package that an optional part of the library needs is not installed."""


class ConvergenceWarning(UserWarning):
    """A solver did not converge and ``on_failure`` is ``"warn"``."""


def near_misses(name: str, known: Iterable[str]) -> str:
    """Return a phrase with the known names that are closest to ``name``, or with all of them if none is close.

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
