"""A repeated solve is replayed from a CUDA graph, with the same result as launching its kernels."""

import gc
import weakref
from typing import Any

import pytest
import torch
from kernel_inputs import DEVICE, canonicalizer_for, features_for, use_kernels
from torch import Tensor

import localscale as ls
from localscale.kernels import cuda_graphs
from localscale.kernels.cuda_graphs import CALLS_BEFORE_RECORDING, MAX_RECORDINGS, replay_or_call

on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")


class FakeRecorder:
    """Replace recording where there is no GPU, and count the recordings."""

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


def test_a_call_is_recorded_once_after_enough_repetitions(monkeypatch: pytest.MonkeyPatch):
    made, owner = FakeRecorder(monkeypatch), torch.zeros(1)
    answers = [replay_or_call(double, (torch.full((3,), float(n)),), owner=owner, settings="some")[0] for n in range(6)]
    assert made.count == 1
    for n, answer in enumerate(answers):  # a replay does not overwrite earlier answers
        assert answer.tolist() == [2 * n] * 3
    for _ in range(CALLS_BEFORE_RECORDING):
        replay_or_call(double, (torch.ones(4),), owner=owner, settings="some")
        replay_or_call(double, (torch.ones(3),), owner=torch.zeros(1), settings="some")
    assert made.count == 1
    replay_or_call(double, (torch.ones(4),), owner=owner, settings="some")
    assert made.count == 2


def test_a_recording_is_only_replayed_for_the_same_call(monkeypatch: pytest.MonkeyPatch):
    made, owner = FakeRecorder(monkeypatch), torch.zeros(1)
    x, weight = torch.ones(3), torch.ones(2, 2)
    settings = {"owner": owner, "reads": (weight,), "settings": "some"}
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


def test_the_latest_recordings_are_kept_while_their_owner_lives(monkeypatch: pytest.MonkeyPatch):
    made, owner = FakeRecorder(monkeypatch), torch.zeros(1)
    for size in range(1, MAX_RECORDINGS + 1):
        for _ in range(CALLS_BEFORE_RECORDING + 1):
            replay_or_call(double, (torch.ones(size),), owner=owner, settings=None)
    replay_or_call(double, (torch.ones(1),), owner=owner, settings=None)  # becomes the latest
    replay_or_call(double, (torch.ones(MAX_RECORDINGS + 1),), owner=owner, settings=None)
    assert made.count == len(cuda_graphs._SEEN[owner]) == MAX_RECORDINGS
    replay_or_call(double, (torch.ones(1),), owner=owner, settings=None)
    assert isinstance(next(reversed(cuda_graphs._SEEN[owner].values())), cuda_graphs._Recording), "still there"
    for _ in range(CALLS_BEFORE_RECORDING + 1):
        replay_or_call(double, (torch.ones(2),), owner=owner, settings=None)
    assert made.count == MAX_RECORDINGS + 1, "the oldest was dropped"
    held = weakref.ref(next(reversed(cuda_graphs._SEEN[owner].values())).inputs[0])
    del owner
    gc.collect()
    assert held() is None


def test_if_recording_fails_the_kernels_are_launched(monkeypatch: pytest.MonkeyPatch):
    made, owner = FakeRecorder(monkeypatch, works=False), torch.zeros(1)
    for _ in range(5):
        assert replay_or_call(double, (torch.ones(3),), owner=owner, settings=None)[0].tolist() == [2, 2, 2]
    assert made.count == 1


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_capture_is_ended(raised: type[BaseException]):
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


def test_nothing_is_recorded_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda_graphs, "_record", None)
    owner = torch.zeros(1)
    for _ in range(5):
        replay_or_call(double, (torch.ones(3),), owner=owner, settings=None)
    assert owner not in cuda_graphs._SEEN


class Silent(cuda_graphs._Recording):
    """Return zeros without solving."""

    def __call__(self, inputs: tuple[Tensor, ...]) -> Any:
        batch = len(inputs[0])
        return torch.zeros(batch * (2 * 2 * 5 * 4 + 1)), torch.zeros(batch, dtype=torch.int64)


def keys_of(canonicalizer: ls.Canonicalizer, features: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the keys under which this canonicalizer's solves are recorded."""
    monkeypatch.setattr(cuda_graphs, "CALLS_BEFORE_RECORDING", 0)
    monkeypatch.setattr(cuda_graphs, "_recordable_stream", lambda x: "stream")
    monkeypatch.setattr(cuda_graphs, "_record", lambda f, inputs, stream: Silent(graph=None, inputs=[], answer=()))
    use_kernels(monkeypatch)
    with torch.no_grad():
        canonicalizer(features)
    return list(cuda_graphs._SEEN[canonicalizer.network.trunk.tensors()[0]])


def test_the_key_of_a_solve_holds_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch):
    features = torch.rand(1, 3, 6, 6, device=DEVICE)

    def canonicalizer(update: str = "direct", **settings: Any) -> ls.Canonicalizer:
        return canonicalizer_for(3, update, True, (16, 16), **settings)

    usual = canonicalizer()
    (key,) = keys_of(usual, features, monkeypatch)
    with torch.no_grad():
        usual.network.to_x.weight.mul_(2)  # in place, so the recording reads the new values
    assert keys_of(usual, features, monkeypatch) == [key]
    usual.network.to_x.weight = torch.nn.Parameter(usual.network.to_x.weight.detach().clone())
    assert len(keys_of(usual, features, monkeypatch)) == 2
    settings_seen = {key[-1]}
    for changed in (
        {"max_steps": 5}, {"tolerance": 1e-2}, {"history": 3}, {"damping": 0.5}, {"guard": None},
        {"temperature": 2.0}, {"update": "compose", "solver": "anderson", "max_steps": 6},
    ):  # fmt: skip
        settings_seen.add(keys_of(canonicalizer(**changed), features, monkeypatch)[0][-1])
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    settings_seen.add(keys_of(canonicalizer(), features, monkeypatch)[0][-1])
    assert len(settings_seen) == 9


def test_nothing_is_recorded_in_training_or_in_compiled_programs(monkeypatch: pytest.MonkeyPatch):
    canonicalizer = canonicalizer_for(3, "direct", True, (16, 16), max_steps=1)
    features = torch.rand(1, 3, 6, 6, device=DEVICE)
    owner = canonicalizer.network.trunk.tensors()[0]
    FakeRecorder(monkeypatch)
    use_kernels(monkeypatch)
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
def test_a_replayed_solve_equals_a_launched_one(in_channels: int, update: str, monkeypatch: pytest.MonkeyPatch):
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
def test_a_replay_follows_changed_weights():
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
def test_other_streams_modes_and_captures():
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
