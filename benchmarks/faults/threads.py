"""Call one adapted model from several threads at once; each must get the answers of one thread."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any, ClassVar

import torch
from torch import Tensor

import localscale as ls
from benchmarks.faults.campaign import Campaign
from benchmarks.faults.images import BACKBONES, SIDE, UPDATES, Case
from localscale.maps import FAMILIES

__all__ = ["Threads"]

CALLS = 3  # of each thread


class Threads(Campaign):
    """Two to four threads with batches of their own, some of them with the model disabled or with a report."""

    name = "threads"
    about = "one adapted model called by several threads"
    goal = 100
    share = 1.0
    models: ClassVar[list[ls.AdaptedModel]] = []

    def prepare(self, folder: Path) -> None:
        """Make one model for each update and family, at the input and inside, with random weights."""
        torch.set_num_threads(1)
        self.models.clear()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for number, update in enumerate(UPDATES):
                for family in FAMILIES if update != "sizes" else ("grid",):
                    for at_input in (True, False):
                        backbone = list(BACKBONES)[number % len(BACKBONES)]
                        solver = "anderson" if family == "grid" else "picard"
                        case = Case(backbone, update, family, solver, number % 2 == 0, at_input, "invariant", "latent")
                        self.models.append(case.model(BACKBONES[backbone][0]().eval(), 0.2))

    def trial(self, draw: Random) -> str | None:
        model = draw.choice(self.models)
        rng = torch.Generator().manual_seed(draw.getrandbits(32))
        work = [
            [(torch.rand(draw.randint(1, 5), 3, SIDE, SIDE, generator=rng), draw.random() < 0.3) for _ in range(CALLS)]
            for _ in range(draw.randint(2, 4))
        ]
        barrier = Barrier(len(work))

        def call(batches: list[tuple[Tensor, bool]], together: bool) -> list[dict[str, Tensor]]:
            if together:
                barrier.wait()
            return [_answer(model, images, disabled) for images, disabled in batches]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = [call(batches, False) for batches in work]
            with ThreadPoolExecutor(len(work)) as pool:
                found = list(pool.map(call, work, [True] * len(work)))
        for one, other in zip(chain(*expected), chain(*found), strict=True):
            for name, value in one.items():
                if name not in other or not torch.equal(value, other[name]):
                    return f"the {name} of one thread depends on the calls of others ({model.dec_config.update})"
        return None


def _answer(model: ls.AdaptedModel, images: Tensor, disabled: bool) -> dict[str, Any]:
    with torch.no_grad():
        if disabled:
            with model.disabled():
                return {"logits": model(images)}
        logits, report = model(images, return_report=True)
    (site,) = report.values()
    return {"logits": logits, "map": site.map.state(), "residual": site.residual}
