"""One bad image among good ones, and one model called from several threads."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import localscale.warp
from benchmarks.faults.campaign import run
from benchmarks.faults.images import OneBadImage
from benchmarks.faults.threads import Threads
from localscale.adaptation.model import AdaptedModel


def test_a_bad_image_changes_no_other():
    assert not run(OneBadImage(), itertools.count(5000), seconds=60, most=4).failures


def test_an_image_that_changes_others_is_found(monkeypatch: pytest.MonkeyPatch):
    sample = localscale.warp.sample_displaced

    def leaky(x: Tensor, displacement: Tensor, moves: Tensor, mode: str = "bilinear") -> Tensor:
        return sample(x, displacement, moves, mode) + 1e-6 * torch.nan_to_num(x).mean()

    monkeypatch.setattr(localscale.warp, "sample_displaced", leaky)
    failures = run(OneBadImage(), itertools.count(), seconds=60, most=6).failures
    assert any("changed the" in said for said in failures.values())


def test_threads_do_not_disturb_each_other():
    assert not run(Threads(), itertools.count(), seconds=60, most=4).failures


def test_threads_that_share_a_state_are_found(monkeypatch: pytest.MonkeyPatch):
    forward, calls = AdaptedModel.forward, itertools.count()

    def counted(self: AdaptedModel, *args: Any, **kwargs: Any) -> Any:
        answer = forward(self, *args, **kwargs)
        return (answer[0] + next(calls), answer[1]) if isinstance(answer, tuple) else answer + next(calls)

    monkeypatch.setattr(AdaptedModel, "forward", counted)
    failures = run(Threads(), itertools.count(), seconds=60, most=2).failures
    assert all("depends on the calls of others" in said for said in failures.values())
    assert failures
