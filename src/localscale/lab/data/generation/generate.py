"""Write a dataset, or continue an unfinished one."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from localscale.errors import ConfigError
from localscale.lab.data.generation.job import Job
from localscale.lab.data.generation.local_engine import run_local
from localscale.lab.data.generation.store import Form, Store
from localscale.lab.data.written import WrittenDataset

__all__ = ["Engine", "Summary", "generate"]

Engine = Literal["local", "ray"]


@dataclass(frozen=True)
class Summary:
    """The number of images in a finished dataset, and the number of skipped items by reason."""

    images: int
    skipped: dict[str, int]


def generate(
    job: Job,
    out: str | Path,
    *,
    form: Form = "folder",
    chunk_size: int | None = None,
    workers: int = 1,
    engine: Engine = "local",
    address: str | None = None,
    progress: bool = False,
) -> Summary:
    """Write the dataset of ``job`` to the folder ``out``, or continue where an earlier run stopped.

    ``chunk_size`` items form a subfolder or a shard; the default is the job's. ``engine="local"`` uses ``workers``
    processes on this machine. ``engine="ray"`` runs the stages on the Ray cluster at ``address``, whose machines must
    all see the folder ``out``. The files do not depend on workers, engine or interruptions. Worker processes import the
    calling script again, so a script must call ``generate`` under ``if __name__ == "__main__":``.
    """
    _check_main_guard()
    chunk_size = job.chunk_size if chunk_size is None else chunk_size
    _validate(job, form, chunk_size, workers, engine, address)
    store = Store(Path(out).absolute(), form, chunk_size, job.size)
    with store.opened(job) as lock:
        chunks = store.unfinished()
        remaining = sum(len(store.items(chunk)) for chunk in chunks)
        with tqdm(
            total=job.size,
            initial=job.size - remaining,
            desc=job.kind,
            unit="item",
            disable=not progress or not chunks,
            dynamic_ncols=True,
        ) as bar:
            if chunks and engine == "ray":
                from localscale.lab.data.generation.ray_engine import run_ray

                run_ray(job, store, chunks, workers=workers, address=address, tick=bar.update)
            elif chunks:
                run_local(job, store, chunks, workers=workers, lock=lock, tick=bar.update)
        store.finish()
        return _summarise(store.root)


def _check_main_guard() -> None:
    """Raise ``ConfigError`` in a worker process that reached this call while it imported its parent's script."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError('a script must call generate with several workers under `if __name__ == "__main__":`')


def _validate(job: Job, form: str, chunk_size: int, workers: int, engine: str, address: str | None) -> None:
    if form not in ("folder", "shards"):
        raise ConfigError(f'form "{form}" is unknown; expected "folder" or "shards"')
    if engine not in ("local", "ray"):
        raise ConfigError(f'engine "{engine}" is unknown; expected "local" or "ray"')
    if address is not None and engine != "ray":
        raise ConfigError(f'address {address} requires engine "ray"; the engine is "{engine}"')
    for name, value in {"workers": workers, "chunk_size": chunk_size, "number of items": job.size}.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}; expected at least 1")


def _summarise(root: Path) -> Summary:
    written = WrittenDataset(root)
    return Summary(len(written), written.reasons())
