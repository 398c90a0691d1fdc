"""Explain the end of a process on which training depends: a data worker, or another process of the same training."""

from __future__ import annotations

import functools
import os
import re
import time
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from localscale.errors import DataError, LocalScaleError, TrainingError

__all__ = ["explained"]

P = ParamSpec("P")
R = TypeVar("R")

CAUGHT = re.compile(r"['\"]?Caught (\w+) in DataLoader worker process \d+\.")
LOST = re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: ([^.]+)|exited unexpectedly)")
COLLECTIVES = re.compile(r"\bgloo\b|\bnccl\b|\bucc\b", re.IGNORECASE)
SHARER = "resource_sharer.py"  # the module through which PyTorch takes tensors from a worker
PATIENCE = 2.0  # seconds from a broken connection to the signal of the worker's end
GLOO = re.compile(r"^\[[^\]]*\] |\. This is typically.*", re.DOTALL)  # the line in its source, and general advice


def explained(resume: str, fewer: str = "fewer num_workers") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: the death or error of a data worker, and the death of another process, give one sentence.

    A file that a data worker cannot read is a ``DataError``, a process that died a ``TrainingError``. An error that may
    be a fault of the dataset's code keeps its cause; the traceback of any other would show only PyTorch's code.

    Args:
        resume: what to do to go on after a process has died.
        fewer: how to use fewer workers.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:  # no context manager: PyTorch's signal handler could raise in its code
                return function(*args, **kwargs)
            except Exception as error:
                told: Exception = error
                try:
                    _wait_for_signal(error)
                except RuntimeError as lost:
                    told = lost
                found = _find_sentence(told, resume, fewer)
                try:
                    if found is None:
                        raise
                    raise found from (None if _is_plain(told) else told)
                finally:
                    del told, found  # with this frame they would be a cycle, and keep the data loader

        return call

    return decorate


def _wait_for_signal(error: Exception) -> None:
    """Wait for the signal of a worker's end, at which PyTorch raises an error, if the connection to a worker broke.

    The connection can break before the signal arrives, which would then interrupt whatever comes next.
    """
    if _is_broken(error):
        time.sleep(PATIENCE)


def _find_sentence(error: Exception, resume: str, fewer: str) -> LocalScaleError | None:
    found = (explain(error, resume, fewer) for explain in (_in_worker, _lost_worker, _lost_process))
    return next(filter(None, found), None)


def _is_broken(error: Exception) -> bool:
    """Return whether the connection broke over which a tensor of a data worker was to come."""
    ends = ConnectionError | EOFError | FileNotFoundError
    return isinstance(error, ends) and SHARER in "".join(traceback.format_exception(error))


def _in_worker(error: Exception, resume: str, fewer: str) -> LocalScaleError | None:
    """Return the error of a dataset in a worker; PyTorch raises its type, with the traceback as its message."""
    text = str(error.args[0]) if error.args else ""
    caught = CAUGHT.match(text)
    if caught is None:
        return None
    name = caught[1]
    _, found, message = text.rpartition(f"{name}: ")
    message = " ".join(message.split()) if found else name
    if isinstance(error, LocalScaleError):
        return type(error)(message)
    advice = "repair or remove that file" if _is_plain(error) else "num_workers=0 shows where in the dataset"
    return DataError(f"a data worker could not load a batch ({name}: {message}); {advice}")


def _lost_worker(error: Exception, resume: str, fewer: str) -> LocalScaleError | None:
    texts = (str(error), str(error.__cause__))  # the cause names the signal
    lost = [found for found in map(LOST.search, texts) if found]
    if not (isinstance(error, RuntimeError) and lost) and not _is_broken(error):
        return None
    number = next((found[1] for found in lost if found[1]), None)
    why = {
        None: "ended unexpectedly, perhaps because memory ran out",
        "Killed": "was killed, perhaps because memory ran out",
        "Bus error": "ended with a bus error, perhaps because shared memory ran out",
    }.get(number, f"was ended by a signal ({number})")
    return TrainingError(f"a process that loads images {why}; {resume}, if it happens again with {fewer}")


def _lost_process(error: Exception, resume: str, fewer: str) -> LocalScaleError | None:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    lost = isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and COLLECTIVES.search(str(error))
    )
    if world < 2 or not lost or isinstance(error, LocalScaleError):
        return None
    said = (GLOO.sub("", str(error)).strip() or type(error).__name__).splitlines()[0]
    return TrainingError(
        f"process {os.environ.get('RANK', '?')} of {world} lost another process of this training, whose own output may "
        f"say why ({said}); {resume}"
    )


def _is_plain(error: Exception) -> bool:
    """Whether a sentence says all: not for errors that any code of a dataset can raise."""
    in_worker = bool(error.args) and CAUGHT.match(str(error.args[0])) is not None
    return not in_worker or isinstance(error, OSError | SyntaxError | LocalScaleError)
