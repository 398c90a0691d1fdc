"""Launch Triton kernels with little host time.

Triton inspects every argument at every launch, which takes longer than many of these kernels run. ``Launch`` inspects
the arguments once, remembers the compiled program, and launches it directly from then on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from localscale.errors import KernelError

__all__ = ["Grid", "Launch", "cover", "launch", "power_above"]

Grid = tuple[int, int, int]

# Compiled programs, by everything that a compilation depends on.
_PROGRAMS: dict[tuple[Any, ...], Any] = {}


def cover(count: int, block: int) -> int:
    """Return how many blocks of size ``block`` cover ``count`` elements.

    >>> cover(9, 4)
    3
    """
    return -(-count // block)  # triton.cdiv takes longer than some kernels run


def power_above(number: int) -> int:
    """Return the smallest power of two that is at least ``number``.

    >>> [power_above(number) for number in (1, 2, 3, 64)]
    [1, 2, 4, 64]
    """
    return 1 << (number - 1).bit_length()


class Launch:
    """A kernel with its launch grid and arguments, which can be launched any number of times.

    Arguments are given in the kernel's order; the last of them may be given by name. A kernel argument called ``step``
    is left out here and given at each call.
    """

    def __init__(self, kernel: Any, grid: Grid, warps: int, *values: Any, **named: Any) -> None:
        self.kernel, self.grid, self.warps = kernel, grid, warps
        names = kernel.arg_names
        self.step_index = names.index("step") if "step" in names else None
        named = {"step": 0} | named if self.step_index is not None else named
        self.values = [*values, *[named[name] for name in names[len(values) :] if name in named]]
        if len(self.values) != len(names) or len(names) != len(values) + len(named):
            raise TypeError(f"the kernel takes {names}; {len(values)} values and {list(named)} came")
        self.key = (id(kernel), warps, *[v if type(v) is int or type(v) is bool else _kind(v) for v in self.values])
        self.device = self.values[0].get_device()  # a kernel's first argument is a tensor

    def __call__(self, step: int = 0) -> None:
        if self.step_index is not None:
            self.values[self.step_index] = step
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
        try:
            program = self.kernel[self.grid](*self.values, num_warps=self.warps)
        except Exception as error:
            if type(error).__name__ != "OutOfResources":  # of Triton, which this module does not import
                raise
            raise KernelError(
                f"{self.kernel.__name__} does not fit this GPU ({error}); set LOCALSCALE_KERNELS=0 in the environment "
                "to use plain PyTorch, and please report the settings"
            ) from error
        if program is not None:  # Triton's interpreter returns no program
            _PROGRAMS[self.key] = program


def launch(kernel: Any, grid: Grid, warps: int, *values: Any, **named: Any) -> None:
    """Launch ``kernel`` once."""
    Launch(kernel, grid, warps, *values, **named)()


def _kind(value: Any) -> Any:
    """Return the key that Triton specialises on: dtype, device and alignment of a tensor, the type of a float."""
    if isinstance(value, Tensor):
        return value.dtype, value.get_device(), value.data_ptr() % 16 == 0
    return float if isinstance(value, float) else value
