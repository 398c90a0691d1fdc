"""Jobs: a number of items, each computed from its index alone by a sequence of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Job", "Sample", "Skip", "Stage", "build", "run"]


@dataclass(frozen=True)
class Sample:
    """One image of a dataset: its files by suffix (``{"png": …, "class.png": …}``) and its record in the manifest.

    ``key`` is the files' name: unique in the dataset, and made of letters, digits, ``-`` and ``_``.
    """

    key: str
    files: Mapping[str, bytes]
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Skip:
    """An item without an image; its reason and record are written to the manifest."""

    reason: str
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """One stage of computing an item.

    ``build()`` is called once per process. It loads models and other inputs, and returns a function that maps the
    previous stage's result to its own. The first stage receives the item's index; the last returns a list of
    ``Sample``. If a stage returns a ``Skip``, the later stages are not called. ``build`` is pickled for worker
    processes, so it must be a module-level function, a class, or a ``functools.partial`` of one. Set ``gpu=True`` for a
    stage with a model that should run on a GPU of a Ray cluster.
    """

    name: str
    build: Callable[[], Callable[[Any], Any]]
    gpu: bool = False


@dataclass(frozen=True)
class Job:
    """A dataset to write: ``size`` items, computed by ``stages``.

    ``settings`` holds, as JSON, every value that the files depend on. A folder that was started with other settings is
    not continued. ``chunk_size`` items are written together, and are computed again together after a crash, so choose a
    few seconds' work. ``note`` is printed before the job starts.
    """

    kind: str
    size: int
    settings: Mapping[str, Any]
    stages: Sequence[Stage]
    chunk_size: int = 32
    note: str = ""


def build(stages: Sequence[Stage]) -> list[Callable[[Any], Any]]:
    """Return the function of each stage, with its inputs loaded."""
    return [stage.build() for stage in stages]


def run(functions: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    """Apply stage functions to an item's index, or to an earlier stage's result, until one returns a ``Skip``.

    >>> run([lambda index: index + 1, lambda n: [Sample(f"{n:06d}", {"txt": b"hello"}, {"n": n})]], 6)[0].key
    '000007'
    >>> run([lambda index: Skip("too small"), len], 6)
    Skip(reason='too small', record={})
    """
    for function in functions:
        if isinstance(value, Skip):
            break
        value = function(value)
    return value
