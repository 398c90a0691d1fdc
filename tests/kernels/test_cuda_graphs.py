"""A solve that comes again is replayed, and answers as if it had been launched."""

import gc
import weakref
from typing import Any

import pytest
import torch
from kernel_inputs import DEVICE, canonicalizer_for, features_for
from torch import Tensor

import localscale as ls
from localscale import kernels
from localscale.kernels import cuda_graphs
from localscale.kernels.cuda_graphs import CALLS_BEFORE_RECORDING, MAX_RECORDINGS, replay_or_call

on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")


class Recorded:
    """Stands in for recordings where there is no GPU: counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, works: bool = True) -> None:
        self.count, self.works, self.stream = 0, works, "stream"
        monkeypatch.setattr(cuda_graphs, "_recordable_stream", lambda x: self.stream)
        monkeypatch.setattr(cuda_graphs, "_record", self.record)

    def record(self, f: Any, inputs: tuple[Tensor, ...], stream: object) -> Any:
        self.count += 1
        held = [x.clone() for x in inputs]
        graph = type("Graph", (), {"replay": lambda graph: answer[0].copy_(f(*held)[0])})()
        answer = f(*held)
        return cuda_graphs._Recording(graph, held, answer) if self.works else None


def double(x: Tensor) -> tuple[Tensor]:
    return (2 * x,)


def triple(x: Tensor) -> tuple[Tensor]:
    return (3 * x,)


def test_a_way_to_be_called_is_recorded_once_when_it_has_come_often_enough(monkeypatch: pytest.MonkeyPatch):
    made, owner = Recorded(monkeypatch), torch.zeros(1)
    answers = [replay_or_call(double, (torch.full((3,), float(n)),), owner=owner, settings="way")[0] for n in range(6)]
    assert made.count == 1
    for n, answer in enumerate(answers):  # each keeps its own
        assert answer.tolist() == [2 * n] * 3
    for _ in range(CALLS_BEFORE_RECORDING):
        replay_or_call(double, (torch.ones(4),), owner=owner, settings="way")
        replay_or_call(double, (torch.ones(3),), owner=torch.zeros(1), settings="way")
    assert made.count == 1
    replay_or_call(double, (torch.ones(4),), owner=owner, settings="way")
    assert made.count == 2


def test_another_way_is_another_recording(monkeypatch: pytest.MonkeyPatch):
    made, owner = Recorded(monkeypatch), torch.zeros(1)
    x, weight = torch.ones(3), torch.ones(2, 2)
    settings = {"owner": owner, "reads": (weight,), "settings": "way"}
    for _ in range(CALLS_BEFORE_RECORDING + 1):
        assert replay_or_call(double, (x,), **settings)[0].tolist() == [2, 2, 2]
    assert replay_or_call(double, (x.half(),), **settings)[0].dtype == torch.half
    assert replay_or_call(triple, (x,), **settings | {"settings": "another"})[0].tolist() == [3, 3, 3]
    made.stream = "another"
    assert replay_or_call(triple, (x,), **settings)[0].tolist() == [3, 3, 3]
    made.stream = "stream"
    for moved in (weight.clone(), weight.T, weight.view(4), weight.view(torch.int32)):
        assert replay_or_call(double, (x,), **settings)[0].tolist() == [
            2,
            2,
            2,
        ]  # again the latest
        assert replay_or_call(triple, (x,), **settings | {"reads": (moved,)})[0].tolist() == [3, 3, 3]
    assert made.count == 1


def test_only_the_latest_ways_are_remembered_and_only_while_their_owner_lives(monkeypatch: pytest.MonkeyPatch):
    made, owner = Recorded(monkeypatch), torch.zeros(1)
    for size in range(1, MAX_RECORDINGS + 1):
        for _ in range(CALLS_BEFORE_RECORDING + 1):
            replay_or_call(double, (torch.ones(size),), owner=owner, settings=None)
    replay_or_call(double, (torch.ones(1),), owner=owner, settings=None)  # now the latest
    replay_or_call(double, (torch.ones(MAX_RECORDINGS + 1),), owner=owner, settings=None)
    assert made.count == len(cuda_graphs._SEEN[owner]) == MAX_RECORDINGS
    replay_or_call(double, (torch.ones(1),), owner=owner, settings=None)
    assert isinstance(next(reversed(cuda_graphs._SEEN[owner].values())), cuda_graphs._Recording), "still there"
    for _ in range(CALLS_BEFORE_RECORDING + 1):
        replay_or_call(double, (torch.ones(2),), owner=owner, settings=None)
    assert made.count == MAX_RECORDINGS + 1, "the oldest was forgotten"
    held = weakref.ref(next(reversed(cuda_graphs._SEEN[owner].values())).inputs[0])
    del owner
    gc.collect()
    assert held() is None


def test_what_cannot_be_recorded_is_launched(monkeypatch: pytest.MonkeyPatch):
    made, owner = Recorded(monkeypatch, works=False), torch.zeros(1)
    for _ in range(5):
        assert replay_or_call(double, (torch.ones(3),), owner=owner, settings=None)[0].tolist() == [2, 2, 2]
    assert made.count == 1


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_a_capture_that_is_broken_off_ends(raised: type[BaseException]):
    class Graph:
        ended = 0

        def capture_begin(self, **settings: str) -> None: ...

        def capture_end(self) -> None:
            self.ended += 1
            raise RuntimeError("capture was invalidated")

    def interrupted() -> tuple[Tensor]:
        raise raised

    graph: Any = Graph()
    with pytest.raises(raised):
        cuda_graphs._capture(graph, interrupted)
    assert graph.ended == 1


def test_on_a_cpu_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda_graphs, "_record", None)
    owner = torch.zeros(1)
    for _ in range(5):
        replay_or_call(double, (torch.ones(3),), owner=owner, settings=None)
    assert owner not in cuda_graphs._SEEN


class Silent(cuda_graphs._Recording):
    """Takes no time."""

    def __call__(self, inputs: tuple[Tensor, ...]) -> Any:
        batch = len(inputs[0])
        return torch.zeros(batch * (2 * 2 * 5 * 4 + 1)), torch.zeros(batch, dtype=torch.int64)


def keys_of(canonicalizer: ls.Canonicalizer, features: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What recordings of this canonicalizer's solves would be known by."""
    monkeypatch.setattr(cuda_graphs, "CALLS_BEFORE_RECORDING", 0)
    monkeypatch.setattr(cuda_graphs, "_recordable_stream", lambda x: "stream")
    monkeypatch.setattr(cuda_graphs, "_record", lambda f, inputs, stream: Silent(graph=None, inputs=[], answer=()))
    monkeypatch.setattr(kernels, "available", lambda *tensors: True)
    with torch.no_grad():
        canonicalizer(features)
    return list(cuda_graphs._SEEN[canonicalizer.network.trunk.tensors()[0]])


def test_a_solve_is_known_by_all_that_it_follows_from(monkeypatch: pytest.MonkeyPatch):
    features = torch.rand(1, 3, 6, 6, device=DEVICE)

    def canonicalizer(update: str = "direct", **settings: Any) -> ls.Canonicalizer:
        return canonicalizer_for(3, update, True, (16, 16), **settings)

    usual = canonicalizer()
    (key,) = keys_of(usual, features, monkeypatch)
    with torch.no_grad():
        usual.network.to_x.weight.mul_(2)  # in place: read where it lies
    assert keys_of(usual, features, monkeypatch) == [key]
    usual.network.to_x.weight = torch.nn.Parameter(usual.network.to_x.weight.detach().clone())
    assert len(keys_of(usual, features, monkeypatch)) == 2
    ways = {key[-1]}
    for changed in (
        {"max_steps": 5}, {"tolerance": 1e-2}, {"history": 3}, {"damping": 0.5}, {"guard": None},
        {"temperature": 2.0}, {"update": "compose", "solver": "anderson", "max_steps": 6},
    ):  # fmt: skip
        ways.add(keys_of(canonicalizer(**changed), features, monkeypatch)[0][-1])
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    ways.add(keys_of(canonicalizer(), features, monkeypatch)[0][-1])
    assert len(ways) == 9


def test_nothing_is_recorded_in_training_nor_in_compiled_programs(monkeypatch: pytest.MonkeyPatch):
    canonicalizer = canonicalizer_for(3, "direct", True, (16, 16), max_steps=1)
    features = torch.rand(1, 3, 6, 6, device=DEVICE)
    owner = canonicalizer.network.trunk.tensors()[0]
    Recorded(monkeypatch)
    monkeypatch.setattr(kernels, "available", lambda *tensors: True)
    canonicalizer(features).map.state().sum().backward()
    with torch.no_grad():
        torch.compile(canonicalizer, backend="eager")(features)
    assert owner not in cuda_graphs._SEEN


def recordings(canonicalizer: ls.Canonicalizer) -> int:
    seen = cuda_graphs._SEEN[canonicalizer.network.trunk.tensors()[0]].values()
    return sum(isinstance(one, cuda_graphs._Recording) for one in seen)


@on_gpu
@pytest.mark.parametrize("update", ["direct", "compose"])
@pytest.mark.parametrize("in_channels", [3, 160])
def test_a_replayed_solve_is_the_launched_one(in_channels: int, update: str, monkeypatch: pytest.MonkeyPatch):
    canonicalizer, features = canonicalizer_for(in_channels, update, True, (16, 16)), features_for(in_channels)
    inputs = [features * (1 + n) for n in range(5)]
    with torch.no_grad():
        found = [canonicalizer(x) for x in inputs]
        assert recordings(canonicalizer) == 1
        monkeypatch.setattr(cuda_graphs, "ENABLED", False)
        for x, report in zip(inputs, found, strict=True):
            launched = canonicalizer(x)
            assert torch.equal(report.map.state(), launched.map.state())
            assert torch.equal(report.residual, launched.residual)
            assert torch.equal(report.steps, launched.steps)


@on_gpu
def test_weights_that_change_are_followed():
    canonicalizer, features = canonicalizer_for(3, "direct", True, (16, 16)), features_for(3)
    with torch.no_grad():
        before = [canonicalizer(features).map.state() for _ in range(CALLS_BEFORE_RECORDING + 2)][-1]
        canonicalizer.network.to_x.weight.mul_(-1)  # in place
        in_place = canonicalizer(features).map.state()
        assert not torch.allclose(in_place, before, atol=1e-4)
        canonicalizer.network.to_x.weight = torch.nn.Parameter(-canonicalizer.network.to_x.weight.detach())
        for _ in range(CALLS_BEFORE_RECORDING + 2):
            assert torch.equal(canonicalizer(features).map.state(), before)
        assert recordings(canonicalizer) == 2


@on_gpu
def test_streams_modes_and_captures_of_others():
    canonicalizer, features = canonicalizer_for(3, "direct", True, (16, 16)), features_for(3)
    with torch.no_grad():
        usual = canonicalizer(features).map.state()
    with torch.inference_mode():
        for _ in range(CALLS_BEFORE_RECORDING + 2):
            canonicalizer(features)
    with torch.no_grad():  # recorded in inference mode, replayed outside
        assert torch.equal(canonicalizer(features).map.state(), usual)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            beside = [canonicalizer(features).map.state() for _ in range(CALLS_BEFORE_RECORDING + 2)]
        stream.synchronize()
        assert all(torch.equal(state, usual) for state in beside)
        assert recordings(canonicalizer) == 2
        graph, held = torch.cuda.CUDAGraph(), features.clone()
        with torch.cuda.graph(graph):
            state = canonicalizer(held).map.state()
        held.mul_(0)
        graph.replay()
        assert not torch.equal(state, usual)
        held.copy_(features)
        graph.replay()
        assert torch.equal(state, usual)
