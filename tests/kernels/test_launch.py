"""A kernel is compiled once for each kind of arguments, and later launches reuse the program with new arguments."""

from typing import Any

import pytest
import torch

from localscale.errors import KernelError
from localscale.kernels import launch as module
from localscale.kernels.launch import Launch, launch


class Program:
    """A compiled program that records its launches."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *values: self.launched.append((grid, *values))


class Kernel:
    """A kernel with the interface of Triton's; every call compiles."""

    def __init__(self, *names: str, interpreted: bool = False) -> None:
        self.arg_names, self.interpreted = list(names), interpreted
        self.compiled: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def call(*values: Any, num_warps: int) -> Program | None:
            self.compiled.append((grid, *values, num_warps))
            return None if self.interpreted else Program()

        return call


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[Any, ...], Any]:
    empty: dict[tuple[Any, ...], Any] = {}
    monkeypatch.setattr(module, "_PROGRAMS", empty)
    return empty


def test_only_the_first_launch_compiles(programs: dict[tuple[Any, ...], Any]):
    kernel, x = Kernel("x", "step", "size", "BLOCK"), torch.zeros(4)
    steps = Launch(kernel, (2, 1, 1), 4, x, size=4, BLOCK=16)
    for step in range(3):
        steps(step)
    assert kernel.compiled == [((2, 1, 1), x, 0, 4, 16, 4)]
    (program,) = programs.values()
    assert program.launched == [((2, 1, 1), x, 1, 4, 16), ((2, 1, 1), x, 2, 4, 16)]
    Launch(kernel, (5, 1, 1), 4, torch.ones(9), size=4, BLOCK=16)(7)  # another tensor and grid, the same program
    assert len(kernel.compiled) == 1
    assert program.launched[-1][0] == (5, 1, 1)
    assert program.launched[-1][2] == 7


def test_other_kinds_of_arguments_compile_another_program():
    kernel, x = Kernel("x", "scale", "size"), torch.zeros(8)
    launch(kernel, (1, 1, 1), 4, x, 0.5, 3)
    launch(kernel, (1, 1, 1), 4, x, 0.7, 3)  # a program does not depend on the value of a float
    assert len(kernel.compiled) == 1
    launch(kernel, (1, 1, 1), 4, x.double(), 0.5, 3)
    launch(kernel, (1, 1, 1), 4, x, 0.5, 16)
    launch(kernel, (1, 1, 1), 8, x, 0.5, 3)
    launch(kernel, (1, 1, 1), 4, x[1:], 0.5, 3)  # not aligned to 16 bytes
    assert len(kernel.compiled) == 5


def test_interpreted_kernels_leave_no_program(programs: dict[tuple[Any, ...], Any]):
    kernel = Kernel("x", interpreted=True)
    for _ in range(2):
        launch(kernel, (1, 1, 1), 4, torch.zeros(1))
    assert len(kernel.compiled) == 2
    assert not programs


def test_a_kernel_that_does_not_fit_the_gpu_is_named_with_a_way_out():
    errors = pytest.importorskip("triton.runtime.errors")

    class Large(Kernel):
        __name__ = "_first_layer"

        def __getitem__(self, grid: tuple[int, int, int]) -> Any:
            def call(*values: Any, num_warps: int) -> None:
                raise errors.OutOfResources(294912, 232448, "shared memory")

            return call

    with pytest.raises(KernelError, match=r"_first_layer does not fit .*294912.*232448.*LOCALSCALE_KERNELS=0"):
        launch(Large("x"), (1, 1, 1), 4, torch.zeros(1))


def test_missing_and_unknown_arguments_are_refused():
    for values in ({}, {"size": 3, "BLOCK": 4}, {"other": 1}):
        with pytest.raises(TypeError, match="size"):
            launch(Kernel("x", "size"), (1, 1, 1), 4, torch.zeros(1), **values)
