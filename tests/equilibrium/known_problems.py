"""Fixed-point problems with known solutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import fsolve
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """z = f(z) for a batch, with a starting point and the solution."""

    f: Callable[[Tensor], Tensor]
    start: Tensor
    answer: Tensor


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def contraction_matrix(batch: int, size: int, norm: float = 0.8) -> Tensor:
    """Random matrices of spectral norm ``norm``."""
    matrix = _draw(batch, size, size)
    return norm * matrix / torch.linalg.matrix_norm(matrix, 2)[:, None, None]


def linear_contraction(dtype: torch.dtype) -> Problem:
    matrix, offset = contraction_matrix(3, 6), _draw(3, 6, seed=1)
    answer = torch.linalg.solve(torch.eye(6, dtype=torch.float64) - matrix, offset)
    a, b = matrix.to(dtype), offset.to(dtype)
    return Problem(lambda z: (a @ z.unsqueeze(-1)).squeeze(-1) + b, torch.zeros(3, 6, dtype=dtype), answer.to(dtype))


def linear_expansion(dtype: torch.dtype) -> Problem:
    """A linear problem with eigenvalues below −1, where Picard iteration diverges."""
    rates, offset = torch.tensor([-1.5, -2.0, -3.0, 0.5], dtype=torch.float64), _draw(2, 4)
    a, b = rates.to(dtype), offset.to(dtype)
    return Problem(lambda z: a * z + b, torch.zeros(2, 4, dtype=dtype), (offset / (1 - rates)).to(dtype))


def cosine(dtype: torch.dtype) -> Problem:
    """A problem with three dimensions per sample, as an image has."""
    answer = torch.full((2, 1, 2, 3), 0.7390851332151607, dtype=dtype)
    return Problem(torch.cos, torch.linspace(0, 1, 12, dtype=dtype).view(2, 1, 2, 3), answer)


def tanh_network(dtype: torch.dtype) -> Problem:
    """z = tanh(Wz + b), solved by scipy."""
    weight, bias = contraction_matrix(1, 5)[0], _draw(4, 5, seed=2)
    w, b = weight.to(dtype), bias.to(dtype)
    numpy_weight = weight.numpy()
    roots = [fsolve(lambda z, c=c: np.tanh(numpy_weight @ z + c) - z, np.zeros(5), xtol=1e-12) for c in bias.numpy()]
    answer = torch.from_numpy(np.stack(roots)).to(dtype)
    return Problem(lambda z: torch.tanh(z @ w.T + b), torch.zeros(4, 5, dtype=dtype), answer)


def fixed_point_at_zero(dtype: torch.dtype) -> Problem:
    """A problem with the solution zero, where a relative residual is 0/0."""
    start = torch.tensor([[1.0, 0.5, 0.2], [2.0, 1.0, -1.0]], dtype=dtype)
    return Problem(lambda z: 0.5 * torch.sin(z), start, torch.zeros_like(start))


def square_root(dtype: torch.dtype) -> Problem:
    """Newton's iteration, whose derivative at the solution is zero."""
    square = torch.tensor([[2.0, 9.0, 100.0]], dtype=dtype)
    return Problem(lambda z: 0.5 * (z + square / z), torch.ones(1, 3, dtype=dtype), square.sqrt())


PROBLEMS: dict[str, Callable[[torch.dtype], Problem]] = {
    "linear contraction": linear_contraction,
    "linear expansion": linear_expansion,
    "cosine": cosine,
    "tanh network": tanh_network,
    "fixed point at zero": fixed_point_at_zero,
    "square root": square_root,
}


RATES = torch.tensor([[0.1, 0.2, 0.0], [0.9, -0.9, 0.8], [0.5, 0.3, -0.2], [-0.95, 0.95, 0.7]])


def rotating(rates: Tensor) -> Callable[[Tensor], Tensor]:
    """Return f with one problem per row of ``rates``; larger rates converge more slowly."""
    return lambda z: rates * torch.cos(2 * z.roll(1, dims=1)) / 2 + 1


class Seen:
    """A function that records the points at which it is evaluated."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        self.f = f
        self.points: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        self.points.append(z.detach().clone())
        return self.f(z)
