"""The answer of mode ``"averaged"``: the mean of what a classifier says to an image and to its canonical form."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from localscale.errors import SiteError

__all__ = ["average_answers"]


def average_answers(own: Any, canonical: Any, labels: Any = None) -> Any:
    """Return log ½(softmax a + softmax b) for the logits ``(B, K)`` that two answers hold.

    Answers are tensors, or outputs of transformers with ``logits``. Their other entries are those of ``canonical``; a
    loss becomes the negative log likelihood of ``labels`` ``(B,)``.

    >>> average_answers(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 100.0]])).exp()
    tensor([[0.2500, 0.7500]])
    """
    if isinstance(own, Tensor) and isinstance(canonical, Tensor):
        return _log_mean(own, canonical)
    if not dataclasses.is_dataclass(canonical) or isinstance(canonical, type):
        raise SiteError(f"{_expected()}, and the model returned {type(canonical).__name__}")
    if not isinstance(getattr(canonical, "logits", None), Tensor):
        raise SiteError(f"{_expected()}, and the model returned {type(canonical).__name__} without logits")
    logits = _log_mean(own.logits, canonical.logits)  # type: ignore[attr-defined]
    changes = {"logits": logits}
    if getattr(canonical, "loss", None) is not None:
        if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.is_floating_point():
            raise SiteError(f"{_expected()} and labels of shape (batch,), to compute the loss of its own answer")
        changes["loss"] = F.nll_loss(logits, labels)
    return dataclasses.replace(canonical, **changes)


def _log_mean(own: Tensor, canonical: Tensor) -> Tensor:
    if own.dim() != 2 or own.shape != canonical.shape or not own.is_floating_point():
        raise SiteError(f"{_expected()}, and the model returned {tuple(own.shape)}")
    exact = torch.promote_types(own.dtype, torch.float32)
    both = (F.log_softmax(answer, dim=1, dtype=exact) for answer in (own, canonical))
    return (torch.logaddexp(*both) - math.log(2)).to(own.dtype)


def _expected() -> str:
    return 'mode="averaged" averages the probabilities of a classifier; expected logits of shape (batch, classes)'
