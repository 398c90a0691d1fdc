"""Launches recorded as a CUDA graph and replayed: the host's work of a solve, done once.

A solve is dozens of small kernels, and the device is done with them sooner than the host can launch them. Without
gradients one that comes again in the same way, of the same shape and with weights in the same places, is therefore
recorded, and from then on replayed. ``LOCALSCALE_GRAPHS=0`` in the environment turns it off.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["replayed"]

WANTED = os.environ.get("LOCALSCALE_GRAPHS", "1") != "0"
USUAL = 2  # calls that run as they are, in which programs are compiled; the next is recorded
MOST = 4  # ways to be called that are remembered of one owner; each recording keeps its memory

Answer = TypeVar("Answer", bound=tuple[Tensor, ...])


@dataclass(frozen=True)
class _Recording(Generic[Answer]):
    """Launches, and where they read and write."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    answer: Answer

    def __call__(self, x: Tensor) -> Answer:
        self.x.copy_(x)
        self.graph.replay()
        return tuple(part.clone() for part in self.answer)  # type: ignore[return-value]


# For each owner: how often a way to be called came, or its recording, or None if it cannot be recorded.
_SEEN: Any = WeakIdKeyDictionary()
_SIDES: dict[torch.device, torch.cuda.Stream] = {}
_ORDER = threading.Lock()  # of what is read into a recording and out of it


def replayed(f: Callable[[Tensor], Answer], x: Tensor, *, owner: Tensor, way: Hashable) -> Answer:
    """``f(x)`` for contiguous ``x`` on a GPU, without gradients; replayed where it came before.

    ``f`` reads ``x`` and tensors that stay where they are, and waits for nothing; all else that it does follows from
    ``way``. What is remembered goes with its ``owner``.
    """
    stream = _stream_of(x)
    if stream is None:
        return f(x)
    key = (x.shape, x.dtype, stream, way)
    with _ORDER:
        seen: OrderedDict[Hashable, int | _Recording[Answer] | None] = _SEEN.setdefault(owner, OrderedDict())
        known = seen.pop(key, 0)
        if isinstance(known, int):
            known = known + 1 if known < USUAL else _record(f, x, stream)
        seen[key] = known
        if len(seen) > MOST:
            seen.popitem(last=False)
        if isinstance(known, _Recording):
            return known(x)
    return f(x)


def _stream_of(x: Tensor) -> torch.cuda.Stream | None:
    """The stream to record for; None where nothing is to be recorded, or everything is already."""
    if not WANTED or not x.is_cuda or torch.cuda.is_current_stream_capturing():
        return None
    return torch.cuda.current_stream(x.device)


def _record(f: Callable[[Tensor], Answer], x: Tensor, stream: torch.cuda.Stream) -> _Recording[Answer] | None:
    """Launch ``f`` beside ``stream``, once to warm up and once to be recorded."""
    side = _SIDES.setdefault(x.device, torch.cuda.Stream(x.device))
    graph = torch.cuda.CUDAGraph()
    side.wait_stream(stream)
    try:
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.stream(side):
            held = torch.empty_like(x).copy_(x)
            f(held)
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                answer = f(held)
            finally:
                graph.capture_end()
    except RuntimeError:  # no memory left for it, or a driver that will not: it can still be launched
        return None
    finally:
        stream.wait_stream(side)
    return _Recording(graph, held, answer)
