"""A small job, also as a script that can be killed: ``python toy_job.py OUT FORM WORKERS ENGINE SECONDS``."""

import hashlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from localscale.errors import LocalScaleError
from localscale.lab.data.generation import Job, Sample, Skip, Stage, generate

SIZE = 36


def record_process(stage: str) -> None:
    """Create a file with the name of the stage and the process, in the folder that a test sets."""
    if folder := os.environ.get("TOY_TRACES"):
        (Path(folder) / f"{stage}-{os.getpid()}").touch()


def double(seconds: float, ballast: bytes = b"") -> Callable[[int], Any]:
    def step(index: int) -> Any:
        record_process("double")
        if seconds < 0:
            raise ValueError(f"cannot sleep for {seconds} seconds")
        time.sleep(seconds)
        return Skip("sevens are left out", {"number": index}) if index % 7 == 3 else 2 * index

    return step


def write_numbers() -> Callable[[int], list[Sample]]:
    def step(number: int) -> list[Sample]:
        record_process("write")
        text = hashlib.sha256(str(number).encode()).hexdigest().encode() * 50
        return [
            Sample(f"{number:06d}-{k}", {"txt": text, "mask.txt": bytes([k])}, {"group": number, "k": k})
            for k in range(2)
        ]

    return step


def toy_job(seconds: float = 0.0, *, seed: int = 0, size: int = SIZE) -> Job:
    # The ballast is as large as the arguments of real stages: Ray keeps them in its object store.
    stages = [Stage("double", partial(double, seconds, bytes(2**20)), gpu=True), Stage("write", write_numbers)]
    return Job("toy", size, {"seed": seed}, stages, chunk_size=3)


def hashes(root: Path) -> dict[str, str]:
    """Return the hash of every file under ``root``, hidden files included."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


if __name__ == "__main__":
    out, form, workers, engine, seconds = sys.argv[1:]
    if engine == "ray-with-gpu":  # Ray counts a GPU that does not exist
        import ray

        ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
        engine = "ray"
    try:
        generate(toy_job(float(seconds)), out, form=form, workers=int(workers), engine=engine)
    except LocalScaleError as error:
        sys.exit(f"refused: {error}")
