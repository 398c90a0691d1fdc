"""Making a dataset on a Ray cluster: the job's stages as a Ray Data pipeline of actors, chunk by chunk.

Stages that want a GPU and stand next to each other share an actor, and so do the others: a chunk travels between
machines only where the kind of machine changes. Ray starts an actor that died again and hands it its chunk once more.
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
from localscale.lab.data.generation.local import one_thread
from localscale.lab.data.generation.store import Store

__all__ = ["run_ray"]


def run_ray(
    job: Job, store: Store, chunks: Sequence[int], *, workers: int, address: str | None, tick: Callable[[int], object]
) -> None:
    """Make ``chunks`` on the cluster at ``address``, or on a local one of ``workers`` CPUs; ``tick`` gets item counts.

    Where Ray runs in this process already, it is used as it is. Every machine of the cluster needs this library, the
    job's inputs, and ``store``'s folder under the same path.
    """
    ray_data = require("ray.data", "ray")
    with connected(address, cpus=workers) as ray:
        context = ray_data.DataContext.get_current()
        bars, context.enable_progress_bars = context.enable_progress_bars, False  # only the caller's bar speaks
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
                # Held here until the end: an actor that starts again reads them again.
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
            raise OutputError(f"the Ray pipeline failed ({cause}); run the same command again to go on") from error
        finally:
            context.enable_progress_bars = bars


class _Actor:
    """Runs some stages on every item of a chunk; the last actor writes the chunk.

    What goes wrong in a stage travels in the row: Ray would bury it under its own account of it.
    """

    def __init__(self, held: list[Any]) -> None:
        import ray

        stages: Sequence[Stage]
        stages, self.store, self.last = ray.get(held[0])
        self.failure = ""
        try:
            self.steps = build(stages)
        except Exception as error:
            self.failure = _account(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        chunk, failure, items = row["chunk"], row.get("failure") or self.failure, b""
        if not failure:
            try:
                items = self._make(chunk, row.get("items"))
            except Exception as error:
                failure = _account(error)
        return {"chunk": chunk, "items": items, "failure": failure}

    def _make(self, chunk: int, given: bytes | None) -> bytes:
        items: list[Any] = list(self.store.items(chunk)) if given is None else pickle.loads(given)
        with one_thread():
            items = [run(self.steps, item) for item in items]
        if not self.last:
            return pickle.dumps(items)
        self.store.write_chunk(chunk, zip(self.store.items(chunk), items, strict=True))
        return b""


def _account(error: Exception) -> str:
    """Ours in their own words, others with their traceback."""
    return str(error) if isinstance(error, LocalScaleError) else "".join(traceback.format_exception(error))
