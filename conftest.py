"""Set up all tests: names for examples in docstrings, kernels in the interpreter without a GPU, and Ctrl-C."""

import os
import signal
from pathlib import Path
from typing import Any

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported

import pytest
import torch

import localscale

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started by a shell in the background; tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, localscale=localscale, ls=localscale)
