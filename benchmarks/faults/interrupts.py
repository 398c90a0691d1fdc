"""Interrupt a function at one of its calls to the operating system: kill the process there, or raise an error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["CALLS", "at_call", "count_calls"]

CALLS = {"open", "read", "readinto", "write", "writelines", "flush", "seek", "close", "fsync", "flock", "stat", "fstat"}
CALLS |= {"lstat", "mkdir", "rmdir", "unlink", "rename", "replace", "chmod", "scandir", "listdir"}


def _counts(frame: Any, function: Any) -> bool:
    """Return whether a call is one to the operating system, by the library or for it by ``pathlib``."""
    if function.__name__ not in CALLS or isinstance(getattr(function, "__self__", None), str):
        return False
    file = frame.f_code.co_filename
    return "/localscale/" in file or "pathlib" in file


def at_call(work: Callable[[], Any], number: int, deed: Callable[[str], None]) -> Any:
    """Run ``work``, and call ``deed`` with the name of the call, just before its call ``number``, counted from 0.

    An error that ``deed`` raises appears to come from that call.
    """
    left = number

    def watch(frame: Any, event: str, function: Any) -> None:
        nonlocal left
        if event == "c_call" and _counts(frame, function):
            left -= 1
            if left == -1:
                sys.setprofile(None)
                deed(function.__name__)

    sys.setprofile(watch)
    try:
        return work()
    finally:
        sys.setprofile(None)


def count_calls(work: Callable[[], Any]) -> int:
    """Run ``work`` and return how many calls it makes."""
    count = 0

    def watch(frame: Any, event: str, function: Any) -> None:
        nonlocal count
        count += event == "c_call" and _counts(frame, function)

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
