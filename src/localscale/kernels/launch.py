"""Launching kernels without looking at every argument every time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["Grid", "Launch", "cover", "launch", "power_above"]

Grid = tuple[int, int, int]

# What Triton compiled, by all that it depends on. Triton's own way to find it takes longer than most kernels run.
_PROGRAMS: dict[tuple[Any, ...], Any] = {}


def cover(count: int, block: int) -> int:
    """How many blocks it takes for ``count``.

    >>> cover(9, 4)
    3
    """
    return -(-count // block)  # triton.cdiv takes longer than some kernels run


def power_above(number: int) -> int:
    """The least power of two that is not below ``number``.

    >>> [power_above(number) for number in (1, 2, 3, 64)]
    [1, 2, 4, 64]
    """
    return 1 << (number - 1).bit_length()


class Launch:
    """A kernel with its arguments, all but ``number`` where it has one; to be launched any number of times.

    Arguments are given in the kernel's order, the last of them by name if one likes.
    """

    def __init__(self, kernel: Any, grid: Grid, warps: int, *values: Any, **named: Any) -> None:
        self.kernel, self.grid, self.warps = kernel, grid, warps
        names = kernel.arg_names
        self.number = names.index("number") if "number" in names else None
        named = {"number": 0} | named if self.number is not None else named
        self.values = [*values, *[named[name] for name in names[len(values) :] if name in named]]
        if len(self.values) != len(names) or len(names) != len(values) + len(named):
            raise TypeError(f"the kernel takes {names}; {len(values)} values and {list(named)} came")
        self.key = (id(kernel), warps, *[v if type(v) is int or type(v) is bool else _kind(v) for v in self.values])
        self.device = self.values[0].get_device()  # a kernel's first argument is a tensor

    def __call__(self, number: int = 0) -> None:
        if self.number is not None:
            self.values[self.number] = number
        if self.device >= 0 and self.device != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                self._launch()
        else:
            self._launch()

    def _launch(self) -> None:
        program = _PROGRAMS.get(self.key)
        if program is not None:
            program[self.grid](*self.values)
            return
        program = self.kernel[self.grid](*self.values, num_warps=self.warps)
        if program is not None:  # as it is only where kernels are compiled
            _PROGRAMS[self.key] = program


def launch(kernel: Any, grid: Grid, warps: int, *values: Any, **named: Any) -> None:
    """Launch ``kernel`` once."""
    Launch(kernel, grid, warps, *values, **named)()


def _kind(value: Any) -> Any:
    """What a program depends on: a tensor's type and place in memory, any number but a float."""
    if isinstance(value, Tensor):
        return value.dtype, value.get_device(), value.data_ptr() % 16 == 0
    return float if isinstance(value, float) else value
