"""Distributions of random maps: raw parameters from uniform random numbers; ``DISTRIBUTIONS`` is the registry."""

from collections.abc import Callable

import torch
from torch import Tensor

from localscale.errors import MapError, near_misses

__all__ = ["DISTRIBUTIONS", "raw_parameters"]

LEAST = 1e-4  # of an exponential random number, whose mean is 1; float32 cannot invert steeper maps


def _simplex(uniform: Tensor) -> Tensor:
    """Return logarithms of exponential random numbers: a softmax makes them uniform on the simplex."""
    return (-torch.log1p(-uniform)).clamp_min(LEAST).log()


DISTRIBUTIONS: dict[str, Callable[[Tensor], Tensor]] = {"logits": lambda uniform: uniform, "simplex": _simplex}
"""``"logits"``: raw parameters uniform in [0, 1]. ``"simplex"``: increments uniform on the simplex, Dirichlet(1, …, 1),
as the paper's Ω, "a uniform distribution over all possible monotone scale parameters"."""


def raw_parameters(uniform: Tensor, distribution: str = "logits") -> Tensor:
    """Return the raw parameters of a ``distribution`` for independent random numbers that are uniform in [0, 1).

    >>> raw_parameters(torch.tensor([0.25, 0.5]))
    tensor([0.2500, 0.5000])
    >>> raw_parameters(torch.tensor([0.25, 0.5]), "simplex").softmax(0)
    tensor([0.2933, 0.7067])
    """
    if distribution not in DISTRIBUTIONS:
        raise MapError(f"no distribution {distribution!r}: {near_misses(str(distribution), DISTRIBUTIONS)}")
    return DISTRIBUTIONS[distribution](uniform)
