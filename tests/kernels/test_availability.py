"""Kernels are used where Triton works; elsewhere plain PyTorch takes their place, after one warning."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kernel_inputs import DEVICE

from localscale.kernels import availability, trial
from localscale.kernels.availability import available, triton_works


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    triton_works.cache_clear()
    monkeypatch.setattr(availability, "ENABLED", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    yield
    triton_works.cache_clear()


class OnGPU:
    """The part of a tensor that ``available`` asks for."""

    is_cuda = True

    def get_device(self) -> int:
        return 0


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(availability, "can_launch_directly", lambda *_: True)
    return OnGPU()


def test_the_trial_runs_a_kernel():
    assert trial.launch_trial(torch.device(DEVICE)).tolist() == [1]


@pytest.mark.parametrize("failure", [RuntimeError("Failed to find C compiler."), PermissionError("no cache folder")])
def test_plain_pytorch_takes_the_place_of_kernels_that_cannot_be_built(
    failure: Exception, plain: Any, monkeypatch: pytest.MonkeyPatch
):
    def launch_trial(device: torch.device) -> Any:
        raise failure

    monkeypatch.setattr(trial, "launch_trial", launch_trial)
    with pytest.warns(UserWarning, match=f"on cuda:0 .*{failure}.* needs a C compiler"):
        assert not available(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not available(plain, plain), "without another warning"


def test_a_working_triton_is_tried_once(plain: Any, monkeypatch: pytest.MonkeyPatch):
    tried: list[torch.device] = []
    monkeypatch.setattr(trial, "launch_trial", lambda device: tried.append(device) or True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert available(plain)
        assert available(plain)
    assert tried == [torch.device("cuda", 0)]


def test_nothing_is_tried_while_a_graph_is_recorded(plain: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial, "launch_trial", lambda device: pytest.fail("a launch would break the recording"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert available(plain)


def test_images_on_the_cpu_and_switched_off_kernels_need_no_trial(plain: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial, "launch_trial", lambda device: pytest.fail("not needed"))
    assert not available(torch.zeros(1))
    assert not available(plain, torch.zeros(1))
    monkeypatch.setattr(availability, "ENABLED", False)
    assert not available(plain)
