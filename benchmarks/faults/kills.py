"""Kill generators, trainings and ``reproduce`` at random moments; what goes on must equal what nothing interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import io
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import safetensors
import torch

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.killing import (
    Forked,
    Moment,
    completed,
    forked,
    kill_at,
    operations,
    printed_in,
    running,
    seconds_of,
)
from localscale.canonicalizer import DECConfig, SizeNetwork
from localscale.cli import main
from localscale.equilibrium import Picard
from localscale.errors import LocalScaleError
from localscale.files import unseal
from localscale.lab.data.generation import Job, generate
from localscale.lab.data.images import encode_image
from localscale.lab.data.mnist.job import MNISTOptions, mnist_job
from localscale.lab.methods import FineTune, Method, RandomScaling, SizeEquilibrium
from localscale.lab.recipes import Recipe
from localscale.lab.recipes.optimization import Optimization
from localscale.lab.runs import Run
from localscale.lab.tasks.folder import FolderData
from localscale.lab.tasks.mnist import MNISTData
from localscale.lab.training import train
from localscale.lab.training.reproduce import Cell, Execution, plan, reproduce

__all__ = ["KillGenerators", "KillReproduce", "KillTraining", "KillWorkers"]

TABLE = "mnist-tiny"
SIZES = SizeEquilibrium(
    DECConfig(knots=4, network=SizeNetwork(width=8, blocks=0), solver=Picard(2, 1e-3, fixed_steps=True)),
    learning_steps=4,
)
EPOCHS = 8  # of the runs of the table
# PyTorch raises the error of a killed worker at a signal, also while Python starts a thread, which then shows this.
STARTING = re.compile(r"^Exception (?:ignored )?in thread.*QueueFeederThread.*\nTraceback", re.MULTILINE)
ENGINES = ("forked", "local", "ray")  # forked: local, with trainings that need not import everything again


class Resumed(Campaign):
    """Runs that are killed once or twice and then continued."""

    patience = 240.0

    def begin(self, folder: Path) -> None:
        """Set what the forks share, before anything is computed: threads do not survive a fork.

        Data workers are forked, too, as those of a command. A process that was spawned itself would spawn them, and
        each would import PyTorch.
        """
        torch.set_num_threads(1)
        multiprocessing.set_start_method("fork", force=True)
        self.folder, self.output = folder, folder / "printed.txt"

    def measure(self, kinds: dict[str, Callable[[Path], object]]) -> None:
        """Run each kind without a fault, once here to import it all, once to count operations, once for the seconds."""
        self.kinds, self.counts, self.seconds = kinds, dict[str, int](), dict[str, float]()
        for name, work in kinds.items():
            work(self.folder / f"warm-{name}")
            whole, again = self.folder / f"whole-{name}", self.folder / f"again-{name}"
            self.counts[name] = operations(partial(work, whole), whole, self.output)
            self.seconds[name] = seconds_of(partial(work, again), self.output)

    def trial(self, draw: Random) -> str | None:
        name = draw.choice(sorted(self.kinds))
        moments = [Moment.drawn(draw, self.counts[name], self.seconds[name]) for _ in range(draw.choice((1, 1, 2)))]
        with tempfile.TemporaryDirectory(dir=self.folder) as parent:
            folder = Path(parent) / "run"
            work = partial(self.kinds[name], folder)
            while not kill_at(moments[0], work, folder, self.output):  # it ended before: begin again, and kill earlier
                folder = folder.with_name(folder.name + "-")
                work = partial(self.kinds[name], folder)
                moments[0] = dataclasses.replace(moments[0], seconds=moments[0].seconds / 2)
            for moment in moments[1:]:
                kill_at(moment, work, folder, self.output)
            failure = completed(work, self.output)
            if failure:
                return f"{name} does not continue after {moments}: {failure}"
            found = self.difference(folder, self.folder / f"whole-{name}")
            return f"{name} after {moments}: {found}" if found else None

    def difference(self, folder: Path, whole: Path) -> str | None:
        """Return in what a run differs from the one that nothing interrupted."""
        raise NotImplementedError


class KillGenerators(Resumed):
    """``localscale data`` in one process, in both forms, and in two processes."""

    name = "kill-generators"
    about = "SIGKILL to a generator, then the same command again"
    goal = 280
    share = 1.0

    def prepare(self, folder: Path) -> None:
        self.begin(folder)
        job = mnist_job(MNISTOptions(count=12, variants=1, image_size=64, root=write_digits(folder)))
        forms = ("folder", "shards")
        self.measure({form: partial(_generate, job, form) for form in forms})

    def difference(self, folder: Path, whole: Path) -> str | None:
        return _difference(_hashes(folder), _hashes(whole))


class KillTraining(Resumed):
    """``localscale train`` with and without preparation, a checkpoint after every epoch."""

    name = "kill-training"
    about = "SIGKILL to a training, then --resume"
    goal = 200
    share = 4.0

    def prepare(self, folder: Path) -> None:
        self.begin(folder)
        digits = write_digits(folder)
        methods = {"plain": FineTune(), "sizes": SIZES}
        self.measure({name: partial(_train, recipe_of(digits, method)) for name, method in methods.items()})

    def difference(self, folder: Path, whole: Path) -> str | None:
        return _difference(_contents(folder), _contents(whole))


class KillWorkers(KillTraining):
    """``localscale train folder`` with two data workers, of which one is killed: one sentence, then ``--resume``."""

    name = "kill-workers"
    about = "SIGKILL to a data worker of a training, then --resume"
    goal = 20
    share = 2.0

    def prepare(self, folder: Path) -> None:
        self.begin(folder)
        recipe = recipe_of(folder, FineTune())
        data = FolderData(
            train_root=write_photographs(folder / "train"),
            val_root=write_photographs(folder / "val"),
            image_size=32,
            variants=1,
            workers=2,
            check_images=False,
        )
        self.measure({"folder": partial(_train, dataclasses.replace(recipe, data=data))})

    def trial(self, draw: Random) -> str | None:
        seconds, second = draw.uniform(0, self.seconds["folder"]), draw.random() < 0.5
        with tempfile.TemporaryDirectory(dir=self.folder) as parent:
            folder, told = Path(parent) / "run", Path(parent) / "told.txt"
            failure = completed(
                partial(_told, partial(self.kinds["folder"], folder), told),
                self.output,
                lambda pid: _kill_worker(pid, seconds, second=second),
            )
            where = f"after {seconds:.3f} seconds"
            if failure:
                return f"a worker killed {where} ends the training with {failure}"
            sentence = told.read_text(encoding="utf-8") if told.exists() else ""
            if sentence and not sentence.startswith("a process that loads images"):
                return f"a worker killed {where} is explained as {sentence}"
            if "Traceback" in STARTING.sub("", printed_in(self.output)):
                return f"a worker killed {where} shows a foreign traceback"
            failure = completed(partial(self.kinds["folder"], folder), self.output)
            if failure:
                return f"the training does not continue after a worker was killed {where}: {failure}"
            found = self.difference(folder, self.folder / "whole-folder")
            return f"a worker killed {where}: {found}" if found else None


class KillReproduce(Campaign):
    """``localscale reproduce`` of one run, ended by a signal; nothing that it started may go on."""

    name = "kill-reproduce"
    about = "SIGKILL, SIGTERM or SIGINT to reproduce, on this machine or on Ray, then the same command again"
    goal = 20
    share = 5.0
    patience = 240.0

    def prepare(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder, self.output, self.digits = folder, folder / "printed.txt", write_digits(folder)
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ["RAY_TMPDIR"] = str(folder)
        with contextlib.redirect_stdout(io.StringIO()):
            main(self.cells(folder / "warm")[0].command())  # here, to import it all
        failure = completed(partial(_reproduce, self.cells(folder / "whole"), "local"), self.output)
        if failure:
            raise RuntimeError(f"reproduce without a fault failed: {failure}")

    def cells(self, out: Path) -> list[Cell]:
        """Plan the only run."""
        overrides = (
            *("backbone=test_vit", "data.image_size=32", "data.train_count=8", "batch_size=4", f"epochs={EPOCHS}"),
            *("warmup_epochs=0", "data.test_count=2", "data.bracket_count=0", "data.variants=1", "pretrained=none"),
            *("precision=no", f"data.root={self.digits}"),
        )
        flags = ("--cpu", "--checkpoint-seconds", "0")
        return plan(TABLE, seeds=1, out=out, only=("-aug aug",), overrides=overrides, flags=flags)

    def trial(self, draw: Random) -> str | None:
        engine = draw.choices(ENGINES, (0.8, 0.15, 0.05 if importlib.util.find_spec("ray") else 0))[0]
        number = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        epochs, seconds = draw.randrange(EPOCHS), draw.uniform(0, 2)  # seconds before the first epoch, else a few steps
        with tempfile.TemporaryDirectory(dir=self.folder) as parent:
            cells = self.cells(Path(parent))
            pid = forked(partial(_reproduce, cells, engine), self.output)
            try:
                run = Run(cells[0].folder)
                while epochs and _lines(run.log) < epochs and os.waitpid(pid, os.WNOHANG) == (0, 0):
                    time.sleep(0.005)
                time.sleep(seconds / 100 if epochs else seconds)
                os.kill(pid, number)
                os.waitpid(pid, 0)
            finally:
                # Ray's own agents end by themselves some time after Ray; here they only must not disturb what follows.
                survivors = _survivors(-1 if engine == "ray" else pid, parent, seconds=5)
                for each in running(pid, parent):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
            where = f"{signal.Signals(number).name} after {epochs} epochs on {engine}"
            if survivors:
                return f"{len(survivors)} processes survive {where}"
            failure = completed(partial(_reproduce, cells, engine), self.output)
            if failure:
                return f"reproduce does not continue after {where}: {failure}"
            whole = self.cells(self.folder / "whole")
            found = [_difference(_contents(a.folder), _contents(b.folder)) for a, b in zip(cells, whole, strict=True)]
            return next((f"after {where}: {each}" for each in found if each), None)


def _generate(job: Job, form: Any, folder: Path) -> None:
    generate(job, folder, form=form, chunk_size=2)


def recipe_of(digits: Path, method: Method) -> Recipe:
    """Return the smallest recipe that uses every part of a run."""
    data = MNISTData(
        root=digits, train_count=12, test_count=2, variants=1, bracket_count=0, image_size=32
    )  # fmt: skip
    return Recipe(
        name="tiny",
        backbone="test_vit",
        pretrained="none",
        method=method,
        data=data,
        augmentation=RandomScaling(knots=4),
        optimization=Optimization(epochs=3, batch_size=4, learning_rate=1e-3),
        precision="no",
    )


def _train(recipe: Recipe, folder: Path) -> None:
    train(recipe, folder, resume=True, cpu=True, checkpoint_seconds=0)


def _told(work: Callable[[], object], told: Path) -> None:
    """Do ``work``; an expected error writes its sentence."""
    try:
        work()
    except LocalScaleError as error:
        told.write_text(str(error), encoding="utf-8")


def _kill_worker(pid: int, seconds: float, *, second: bool) -> None:
    """Kill the first or second child of a process after some seconds, as soon as it has any and while it runs."""
    time.sleep(seconds)
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        if children:
            os.kill(int(children[min(second, len(children) - 1)]), signal.SIGKILL)
            return
        time.sleep(0.001)


def _reproduce(cells: list[Cell], engine: str) -> None:
    if engine == "forked":  # this process is a fork, so that nothing else is changed
        subprocess.Popen = Forked  # type: ignore[assignment,misc]
    failed = reproduce(cells, Execution(engine="ray" if engine == "ray" else "local", gpus_per_run=0))
    if failed:
        raise RuntimeError(" ".join("; ".join(failed).split()))


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def _survivors(session: int, words: str, *, seconds: float) -> list[int]:
    """Return the processes that still run after some seconds."""
    deadline = time.monotonic() + seconds
    while (found := list(running(session, words))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def write_digits(folder: Path) -> Path:
    """Write 60 images of noise as MNIST's files; the digits do not matter here."""
    root = folder / "digits"
    root.mkdir()
    generator = torch.Generator().manual_seed(0)
    for name in ("train", "t10k"):
        images = torch.randint(256, (60, 28, 28), generator=generator).byte()
        for kind, values in (("images-idx3", images), ("labels-idx1", (torch.arange(60) % 10).byte())):
            sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
            header = bytes([0, 0, 8, values.dim()]) + sizes
            (root / f"{name}-{kind}-ubyte").write_bytes(header + values.contiguous().numpy().tobytes())
    return root


def write_photographs(root: Path) -> Path:
    """Write six images of noise in two classes."""
    generator = torch.Generator().manual_seed(0)
    for name in ("one", "two"):
        (root / name).mkdir(parents=True)
        for number in range(6):
            pixels = torch.randint(256, (40, 36, 3), generator=generator).byte().numpy()
            (root / name / f"{number}.png").write_bytes(encode_image(pixels))
    return root


def _hashes(root: Path) -> dict[str, str]:
    """Return the hash of every file, hidden ones included."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _contents(folder: Path) -> dict[str, object]:
    """Return the files of a finished run, its log, its metrics and the bytes of its weights, but no durations."""
    run = Run(folder)
    lines = map(unseal, run.log.read_text(encoding="utf-8").splitlines())
    found: dict[str, object] = {"files": sorted(path.name for path in folder.iterdir())}
    for number, line in enumerate(lines):
        found[f"log {number}"] = {name: value for name, value in line.items() if name != "seconds"}
    result = run.result() or {}
    found |= {name: result.get(name) for name in ("metrics", "learned_sizes", "steps", "skipped_steps")}
    with safetensors.safe_open(run.weights, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (it is no dictionary)
            found[name] = hashlib.sha256(file.get_tensor(name).numpy().tobytes()).hexdigest()
    return found


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    names = [name for name in itertools.chain(found, wanted) if found.get(name) != wanted.get(name)]
    if not names:
        return None
    first = f"{names[0]}, {found.get(names[0])!s:.200} instead of {wanted.get(names[0])!s:.200}"
    return f"{len(set(names))} differences, the first in {first}"
