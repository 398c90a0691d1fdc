"""What a generator promises: so many items, each made from its index alone, by stages in a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Job", "Sample", "Skip", "Stage", "build", "run"]


@dataclass(frozen=True)
class Sample:
    """One image of a dataset: its files by suffix (``{"png": …, "class.png": …}``) and its line in the manifest.

    ``key`` names the files, so it is unique in the dataset and made of letters, digits, ``-`` and ``_``.
    """

    key: str
    files: Mapping[str, bytes]
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Skip:
    """An item that gives no image, and why; it gets a line in the manifest too."""

    reason: str
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """One step of making an item.

    ``build()`` loads what the step needs, once per process, and returns the step itself: a function of what the stage
    before returned. The first stage takes the item's index; the last returns a list of ``Sample``. Any stage may
    return a ``Skip``, which ends the item. ``build`` travels to other processes, so it is a module's function, a
    class, or a ``functools.partial`` of one. A stage with ``gpu=True`` holds a model worth an accelerator.
    """

    name: str
    build: Callable[[], Callable[[Any], Any]]
    gpu: bool = False


@dataclass(frozen=True)
class Job:
    """A dataset to be made: ``size`` items by ``stages``.

    ``settings`` holds everything the files depend on, as JSON; a folder begun with other settings is not continued.
    ``chunk_size`` items are written together, and made again together if a run is killed: some seconds' work. ``note``
    is what its user should know before it starts.
    """

    kind: str
    size: int
    settings: Mapping[str, Any]
    stages: Sequence[Stage]
    chunk_size: int = 32
    note: str = ""


def build(stages: Sequence[Stage]) -> list[Callable[[Any], Any]]:
    """Every stage's step, loaded."""
    return [stage.build() for stage in stages]


def run(steps: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    """Take an item through some steps, from its index or from what the step before made of it; a skip stays one.

    >>> run([lambda index: index + 1, lambda n: [Sample(f"{n:06d}", {"txt": b"hello"}, {"n": n})]], 6)[0].key
    '000007'
    >>> run([lambda index: Skip("too small"), len], 6)
    Skip(reason='too small', record={})
    """
    for step in steps:
        if isinstance(value, Skip):
            break
        value = step(value)
    return value
