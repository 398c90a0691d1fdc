"""A solve that comes again is replayed, and answers as if it had been launched."""

import gc
import weakref
from typing import Any

import pytest
import torch
from kernel_inputs import DEVICE, canonicalizer_for, features_for
from torch import Tensor

from localscale.kernels import recorded
from localscale.kernels.recorded import MOST, USUAL, replayed

on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")


class Recorded:
    """Stands in for recordings where there is no GPU: counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, works: bool = True) -> None:
        self.count, self.works = 0, works
        monkeypatch.setattr(recorded, "_stream_of", lambda x: "stream")
        monkeypatch.setattr(recorded, "_record", self.record)

    def record(self, f: Any, x: Tensor, stream: object) -> Any:
        self.count += 1
        held = x.clone()
        graph = type("Graph", (), {"replay": lambda graph: answer[0].copy_(f(held)[0])})()
        answer = f(held)
        return recorded._Recording(graph, held, answer) if self.works else None


def double(x: Tensor) -> tuple[Tensor]:
    return (2 * x,)


def test_a_way_to_be_called_is_recorded_once_when_it_has_come_often_enough(monkeypatch: pytest.MonkeyPatch):
    made, owner = Recorded(monkeypatch), torch.zeros(1)
    answers = [replayed(double, torch.full((3,), float(n)), owner=owner, way="way")[0] for n in range(6)]
    assert made.count == 1
    for n, answer in enumerate(answers):  # each keeps its own
        assert answer.tolist() == [2 * n] * 3
    for _ in range(USUAL):
        replayed(double, torch.ones(4), owner=owner, way="way")
        replayed(double, torch.ones(3), owner=owner, way="another")
        replayed(double, torch.ones(3).double(), owner=owner, way="way")
        replayed(double, torch.ones(3), owner=torch.zeros(1), way="way")
    assert made.count == 1
    replayed(double, torch.ones(4), owner=owner, way="way")
    assert made.count == 2


def test_only_the_latest_ways_are_remembered_and_only_while_their_owner_lives(monkeypatch: pytest.MonkeyPatch):
    made, owner = Recorded(monkeypatch), torch.zeros(1)
    for size in range(1, MOST + 2):
        for _ in range(USUAL + 1):
            replayed(double, torch.ones(size), owner=owner, way=None)
    assert made.count == MOST + 1
    assert len(recorded._SEEN[owner]) == MOST
    held = weakref.ref(next(reversed(recorded._SEEN[owner].values())).x)
    replayed(double, torch.ones(1), owner=owner, way=None)
    assert made.count == MOST + 1, "the first was forgotten and starts anew"
    del owner
    gc.collect()
    assert held() is None


def test_what_cannot_be_recorded_is_launched(monkeypatch: pytest.MonkeyPatch):
    made, owner = Recorded(monkeypatch, works=False), torch.zeros(1)
    for _ in range(5):
        assert replayed(double, torch.ones(3), owner=owner, way=None)[0].tolist() == [2, 2, 2]
    assert made.count == 1


def test_on_a_cpu_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorded, "_record", None)
    owner = torch.zeros(1)
    for _ in range(5):
        replayed(double, torch.ones(3), owner=owner, way=None)
    assert owner not in recorded._SEEN


@on_gpu
@pytest.mark.parametrize("update", ["direct", "compose"])
@pytest.mark.parametrize("in_channels", [3, 160])
def test_a_replayed_solve_is_the_launched_one(in_channels: int, update: str, monkeypatch: pytest.MonkeyPatch):
    canonicalizer, features = canonicalizer_for(in_channels, update, True, (16, 16)), features_for(in_channels)
    inputs = [features * (1 + n) for n in range(5)]
    with torch.no_grad():
        found = [canonicalizer(x) for x in inputs]
        (kinds,) = [list(map(type, recorded._SEEN[canonicalizer.network.trunk.tensors()[0]].values()))]
        assert kinds == [recorded._Recording]
        monkeypatch.setattr(recorded, "WANTED", False)
        for x, report in zip(inputs, found, strict=True):
            launched = canonicalizer(x)
            assert torch.equal(report.map.state(), launched.map.state())
            assert torch.equal(report.residual, launched.residual)
            assert torch.equal(report.steps, launched.steps)


@on_gpu
def test_weights_that_change_are_followed():
    canonicalizer, features = canonicalizer_for(3, "direct", True, (16, 16)), features_for(3)
    with torch.no_grad():
        before = [canonicalizer(features).map.state() for _ in range(USUAL + 2)][-1]
        canonicalizer.network.to_x.weight.mul_(-1)  # in place
        in_place = canonicalizer(features).map.state()
        assert not torch.allclose(in_place, before, atol=1e-4)
        canonicalizer.network.to_x.weight = torch.nn.Parameter(-canonicalizer.network.to_x.weight.detach())
        for _ in range(USUAL + 2):
            assert torch.equal(canonicalizer(features).map.state(), before)


@on_gpu
def test_streams_modes_and_captures_of_others():
    canonicalizer, features = canonicalizer_for(3, "direct", True, (16, 16)), features_for(3)
    with torch.no_grad():
        usual = canonicalizer(features).map.state()
    with torch.inference_mode():
        for _ in range(USUAL + 2):
            canonicalizer(features)
    with torch.no_grad():  # recorded in inference mode, replayed outside
        assert torch.equal(canonicalizer(features).map.state(), usual)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            beside = [canonicalizer(features).map.state() for _ in range(USUAL + 2)]
        stream.synchronize()
        assert all(torch.equal(state, usual) for state in beside)
        graph, held = torch.cuda.CUDAGraph(), features.clone()
        with torch.cuda.graph(graph):
            state = canonicalizer(held).map.state()
        held.mul_(0)
        graph.replay()
        assert not torch.equal(state, usual)
        held.copy_(features)
        graph.replay()
        assert torch.equal(state, usual)
