"""Record the kernel launches of a solve as a CUDA graph and replay them.

A solve launches dozens of small kernels, and the GPU finishes them faster than the host can launch them. Without
gradients, a solve that is repeated with the same shapes, settings and weight addresses is therefore recorded once and
replayed from then on. Setting ``LOCALSCALE_GRAPHS=0`` in the environment turns recording off.
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

__all__ = ["replay_or_call"]

logger = logging.getLogger(__name__)

ENABLED = os.environ.get("LOCALSCALE_GRAPHS", "1") != "0"
CALLS_BEFORE_RECORDING = 2  # these calls compile the kernels
MAX_RECORDINGS = 4  # per owner; each recording keeps its memory

Tensors = tuple[Tensor, ...]
Answer = TypeVar("Answer", bound=Tensors)


@dataclass(frozen=True)
class _Recording(Generic[Answer]):
    """A CUDA graph with the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    answer: Answer

    def __call__(self, inputs: Tensors) -> Answer:
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        return tuple(part.clone() for part in self.answer)  # type: ignore[return-value]


# For each owner and key: the number of calls so far, the recording, or None if recording failed.
_SEEN: Any = WeakIdKeyDictionary()
_SIDE_STREAMS: dict[torch.device, torch.cuda.Stream] = {}
_LOCK = threading.Lock()  # a recording's inputs and answer are shared by all threads


def replay_or_call(
    f: Callable[..., Answer], inputs: Tensors, *, owner: Tensor, reads: Tensors = (), settings: Hashable
) -> Answer:
    """Return ``f(*inputs)``, replayed from a CUDA graph if the same call was recorded before.

    Args:
        f: launches kernels only. It must not call a library that keeps a workspace, such as a matrix product.
        inputs: contiguous tensors on a GPU that need no gradient; they are copied into the recording.
        owner: the recordings are freed together with this tensor.
        reads: further tensors that ``f`` reads at their present addresses, such as weights.
        settings: everything else that the launches of ``f`` depend on.
    """
    stream = _recordable_stream(inputs[0])
    if stream is None:
        return f(*inputs)
    kinds = tuple((x.shape, x.dtype) for x in inputs)
    locations = tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in reads)
    key = (kinds, locations, stream, settings)
    with _LOCK:
        seen: OrderedDict[Hashable, int | _Recording[Answer] | None] = _SEEN.setdefault(owner, OrderedDict())
        known = seen.pop(key, 0)
        if isinstance(known, int):
            known = known + 1 if known < CALLS_BEFORE_RECORDING else _record(f, inputs, stream)
        seen[key] = known
        if len(seen) > MAX_RECORDINGS:
            seen.popitem(last=False)
        if isinstance(known, _Recording):
            return known(inputs)
    return f(*inputs)


def _recordable_stream(x: Tensor) -> torch.cuda.Stream | None:
    """Return the stream to record for, or None if recording is off or a caller is already capturing this stream."""
    if not ENABLED or not x.is_cuda or torch.cuda.is_current_stream_capturing():
        return None
    return torch.cuda.current_stream(x.device)


def _record(f: Callable[..., Answer], inputs: Tensors, stream: torch.cuda.Stream) -> _Recording[Answer] | None:
    """Record ``f`` on a side stream; return None if that fails."""
    device = inputs[0].device
    if device not in _SIDE_STREAMS:
        _SIDE_STREAMS[device] = torch.cuda.Stream(device)
    side, graph = _SIDE_STREAMS[device], torch.cuda.CUDAGraph()
    try:
        with torch.inference_mode(False), torch.no_grad():
            held = [torch.empty_like(x).copy_(x) for x in inputs]
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                answer = _capture(graph, lambda: f(*held))
            stream.wait_stream(side)
    except RuntimeError as error:  # out of memory, or the driver refuses; the kernels can still be launched one by one
        logger.info("a solve could not be recorded as a CUDA graph: %s", error)
        return None
    return _Recording(graph, held, answer)


def _capture(graph: torch.cuda.CUDAGraph, f: Callable[[], Answer]) -> Answer:
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        answer = f()
    except BaseException:  # the stream stays unusable until the capture ends
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()
    return answer
