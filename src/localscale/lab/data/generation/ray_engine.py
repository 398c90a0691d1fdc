"""Compute a dataset on a Ray cluster, as a Ray Data pipeline of actors.

Consecutive stages with ``gpu=True`` share an actor, and so do consecutive stages without, so a chunk is sent to another
machine only where the kind of machine changes. Ray restarts an actor that died and gives it its chunk again.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from localscale.errors import DataError, LocalScaleError, OutputError
from localscale.extras import require
from localscale.lab.clusters import connected
from localscale.lab.data.generation.job import Job, Stage, build, run
from localscale.lab.data.generation.local_engine import one_thread
from localscale.lab.data.generation.store import Store

__all__ = ["run_ray"]


def run_ray(
    job: Job, store: Store, chunks: Sequence[int], *, workers: int, address: str | None, tick: Callable[[int], object]
) -> None:
    """Compute and write ``chunks``, and call ``tick`` with the number of items that were finished.

    The cluster is the one at ``address``, or a local one with ``workers`` CPUs. If Ray is already initialised in this
    process, it is used instead. Every machine of the cluster needs this library, the job's inputs, and the store's
    folder under the same path.
    """
    ray_data = require("ray.data", "ray")
    with connected(address, cpus=workers) as ray:
        context = ray_data.DataContext.get_current()
        bars, context.enable_progress_bars = context.enable_progress_bars, False  # the caller has a progress bar
        try:
            resources = ray.cluster_resources()
            gpus, cpus = int(resources.get("GPU", 0)), max(1, int(resources.get("CPU", 1)))
            pipeline = ray_data.from_items([{"chunk": chunk} for chunk in chunks], override_num_blocks=len(chunks))
            groups = [
                (on_gpu, list(group)) for on_gpu, group in groupby(job.stages, lambda stage: stage.gpu and gpus > 0)
            ]
            cpu_groups = sum(not on_gpu for on_gpu, _ in groups)
            held: list[Any] = []
            for position, (on_gpu, group) in enumerate(groups):
                share = gpus if on_gpu else max(1, cpus // cpu_groups)
                # Kept until the end: an actor that is restarted reads them again.
                held.append(ray.put((group, store, position == len(groups) - 1)))
                pipeline = pipeline.map(
                    _Actor,
                    fn_constructor_args=(held[-1:],),
                    num_gpus=1 if on_gpu else None,
                    num_cpus=0 if on_gpu else 1,
                    compute=ray_data.ActorPoolStrategy(min_size=1, max_size=min(share, len(chunks))),
                )
            for row in pipeline.iter_rows():
                if row["failure"]:
                    raise DataError(row["failure"])
                tick(len(store.items(row["chunk"])))
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            raise OutputError(f"the Ray pipeline failed ({cause}); run the same command again to continue") from error
        finally:
            context.enable_progress_bars = bars


class _Actor:
    """Applies some stages to every item of a chunk; the last actor of the pipeline writes the chunk.

    The row carries the message of an error in a stage, because Ray would wrap it in a long traceback of its own.
    """

    def __init__(self, held: list[Any]) -> None:
        import ray

        stages: Sequence[Stage]
        stages, self.store, self.last = ray.get(held[0])
        self.failure = ""
        try:
            self.functions = build(stages)
        except Exception as error:
            self.failure = _describe_error(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        chunk, failure, items = row["chunk"], row.get("failure") or self.failure, b""
        if not failure:
            try:
                items = self._make(chunk, row.get("items"))
            except Exception as error:
                failure = _describe_error(error)
        return {"chunk": chunk, "items": items, "failure": failure}

    def _make(self, chunk: int, given: bytes | None) -> bytes:
        items: list[Any] = list(self.store.items(chunk)) if given is None else pickle.loads(given)
        with one_thread():
            items = [run(self.functions, item) for item in items]
        if not self.last:
            return pickle.dumps(items)
        self.store.write_chunk(chunk, zip(self.store.items(chunk), items, strict=True))
        return b""


def _describe_error(error: Exception) -> str:
    """Return the message of an expected error, or the traceback of any other."""
    return str(error) if isinstance(error, LocalScaleError) else "".join(traceback.format_exception(error))
