"""Train and evaluate on folders of pets with the commands that a user gives, several processes at a time."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from localscale.errors import DataError, TrainingError
from localscale.files import write_whole
from localscale.lab.runs import Run, read_run
from localscale.lab.tasks.folder import Central

VAL, SMALLER = "val", "smaller"  # the photographs to evaluate on: as they are, and with smaller animals
SHARES = "shares.json"  # the share of each validation photograph that its animal fills
METHODS = {"control": "sizes-control", "size equilibrium": "sizes"}  # with the folders of their runs
TAIL = 5  # lines of a failed process's output to show

# Chosen before the first run. 592 images are nine batches of 64 an epoch, so 20 epochs are 180 steps: at the
# command's own rate (5e-4, 0.75 of it for each earlier layer), the new head moves enough and the first layers little.
# --data.crop 1 shows whole photographs, so that a smaller animal at the frame is not cut off. The sides of a
# photograph stay in place and almost everything in it has edges, so there is little background to take room from, and
# enlarging things by a factor of 1.6 (the default target of 0.5) is asked in vain; 0.2 asks for a factor of 1.2.
SETTINGS = (
    *("--backbone", "deit_tiny_patch16_224", "--method", "sizes", "--control", "--epochs", "20", "--batch-size", "64"),
    *("--learning-rate", "5e-4", "--warmup-epochs", "2", "--data.crop", "1", "--method.config.network.target", "0.2"),
)


@dataclass(frozen=True)
class Job:
    """A process to start unless all its ``results`` exist; its output goes to ``log``."""

    arguments: tuple[str, ...]
    results: tuple[Path, ...]
    log: Path

    def run(self) -> str:
        """Run the process; return an empty text, or a message about the failure."""
        if all(path.exists() for path in self.results):
            return ""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as sink:
            print(f"$ {shlex.join(self.arguments)}", file=sink, flush=True)
            command = [sys.executable, "-m", *self.arguments]
            environment = {"OMP_NUM_THREADS": "2", **os.environ}
            done = subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT, env=environment, check=False)
        if done.returncode == 0:
            return ""
        last = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-TAIL:]
        return "\n  ".join([f"{self.log}: exit status {done.returncode}", *last])


def run_all(
    data: Path, out: Path, *, weights: Path, seeds: list[int], jobs: int, workers: int, cpu: bool, extra: list[str]
) -> None:
    """Train a run and its control for each seed, then evaluate all of them; raise if a process fails."""
    train = [train_job(data, out, seed, weights=weights, workers=workers, cpu=cpu, extra=extra) for seed in seeds]
    evaluate = [job for seed in seeds for job in evaluation_jobs(data, out, seed, workers=workers, cpu=cpu)]
    with ThreadPoolExecutor(jobs) as pool:
        for what, part in (("training", train), ("evaluating", evaluate)):
            done = tqdm(pool.map(Job.run, part), total=len(part), desc=what, unit="process")
            failed = [message for message in done if message]
            if failed:
                raise TrainingError("\n".join(["these processes failed:", *failed]))


def train_job(data: Path, out: Path, seed: int, *, weights: Path, workers: int, cpu: bool, extra: list[str]) -> Job:
    """Return the command that trains one seed and its control, or continues after an interruption."""
    folders = run_folders(out, seed)
    where: tuple[str, ...] = ("--data.train-root", str(data / "train"), "--data.val-root", str(data / VAL))
    where += ("--pretrained", str(weights), "--data.workers", str(workers), "--resume", "--quiet")
    where += ("--out", str(folders["size equilibrium"]), *(("--cpu",) if cpu else ()))
    results = tuple(Run(folder).result_file for folder in folders.values())
    arguments = ("localscale", "train", "folder", *SETTINGS, "--seed", str(seed), *where, *extra)
    return Job(arguments, results, out / "logs" / f"train_seed{seed}.txt")


def evaluation_jobs(data: Path, out: Path, seed: int, *, workers: int, cpu: bool) -> Iterator[Job]:
    """Yield the commands that evaluate the runs of one seed on each folder of photographs, and their answers."""
    flags = ("--data.workers", str(workers), *(("--cpu",) if cpu else ()))
    for folder in run_folders(out, seed).values():
        log = f"{folder.parent.name}_seed{seed}.txt"
        for split in (VAL, SMALLER):
            target = metrics_file(folder, split)
            arguments = ("localscale", "evaluate", str(folder), "--data.val-root", str(data / split), *flags)
            yield Job((*arguments, "--json", str(target)), (target,), out / "logs" / f"evaluate_{split}_{log}")
        arguments = ("benchmarks.pets", "answers", str(folder), "--data", str(data))
        results = tuple(answers_file(folder, split) for split in (VAL, SMALLER))
        yield Job((*arguments, *(("--cpu",) if cpu else ())), results, out / "logs" / f"answers_{log}")


def run_folders(out: Path, seed: int) -> dict[str, Path]:
    """Return the folder of each method's run of one seed."""
    return {method: out / name / f"seed{seed}" for method, name in METHODS.items()}


def metrics_file(folder: Path, split: str) -> Path:
    """Return the file of a run's metrics on the photographs of ``split``."""
    return folder / f"evaluate_{split}.json"


def answers_file(folder: Path, split: str) -> Path:
    """Return the file that says for each photograph of ``split`` whether the run's answer is right."""
    return folder / f"answers_{split}.json"


@torch.no_grad()
def write_answers(folder: Path, data: Path, *, cpu: bool) -> None:
    """Write whether the answer of the run in ``folder`` is right, for each photograph of val and smaller."""
    run = read_run(folder)
    device = "cuda" if torch.cuda.is_available() and not cpu else "cpu"
    model = run.load_model(device)
    for split in (VAL, SMALLER):
        task = run.with_data(data / split).make_task()
        right: dict[str, bool] = {}
        for numbers, pixels, labels in DataLoader(Central(task, range(len(task.val))), batch_size=64):
            with torch.autocast(device, torch.bfloat16, enabled=run.recipe.precision == "bf16"):  # as in evaluation
                answers = model(task.normalise(pixels.to(device).float() / 255)).argmax(1).cpu()
            names = ["/".join(task.val.items[number][0].parts[-2:]) for number in numbers]
            right |= dict(zip(names, (answers == labels).tolist(), strict=True))
        write_whole(answers_file(folder, split), json.dumps(right, indent=0) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that the steps before should have written."""
    if not path.exists():
        raise DataError(f"{path} is missing; finish the run step with the same folders first")
    return json.loads(path.read_text(encoding="utf-8"))
