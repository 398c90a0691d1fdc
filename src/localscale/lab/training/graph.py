"""Record a step once as a CUDA graph and replay it: one launch instead of thousands."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from localscale.errors import LocalScaleError, TrainingError

__all__ = ["Replayed"]

WARM_UP = 3  # steps before recording, in which libraries choose kernels and allocate workspaces

Step = Callable[..., dict[str, Tensor]]


class Replayed:
    """A function of GPU tensors that runs eagerly for a few calls, then is recorded once and replayed in later calls.

    Small backbones and fixed-step solvers are limited by the host's kernel launches, which replaying avoids. A call
    with other shapes than the recorded ones runs eagerly. Each call overwrites the tensors that the last one returned.
    """

    def __init__(self, step: Step) -> None:
        self.step, self.calls = step, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.answer: dict[str, Tensor] = {}

    def __call__(self, *tensors: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls <= WARM_UP:
            return self._aside(*tensors)
        if self.graph is None:
            self._record(*tensors)
        if any(kept.shape != given.shape for kept, given in zip(self.inputs, tensors, strict=True)):
            return self.step(*tensors)
        for kept, given in zip(self.inputs, tensors, strict=True):
            kept.copy_(given)
        assert self.graph is not None
        self.graph.replay()
        return self.answer

    def _aside(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Run on a side stream, as recording will."""
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            answer = self.step(*tensors)
        current.wait_stream(stream)
        return answer

    def _record(self, *tensors: Tensor) -> None:
        self.inputs = tuple(tensor.clone() for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.answer = self.step(*self.inputs)
        except (torch.OutOfMemoryError, LocalScaleError):
            raise
        except RuntimeError as error:
            raise TrainingError(
                f"a training step could not be recorded as a CUDA graph ({str(error).splitlines()[0]}); "
                "add --no-cuda-graph"
            ) from error
        self.graph = graph
