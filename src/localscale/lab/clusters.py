"""Connect to a Ray cluster, or start one on this machine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from localscale.errors import OutputError
from localscale.extras import require

__all__ = ["connected"]


@contextlib.contextmanager
def connected(address: str | None, *, cpus: int | None = None) -> Iterator[Any]:
    """Yield the module ``ray``, connected to the cluster at ``address`` or to a new local one with ``cpus`` CPUs.

    A connection that already exists is used and kept; one that is opened here is closed at the end.
    """
    ray = require("ray", "ray")
    ours = not ray.is_initialized()
    if ours:
        for name in ("ray.data", "ray._private"):
            logging.getLogger(name).setLevel(logging.ERROR)
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            if address is None:
                ray.init(num_cpus=cpus, include_dashboard=False, **quiet)
            else:
                ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise OutputError(
                f"no Ray cluster answers at {address or 'this machine'} ({error}); start one with `ray start --head`, "
                "or omit --address to use this machine"
            ) from error
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()
