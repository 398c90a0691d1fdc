"""Run training in separate processes, to kill one of them or to let several work together.

They are forked from a server that has already imported everything, so they start quickly.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from localscale import checkpoints
from localscale.lab.recipes import Recipe
from localscale.lab.training import runner, train
from localscale.lab.training.loop import Loop

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["localscale.lab.training", "localscale.metrics.streaming", "timm"])


def start(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = CONTEXT.Process(target=work, args=arguments)
    process.start()
    return process


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


# Runs that are killed


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_step(number: int) -> None:
    take = Loop.one_step

    def step(loop: Loop, step: int, *arguments: Any) -> Any:
        return die() if step == number else take(loop, step, *arguments)

    Loop.one_step = step  # type: ignore[method-assign]


def die_while_saving(number: int) -> None:
    """Kill the process when half of the ``number``-th safetensors file is written."""
    save, left = checkpoints.write_tensors, number

    def half(path: Path, *rest: Any) -> None:
        nonlocal left
        left -= 1
        save(path, *rest)
        if left == 0:
            os.truncate(path, path.stat().st_size // 2)
            die()

    checkpoints.write_tensors = half


def die_while_evaluating(_: Any) -> None:
    runner.evaluate = lambda *arguments, **rest: die()  # type: ignore[assignment,attr-defined]


def die_before_the_result(_: Any) -> None:
    runner.write_whole = lambda path, data, **rest: die()  # type: ignore[assignment,attr-defined]


def slowly(seconds: float) -> None:
    take = Loop.one_step

    def step(loop: Loop, *arguments: Any) -> Any:
        time.sleep(seconds)
        return take(loop, *arguments)

    Loop.one_step = step  # type: ignore[method-assign]


def train_and(
    recipe: Recipe, folder: Path, prepare: Callable[[Any], None], detail: Any = None, checkpoint_seconds: float = 0
) -> None:
    """Train or resume, after ``prepare(detail)`` has set where the process dies."""
    torch.set_num_threads(1)
    prepare(detail)
    train(recipe, folder, resume=True, cpu=True, checkpoint_seconds=checkpoint_seconds)


def killed(recipe: Recipe, folder: Path, prepare: Callable[[Any], None], detail: Any = None, **rest: float) -> bool:
    process = start(train_and, recipe, folder, prepare, detail, *rest.values())
    process.join(300)
    dead = process.exitcode == -signal.SIGKILL
    process.kill()
    process.join()
    return dead


# Runs of two


def _be_one_of(world: int, rank: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    work(*arguments)


def together(
    work: Callable[..., None], *arguments: Any, world: int = 2, ends: tuple[int, ...] = (0, 0), seconds: float = 300
) -> None:
    """Run ``work`` in ``world`` processes of one process group, as ``accelerate launch`` does; check how each ends.

    The store by which they find each other is here, so that its port is free when it is chosen and stays taken.
    """
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [start(_be_one_of, world, rank, store.port, work, arguments) for rank in range(world)]
    deadline = time.monotonic() + seconds
    try:
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        assert tuple(process.exitcode for process in processes) == ends
    finally:
        for process in processes:
            process.kill()
            process.join()
