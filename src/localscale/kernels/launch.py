"""Launching one kernel again and again, as the steps of a solve do."""

from __future__ import annotations

from typing import Any

__all__ = ["Repeated"]


class Repeated:
    """A kernel with all its arguments but ``number``, the same at every call.

    The first call is an ordinary launch, which looks at every argument to find the right program, and takes longer
    than most kernels run; the calls after it launch that program.
    """

    def __init__(self, kernel: Any, grid: tuple[int, int, int], warps: int, **arguments: Any) -> None:
        self.kernel, self.grid, self.warps, self.arguments = kernel, grid, warps, arguments
        self.program: Any = None

    def __call__(self, number: int) -> None:
        values = [number if name == "number" else self.arguments[name] for name in self.kernel.arg_names]
        if self.program is None:  # and always where kernels are interpreted
            self.program = self.kernel[self.grid](*values, num_warps=self.warps)
        else:
            self.program[self.grid](*values)
