"""Launches recorded as a CUDA graph and replayed: the host's work of a solve, done once.

A solve is dozens of small kernels, and the device is done with them sooner than the host can launch them. Without
gradients one that comes again in the same way, of the same shapes and with weights in the same places, is therefore
recorded, and from then on replayed. ``LOCALSCALE_GRAPHS=0`` in the environment turns it off.
"""

from __future__ import annotations

import contextlib
import logging
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

logger = logging.getLogger(__name__)

WANTED = os.environ.get("LOCALSCALE_GRAPHS", "1") != "0"
USUAL = 2  # calls that run as they are, in which programs are compiled; the next is recorded
MOST = 4  # ways to be called that are remembered of one owner; each recording keeps its memory

Tensors = tuple[Tensor, ...]
Answer = TypeVar("Answer", bound=Tensors)


@dataclass(frozen=True)
class _Recording(Generic[Answer]):
    """Launches, and where they read and write."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    answer: Answer

    def __call__(self, inputs: Tensors) -> Answer:
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        return tuple(part.clone() for part in self.answer)  # type: ignore[return-value]


# For each owner: how often a way to be called came, or its recording, or None if it cannot be recorded.
_SEEN: Any = WeakIdKeyDictionary()
_SIDES: dict[torch.device, torch.cuda.Stream] = {}
_ORDER = threading.Lock()  # of what is read into a recording and out of it


def replayed(f: Callable[..., Answer], inputs: Tensors, *, owner: Tensor, reads: Tensors = (), way: Hashable) -> Answer:
    """``f(*inputs)`` for contiguous tensors on a GPU, without gradients; replayed where it came before.

    ``f`` launches kernels, and nothing that keeps memory of its own, as matrix products of libraries do. Besides its
    inputs it takes what it ``reads`` from where it lies; all else that it does follows from ``way``. What is
    remembered goes with its ``owner``.
    """
    stream = _stream_of(inputs[0])
    if stream is None:
        return f(*inputs)
    kinds = tuple((x.shape, x.dtype) for x in inputs)
    places = tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in reads)
    key = (kinds, places, stream, way)
    with _ORDER:
        seen: OrderedDict[Hashable, int | _Recording[Answer] | None] = _SEEN.setdefault(owner, OrderedDict())
        known = seen.pop(key, 0)
        if isinstance(known, int):
            known = known + 1 if known < USUAL else _record(f, inputs, stream)
        seen[key] = known
        if len(seen) > MOST:
            seen.popitem(last=False)
        if isinstance(known, _Recording):
            return known(inputs)
    return f(*inputs)


def _stream_of(x: Tensor) -> torch.cuda.Stream | None:
    """The stream to record for; None where nothing is to be recorded, or everything is already."""
    if not WANTED or not x.is_cuda or torch.cuda.is_current_stream_capturing():
        return None
    return torch.cuda.current_stream(x.device)


def _record(f: Callable[..., Answer], inputs: Tensors, stream: torch.cuda.Stream) -> _Recording[Answer] | None:
    """Launch ``f`` beside ``stream``, to be recorded."""
    device = inputs[0].device
    if device not in _SIDES:
        _SIDES[device] = torch.cuda.Stream(device)
    side, graph = _SIDES[device], torch.cuda.CUDAGraph()
    try:
        with torch.inference_mode(False), torch.no_grad():
            held = [torch.empty_like(x).copy_(x) for x in inputs]
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                answer = _capture(graph, lambda: f(*held))
            stream.wait_stream(side)
    except RuntimeError as error:  # no memory left for it, or a driver that will not: it can still be launched
        logger.info("a solve could not be recorded as a CUDA graph: %s", error)
        return None
    return _Recording(graph, held, answer)


def _capture(graph: torch.cuda.CUDAGraph, f: Callable[[], Answer]) -> Answer:
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        answer = f()
    except BaseException:  # whatever it is, the stream must not stay in capture
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()
    return answer
