"""Training steps that are recorded and replayed. Recording needs a GPU; these tests replace it."""

import pytest
import torch
from torch import Tensor

from localscale.lab.training.graph import WARM_UP, Replayed


class Recorded:
    """Stands in for a CUDA graph: replaying repeats the step on the tensors it was recorded with."""

    def __init__(self, replayed: Replayed) -> None:
        self.replayed = replayed

    def replay(self) -> None:
        for name, value in self.replayed.step(*self.replayed.inputs).items():
            self.replayed.answer[name].copy_(value)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Replayed:
    found = Replayed(lambda x: {"double": 2 * x})

    def record(*tensors: Tensor) -> None:
        found.inputs = tuple(tensor.clone() for tensor in tensors)
        found.answer = found.step(*found.inputs)
        found.graph = Recorded(found)  # type: ignore[assignment]

    monkeypatch.setattr(found, "_record", record)
    monkeypatch.setattr(found, "_aside", found.step)
    return found


def test_every_call_has_its_own_answer(replayed: Replayed):
    for number in range(WARM_UP + 4):
        assert replayed(torch.full((3,), float(number)))["double"].tolist() == [2.0 * number] * 3
    assert replayed.graph is not None


def test_other_shapes_run_as_they_are(replayed: Replayed):
    for _ in range(WARM_UP + 1):
        replayed(torch.ones(3))
    assert replayed(torch.ones(5))["double"].tolist() == [2.0] * 5
    assert replayed(torch.ones(3))["double"].tolist() == [2.0] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_is_the_step():
    weight = torch.randn(8, 8, device="cuda")
    replayed = Replayed(lambda x: {"product": torch.tanh(x @ weight)})
    for _ in range(WARM_UP + 3):
        x = torch.randn(4, 8, device="cuda")
        torch.testing.assert_close(replayed(x)["product"], torch.tanh(x @ weight))
