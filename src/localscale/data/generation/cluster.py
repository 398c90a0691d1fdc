"""Making a dataset on a Ray cluster: the job's stages as a Ray Data pipeline of actors, chunk by chunk.

Stages that want a GPU and stand next to each other share an actor, and so do the others: a chunk travels between
machines only where the kind of machine changes. Ray starts an actor that died again and hands it its chunk once more.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from localscale.data.generation.job import Job, Skip, Stage, build
from localscale.data.generation.local import one_thread
from localscale.data.generation.store import Store
from localscale.errors import OutputError
from localscale.extras import require

__all__ = ["run_ray"]


def run_ray(
    job: Job, store: Store, chunks: Sequence[int], *, workers: int, address: str | None, tick: Callable[[int], object]
) -> None:
    """Make ``chunks`` on the cluster at ``address``, or on a local one of ``workers`` CPUs; ``tick`` gets item counts.

    Every machine of the cluster needs this library, the job's inputs, and ``store``'s folder under the same path.
    """
    ray = require("ray", "ray")
    ray_data = require("ray.data", "ray")
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, workers, address)
    try:
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), max(1, int(resources.get("CPU", 1)))
        context = ray_data.DataContext.get_current()
        context.enable_progress_bars = False
        for name in ("ray.data", "ray._private"):  # only the caller's bar speaks
            logging.getLogger(name).setLevel(logging.ERROR)
        pipeline = ray_data.from_items([{"chunk": chunk} for chunk in chunks], override_num_blocks=len(chunks))
        groups = [list(group) for _, group in groupby(job.stages, key=lambda stage: stage.gpu and gpus > 0)]
        for position, group in enumerate(groups):
            on_gpu = group[0].gpu and gpus > 0
            share = gpus if on_gpu else max(1, cpus // sum(not (g[0].gpu and gpus > 0) for g in groups))
            pipeline = pipeline.map(
                _Actor,
                fn_constructor_args=(group, store, position == len(groups) - 1),
                num_gpus=1 if on_gpu else None,
                num_cpus=0 if on_gpu else 1,
                compute=ray_data.ActorPoolStrategy(min_size=1, max_size=min(share, len(chunks))),
            )
        for row in pipeline.iter_rows():
            tick(len(store.items(row["chunk"])))
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        raise OutputError(f"the Ray pipeline failed ({cause}); run the same command again to go on") from error
    finally:
        if ours:
            ray.shutdown()


class _Actor:
    """Runs some stages on every item of a chunk; the last actor writes the chunk."""

    def __init__(self, stages: Sequence[Stage], store: Store, last: bool) -> None:
        self.steps, self.store, self.last = build(stages), store, last

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        chunk = row["chunk"]
        items: list[Any] = pickle.loads(row["items"]) if "items" in row else list(self.store.items(chunk))
        with one_thread():
            items = [self._advance(item) for item in items]
        if self.last:
            self.store.write_chunk(chunk, zip(self.store.items(chunk), items, strict=True))
            return {"chunk": chunk}
        return {"chunk": chunk, "items": pickle.dumps(items)}

    def _advance(self, item: Any) -> Any:
        for step in self.steps:
            if isinstance(item, Skip):
                break
            item = step(item)
        return item


def _connect(ray: Any, workers: int, address: str | None) -> None:
    try:
        if address is None:
            ray.init(num_cpus=workers, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        else:
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise OutputError(
            f"no Ray cluster answers at {address or 'this machine'} ({error}); start one with `ray start --head`, or "
            "leave out --address to use this machine"
        ) from error
