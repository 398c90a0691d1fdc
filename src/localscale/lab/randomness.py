"""Random numbers that depend only on (seed, name, index), in any order and on any device.

A stateful generator returns different numbers if items are drawn in another order or by more workers. Here each number
is a hash of its address, computed with the finaliser of SplitMix64, whose integer arithmetic is exact on every device.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Draws", "stream", "uniform"]


@dataclass(frozen=True)
class Draws:
    """The random numbers of one batch; ``index`` ``(B,)`` are the positions of its samples in the training run.

    >>> Draws(0, torch.tensor([7, 8])).uniform("erase", 2, 3).shape
    torch.Size([2, 2, 3])
    """

    seed: int
    index: Tensor

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Return numbers in [0, 1) for each sample, ``(B, *shape)``, float64."""
        return uniform(self.seed, name, self.index, math.prod(shape)).view(-1, *shape)


def uniform(seed: int, name: str, index: Tensor, draws: int = 1) -> Tensor:
    """Return ``draws`` numbers in [0, 1) for each index, ``(B,)`` to ``(B, draws)``, float64, on the index's device.

    >>> a = uniform(0, "factors", torch.tensor([5, 6]), 3)
    >>> b = uniform(0, "factors", torch.tensor([6]), 3)
    >>> a.shape, bool((a[1] == b[0]).all())
    (torch.Size([2, 3]), True)
    """
    key = _mix(_mix(_integer(seed, index)) ^ _integer(stream(name), index))
    state = _mix(key ^ _mix(index.long().unsqueeze(-1) + _GOLDEN))
    counter = torch.arange(1, draws + 1, device=index.device)
    bits = _mix(state + _GOLDEN * counter)
    return _shift(bits, 11).double() * 2.0**-53


def stream(name: str) -> int:
    """Return a 64-bit FNV-1a hash of a name, so that different uses of one index get different numbers."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def _signed(value: int) -> int:
    """Return the signed integer with the 64-bit pattern of ``value``, as torch stores it."""
    return (value + 2**63) % 2**64 - 2**63


_GOLDEN = _signed(0x9E3779B97F4A7C15)


def _integer(value: int, like: Tensor) -> Tensor:
    return torch.full((1,), _signed(value), dtype=torch.int64, device=like.device)


def _shift(bits: Tensor, places: int) -> Tensor:
    """Shift to the right without sign extension, unlike torch's operator."""
    return (bits >> places) & (2 ** (64 - places) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shift(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shift(bits, 31)
