"""The outcome of every test image, so that two methods can be compared image by image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from localscale.errors import CheckpointError, OutputError
from localscale.files import reason_of, write_all
from localscale.tensor_files import read_tensors, write_tensors

__all__ = ["OUTCOMES", "OutcomeRecorder", "Outcomes", "digest_of"]

OUTCOMES = "outcomes"  # the key by which an evaluation returns them beside its metrics


@dataclass(frozen=True)
class Outcomes:
    """Which answers are right, and how much they change, for each test image in the order of the task.

    Args:
        right: 1 for a right answer and 0 for a wrong one, ``(N, V)`` in 8 bits; V is the number of versions whose
            accuracy counts, such as the scales of an image.
        invariance_error: the image's share of InvE (squared), ``(N,)``.
        images: identifies the test images; only outcomes on the same images can be compared.
    """

    right: Tensor
    invariance_error: Tensor
    images: str

    def write(self, path: Path) -> None:
        """Write one safetensors file atomically: N · (V + 4) bytes and a header."""
        tensors = {"right": self.right, "invariance_error": self.invariance_error}
        try:
            write_all({path: lambda draft: write_tensors(draft, tensors, {"images": self.images})})
        except (OSError, ValueError) as error:
            raise OutputError(f"{path} cannot be written: {reason_of(error)}") from error

    @classmethod
    def read(cls, path: Path) -> Outcomes:
        """Read the file that ``write`` wrote."""
        try:
            tensors, metadata = read_tensors(path)
            return cls(tensors["right"], tensors["invariance_error"], metadata["images"])
        except (CheckpointError, KeyError) as error:
            raise CheckpointError(f"{path} holds no outcomes of test images ({error}); was it copied whole?") from error


class OutcomeRecorder:
    """Collects the outcomes of an evaluation, batch by batch, in any number of processes.

    >>> recorder = OutcomeRecorder(images=2)
    >>> recorder.add(torch.tensor([1]), torch.eye(3)[:1], torch.tensor([0]))
    >>> recorder.finish("two images").right.tolist()
    [[0], [1]]
    """

    def __init__(self, images: int, versions: int = 1, device: torch.device | None = None) -> None:
        self.right = torch.zeros(images, versions, dtype=torch.uint8, device=device)
        self.error = torch.zeros(images, device=device)

    def add(self, numbers: Tensor, logits: Tensor, labels: Tensor, error: Tensor | None = None) -> None:
        """Add images by their numbers ``(B,)``, with logits ``(B, K)`` or ``(B, V, K)``, labels ``(B,)`` and errors."""
        numbers = numbers.to(self.right.device)
        logits = logits if logits.dim() == 3 else logits[:, None]
        self.right[numbers] = (logits.argmax(dim=-1) == labels[:, None]).to(torch.uint8)
        if error is not None:
            self.error[numbers] = error.float()

    def finish(self, images: str) -> Outcomes:
        """Return the outcomes of all processes, each of which has added different images."""
        for tensor in (self.right, self.error):
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(tensor)
        return Outcomes(self.right.cpu(), self.error.cpu(), images)


def digest_of(*parts: object, names: Iterable[object] = ()) -> str:
    """Return a short text that changes with any of ``parts`` or ``names``.

    >>> digest_of("imagenet", names=["a.jpg"]) == digest_of("imagenet", names=["b.jpg"])
    False
    """
    text = json.dumps([*map(str, parts), list(map(str, names))])
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
